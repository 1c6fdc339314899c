"""Whitening of rows of norm 1 by their second moments, either released with noise or computed from public rows.

Noise is equal in all directions, so that gradient descent is slow along directions with little variance; whitened rows
have the same variance in all (Mehta, Krichene, Thakurta, Kurakin, Cutkosky, "Differentially Private Image
Classification from Features", TMLR 2023, arXiv 2211.13403).

A row u of d features may be split into `places` parts u_p of size d / places, one per pixel of a feature map. The
second moment is then that of the maps, sum_p u_p u_p^T, and the same whitening is used at all positions. With one place
the part is the whole row.

Sensitivity, in the Frobenius norm, of S = sum over the records of S_i, S_i = sum_p u_p u_p^T:

- added or removed record: |S_i| <= sum_p |u_p u_p^T| = sum_p |u_p|^2 = |u|^2 <= 1.
- replaced record: S_i and S_j are positive semidefinite, so that <S_i, S_j> = tr(S_i S_j) >= 0 and |S_i - S_j|^2 =
  |S_i|^2 + |S_j|^2 - 2 <S_i, S_j> <= 2.

The diagonal, and sqrt(2) times the entries above it, form a vector with the Frobenius norm of S. Noise of standard
deviation s on its coordinates is s on the diagonal of S and s / sqrt(2) elsewhere.

For unit group S is the sum over groups of (1 / k) times the S_i of the group's k records. A group adds a positive
semidefinite matrix of norm at most (1 / k) sum_i |S_i| <= 1, so that both bounds hold for groups.

Precision. Products are added in float32 for a few records at a time, then in float64. A float32 sum of k products has
an error of at most k 2^-24 of the sum of their absolute values. m records of p places are m p products, whose absolute
values have norm at most m: the error is m^2 p 2^-24, once for each of two neighbours. With m^2 p <= 2^16 that is 2^-7,
for which the noise has an allowance. If a record is missing, the others keep their positions, so that the other sums
are bitwise equal. The k records of a group are consecutive, with weights 1 / k. Chunks that the group fills have errors
of at most m p 2^-24 together, and the two chunks that it may share with others m^2 p 2^-24 each: with m^2 p <= 2^16 / 3
the sum is below 2^-8, once for each of two neighbours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.api import Context
from bench.dp_training.clipping import MOST_CHUNK, ROOM
from bench.dp_training.exact_products import exact_products
from bench.dp_training.fixed_features import LEAST_NORM, normalised
from bench.dp_training.games import GROUP
from bench.nets import Classifier
from bench.privacy.noise import Noise, Source

REPLACED = math.sqrt(2)
"""Change of the second moment by a replaced record; an added or removed one changes it by 1."""
BLOCKS = 4
"""Number of column blocks: the second moment is symmetric, and blocks below the diagonal are not computed."""
SHARED = 3
"""Factor by which m^2 p is smaller with weights; see the module's text."""
LEAST_EIGENVALUE = 1e-3
"""Smallest eigenvalue of a whitened second moment with its shift, as a part of the shift."""
PLAYED = 32
"""Number of records, and so of independent plays, in one second moment of an audit's game."""
PART = 2048
"""Number of rows that are whitened at once."""


