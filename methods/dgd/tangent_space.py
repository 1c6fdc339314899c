"""Perturbations along and across the manifold that a decoder spans (DGD Eq. 4; Yu et al., CVPR 2019).

The decoder phi_d maps codes e to images; its Jacobian J(e) maps a small step of the code to the step of the image. The
tangent directions at e are the leading right-singular vectors of J: they move the image along the manifold. The normal
directions are their orthogonal complement in code space: they hardly change the image. For a linear decoder e -> W e
these are the row space and the null space of W.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp, vmap

Decode = Callable[[Tensor], Tensor]
"""Decoder: (n, c) codes -> (n, ...) images, row by row."""


def jacobian_gram(decode: Decode, codes: Tensor) -> Tensor:
    """Compute J^T J at every code, by one forward-mode derivative per coordinate of the code.

    Args:
        decode: (n, c) to (n, ...), row by row: row i of the result depends only on row i of the codes.
        codes: (n, c).

    Returns:
        (n, c, c), symmetric and positive semi-definite up to rounding.
    """

    def column(direction: Tensor) -> Tensor:
        return jvp(decode, (codes,), (direction.expand_as(codes),))[1].flatten(1)

    basis = torch.eye(codes.shape[1], dtype=codes.dtype, device=codes.device)
    columns = vmap(column)(basis)
    return torch.einsum("ind,jnd->nij", columns, columns)


def tangent_basis(gram: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return orthonormal directions in code space, and which of them are tangent.

    Args:
        gram: (n, c, c) J^T J, c >= 2.
        share: in (0, 1); the smallest number of leading directions that hold this share of the trace are tangent. At
            least one direction is tangent and at least one is normal.

    Returns:
        (n, c, c) with the directions as columns, and (n, c) booleans, true where the column is tangent.
    """
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(-1).clamp_min(0), vectors.flip(-1)
    before = values.cumsum(-1) - values
    tangent = before < share * values.sum(-1, keepdim=True)
    tangent[:, 0], tangent[:, -1] = True, False
    return vectors, tangent


def tangent_and_normal_step(gram: Tensor, share: float, size: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw n^parallel and n^perpendicular of Eq. 4: a random step in each of the two spaces, for every code.

    A step is a standard Gaussian vector, projected onto the space and scaled to length `size`, so its direction is
    uniform in the space.

    Args:
        gram: (n, c, c), from `jacobian_gram`.
        share: in (0, 1), see `tangent_basis`.
        size: Euclidean length of the steps, in code units.
        rng: on the device of `gram`.

    Returns:
        Two (n, c) tensors, orthogonal to each other row by row.
    """
    vectors, tangent = tangent_basis(gram, share)
    drawn = torch.randn(vectors.shape[:2], generator=rng, device=gram.device, dtype=gram.dtype)

    def step(coordinates: Tensor) -> Tensor:
        direction = torch.einsum("nij,nj->ni", vectors, coordinates)
        return size * direction / direction.norm(dim=1, keepdim=True).clamp_min(torch.finfo(direction.dtype).tiny)

    return step(drawn * tangent), step(drawn * ~tangent)