@dataclass(frozen=True)
class Whitening:
    """The map u -> (u - mean) M at every position, then scaled to norm 1.

    Attributes:
        matrix: M, (features of a position, at most as many outputs), float32.
        mean: (features of a position,) float32, a public constant.
        places: number of positions of a row; they are the last index of a flattened (maps, places) row.
        scale: root mean square of M times a row of norm 1 in a random direction; > 0.
    """

    matrix: Tensor
    mean: Tensor
    places: int
    scale: float

    def __call__(self, rows: Tensor) -> Tensor:
        """Whiten (n, d) rows to (n, d') rows of norm 1."""
        with exact_products(rows.device):
            return torch.cat([normalised(self._mapped(part)) for part in rows.split(PART)])

    def lengths(self, rows: Tensor) -> Tensor:
        """Return (n,) norms of M times the (n, d) rows of norm 1, in units of the norm for a random direction."""
        return self._mapped(rows).float().norm(dim=1) / self.scale

    def _mapped(self, rows: Tensor) -> Tensor:
        parts = rows.unflatten(1, (-1, self.places)).transpose(1, 2) - self.mean
        return (parts @ self.matrix).transpose(1, 2).flatten(1)

    def folded(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return a linear layer on unit rows with the same decisions as `weight` (classes, d') on whitened rows.

        The final normalisation is left out, as it multiplies all logits of a row by the same number; `scale` replaces
        it.

        Returns:
            weight (classes, d) and bias (classes,).
        """
        parts = weight.unflatten(1, (-1, self.places)).transpose(1, 2)
        back = (parts @ self.matrix.T) / self.scale
        return back.transpose(1, 2).flatten(1), -(back @ self.mean).sum(1)


def second_moment(rows: Tensor, places: int = 1, weights: Tensor | None = None) -> Tensor:
    """Return (k, k) float64, k = d / places: the sum over rows and positions of u_p u_p^T; exactly symmetric.

    Args:
        rows: (n, d) float32 of norm at most 1.
        weights: (n,) float32 factors of the rows' terms, for unit group; None = 1 for each.
    """
    together = 1 if weights is None else SHARED
    k, few = rows.shape[1] // places, max(int(MOST_CHUNK / math.sqrt(together * places)), 1)
    total = torch.zeros(k, k, dtype=torch.float64, device=rows.device)
    edges = [k * i // BLOCKS for i in range(BLOCKS + 1)]
    with exact_products(rows.device):
        for start in range(0, len(rows), few):
            parts = rows[start : start + few].unflatten(1, (-1, places)).transpose(1, 2).flatten(0, 1)
            scaled = parts
            if weights is not None:
                scaled = parts * weights[start : start + few].repeat_interleave(places)[:, None]
            for low, high in itertools.pairwise(edges):
                total[low:high, low:] += scaled[:, low:high].T @ parts[:, low:]
    upper = total.triu(1)
    return upper + upper.T + total.diagonal().diag()


def noisy_second_moment(rows: Tensor, places: int, std: float, source: Source, weights: Tensor | None = None) -> Tensor:
    """Return the second moment with symmetric noise: deviation `std` on the diagonal, `std` / sqrt(2) elsewhere.

    Both deviations include the allowance for rounding errors. The noise multiplier is `std` for an added or removed
    record, std / sqrt(2) for a replaced one. The smallest eigenvalue may be negative.

    Args:
        std: >= 0; 0 adds nothing and protects nothing.
        weights: as in `second_moment`.
    """
    moment = second_moment(rows, places, weights)
    upper = torch.triu_indices(len(moment), len(moment), 1, device=moment.device).unbind()
    vector = torch.cat([moment.diagonal(), moment[upper] * math.sqrt(2)])
    vector = Noise.of(source).gaussian(vector, std / ROOM)
    made = torch.zeros_like(moment)
    made[upper] = vector[len(moment) :] / math.sqrt(2)
    return made + made.T + vector[: len(moment)].diag()


def played_moments(std: float, world: bool, n: int, generator: torch.Generator, grouped: bool = False) -> Tensor:
    """Return (n, 3): n plays of `noisy_second_moment` with a record, or with zeros in its position.

    Records have two features each, disjoint from the others', so that one moment contains PLAYED independent plays.

    Args:
        grouped: whether a group of equal records is present or absent instead of one record.
    """
    lanes, found = torch.arange(PLAYED), []
    rows = torch.zeros(PLAYED, PLAYED, 2)
    if world:
        rows[lanes, lanes] = torch.tensor([0.6, 0.8])
    rows, weights = rows.flatten(1), None
    if grouped:
        rows, weights = rows.repeat_interleave(GROUP, 0), torch.full((PLAYED * GROUP,), 1 / GROUP)
    for _ in range(-(-n // PLAYED)):
        moment = noisy_second_moment(rows, 1, std, generator, weights).view(PLAYED, 2, PLAYED, 2)
        found.append(moment[lanes, :, lanes].flatten(1)[:, [0, 1, 3]])
    return torch.cat(found)[:n]


def private_whitening(
    rows: Tensor, places: int, std: float, kappa: float, source: Source, weights: Tensor | None = None
) -> Whitening:
    """Return the whitening by (S + E + kappa std sqrt(2 k) I)^-1, with S the second moment and E its noise.

    The noise's eigenvalues lie between about -std sqrt(2 k) and std sqrt(2 k). Without noise the shift is that of std
    1. The shift is doubled until the sum's smallest eigenvalue is at least `LEAST_EIGENVALUE` of it, which uses the
    released matrix only: a smaller one would make a direction of mere noise most of every whitened row.

    Args:
        rows: (n, d) of norm at most 1, private.
        places: number of positions of a row.
        std: standard deviation of the noise on the diagonal of S; 0 = no noise.
        kappa: > 0.
        weights: as in `second_moment`.
    """
    moment = noisy_second_moment(rows, places, std, source, weights)
    shift = kappa * (std or 1.0) * math.sqrt(2 * len(moment))
    return _whitening(moment, torch.zeros(len(moment), device=rows.device), places, shift)


def public_whitening(rows: Tensor, places: int, rho: float) -> Whitening:
    """Return the whitening by the covariance of public (n, d) rows, shifted by rho times its mean diagonal."""
    mean = rows.unflatten(1, (-1, places)).double().mean((0, 2))
    moment = second_moment(rows, places) / len(rows) - places * mean[:, None] * mean
    shift = rho * float(moment.diagonal().mean())
    return _whitening(moment, mean.float(), places, shift)


def _whitening(moment: Tensor, mean: Tensor, places: int, shift: float) -> Whitening:
    """Return the whitening by (moment + shift I)^-1, with the shift doubled as often as `private_whitening` says."""
    eye = torch.eye(len(moment), dtype=torch.float64, device=moment.device)
    # If the sum is positive definite without this part of the shift, its smallest eigenvalue is at least this part
    if torch.linalg.cholesky_ex(moment + (1 - LEAST_EIGENVALUE) * shift * eye).info:
        return _whitening(moment, mean, places, 2 * shift)
    lower = torch.linalg.cholesky(moment + shift * eye)
    matrix = torch.linalg.solve_triangular(lower, eye, upper=False).T
    scale = math.sqrt(float(matrix.square().sum()) / len(moment))
    return Whitening(matrix.float().contiguous(), mean, places, scale)


@dataclass(frozen=True)
class LengthsAndLosses:
    """Two (n,) numbers of the same images: Mahalanobis lengths, and cross-entropies to given classes."""

    lengths: Tensor
    losses: Tensor


@dataclass(frozen=True)
class Typicality:
    """Mahalanobis lengths of images with respect to the private records' features, differentiable in the images.

    The root of u (S + shift)^-1 u^T, with u the features of an image as a row of norm 1 and S the noisy second moment:
    small in directions that are common among the records, large in directions that are rare. For long rows S is of one
    position's features, and the terms of u's positions are summed. Only S depends on private data, and it is already
    released: this is post-processing.

    Attributes:
        network: its fixed `features` map (n, c, h, w) in [0, 1] to (n, d), on the images' device.
        whitening: whitening by the noisy second moment of the records' features.
        ctx: context of the run; the product with the whitening uses its autocast setting.
    """

    network: Classifier
    whitening: Whitening
    ctx: Context

    def __call__(self, images: Tensor) -> Tensor:
        """Return (n,) lengths of (n, c, h, w) images in [0, 1], in units of the length of a random direction."""
        return self._lengths(self.network.features(images).float())

    def with_classes(self, images: Tensor, classes: Tensor, temperature: float) -> LengthsAndLosses:
        """Return the lengths, and the cross-entropy of the network's softmax outputs to `classes`, (n,) int64.

        Both are computed from the same features, so that the second costs little time.
        """
        features = self.network.features(images).float()
        head = cast(nn.Linear, self.network.body.head)
        logits = F.linear(features, head.weight.detach(), head.bias.detach()) / temperature
        return LengthsAndLosses(self._lengths(features), F.cross_entropy(logits, classes, reduction="none"))

    def objective(self, weight: float, temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function of images and classes: the length plus `weight` times the cross-entropy, (n,)."""

        def measure(images: Tensor, classes: Tensor) -> Tensor:
            found = self.with_classes(images, classes, temperature)
            return found.lengths + weight * found.losses

        return measure

    def _lengths(self, features: Tensor) -> Tensor:
        rows = features / features.norm(dim=1, keepdim=True).clamp_min(LEAST_NORM)
        with self.ctx.precision():
            return self.whitening.lengths(rows)
