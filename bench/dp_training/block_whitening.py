"""Whitening of rows that consist of blocks, such as scattering and patch features, by the features of public images.

The whitened row has the blocks g_b M_b (u_b - mean_b), with mean_b the mean of the block among the public images. The
gain g_b gives the block of those images the mean length sqrt(share_b). Then the whole row is scaled to norm 1. C_b is
the covariance of the block among the public images, s_b = rho times its mean diagonal, and M_b is one of two maps:

- `Triangular`: L_b^-1, with L_b L_b^T = C_b + s_b I (Cholesky).
- `Leading`, for blocks of more than LONG features: (C_b / s_b + I)^-1/2, where only the LEADING largest eigenvalues of
  C_b count. It needs the product of every two public rows instead of every two features. Where the other eigenvalues
  are below s_b, as those of patch features are, it hardly differs.

Neither uses private records, so that whitening costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bench.dp_training.exact_products import exact_products
from bench.dp_training.fixed_features import HALF_ROOM, normalised
from bench.dp_training.whitening import PART

WHITENING_VERSION = 1
"""Version of `BlockWhitening`, in the key of kept rows: raised when whitened rows change."""
LONG, LEADING = 25_000, 3_000
"""Width above which a block is whitened by `Leading`, more than the scattering features of 64x64 grey images; number of
its directions."""


@dataclass(frozen=True)
class Triangular:
    """The map u -> L^-1 u.

    Attributes:
        factor: L, (width, width) float32, lower triangular.
    """

    factor: Tensor

    @classmethod
    def of_centred(cls, values: Tensor, rho: float) -> Self:
        """Compute the map from (n, width) float32 public rows of mean 0."""
        covariance = values.T @ values / len(values)
        covariance.diagonal().add_(rho * covariance.diagonal().mean())
        return cls(torch.linalg.cholesky(covariance))

    def __call__(self, rows: Tensor) -> Tensor:
        """Map (n, width) rows."""
        return torch.linalg.solve_triangular(self.factor, rows.T, upper=False).T

    def transposed(self, weight: Tensor) -> Tensor:
        """Map (classes, width) weights of whitened rows to weights of rows: u M^T w = u (M^T w)."""
        return torch.linalg.solve_triangular(self.factor.T, weight.T, upper=True).T


@dataclass(frozen=True)
class Leading:
    """The map u -> u + V diag(stretch) V^T u, which is symmetric.

    Attributes:
        directions: V, (width, k) float32 with orthonormal columns.
        stretch: (k,) float32, in (-1, 0): the square root of s / (s + eigenvalue), minus 1.
    """

    directions: Tensor
    stretch: Tensor

    @classmethod
    def of_centred(cls, values: Tensor, rho: float) -> Self:
        """Compute the map from (n, width) float32 public rows of mean 0."""
        products = values @ values.T / len(values)  # with the positive eigenvalues of the covariance
        shift = rho * float(products.diagonal().sum()) / values.shape[1]
        eigenvalues, vectors = torch.linalg.eigh(products)
        count = min(LEADING, int((eigenvalues > 1e-3 * shift).sum()))
        eigenvalues, vectors = eigenvalues[-count:], vectors[:, -count:]
        directions = values.T @ (vectors / (eigenvalues * len(values)).sqrt())
        return cls(directions, (shift / (shift + eigenvalues)).sqrt() - 1)

    def __call__(self, rows: Tensor) -> Tensor:
        """Map (n, width) rows."""
        return rows + ((rows @ self.directions) * self.stretch) @ self.directions.T

    transposed = __call__


@dataclass(frozen=True)
class BlockWhitening:
    """The whitening of rows of several blocks.

    Attributes:
        means: for each block, (width,) float32.
        maps: for each block M_b.
        gains: for each block g_b > 0.
    """

    means: tuple[Tensor, ...]
    maps: tuple[Triangular | Leading, ...]
    gains: tuple[float, ...]

    @classmethod
    def of_public(cls, rows: Tensor, widths: Sequence[int], shares: Sequence[float], rho: float) -> Self:
        """Compute the whitening from public (n, d) rows, whose blocks have these widths, and shares that sum to 1.

        Covariances are computed in float32, which a rho of at least 1e-3 makes accurate enough: rounding errors change
        the features, and not their privacy.
        """
        means, maps = list[Tensor](), list[Triangular | Leading]()
        for block in rows.split(list(widths), 1):
            values = block.float()
            means.append(values.mean(0))
            values = values - means[-1]
            maps.append((Leading if values.shape[1] > LONG else Triangular).of_centred(values, rho))
        plain = cls(tuple(means), tuple(maps), (1.0,) * len(means))
        some = rows[:PART].to(means[0].device, torch.float32)
        lengths = [float(block.norm(dim=1).mean()) for block in plain._mapped(some)]
        gains = tuple(math.sqrt(share) / length for share, length in zip(shares, lengths, strict=True))
        return cls(plain.means, plain.maps, gains)

    def __call__(self, rows: Tensor) -> Tensor:
        """Whiten (n, d) rows of any norm and precision to (n, d) float16 rows of norm at most 1.

        Each row is scaled to norm 1 before and after. The result is on the maps' device.
        """
        made = torch.empty(rows.shape, dtype=torch.float16, device=self.means[0].device)
        with exact_products(made.device):
            for place, part in zip(made.split(PART), rows.split(PART), strict=True):
                found = torch.cat(self._mapped(normalised(part.to(made.device, torch.float32))), 1)
                place.copy_(normalised(found) * HALF_ROOM)
        return made

    def _mapped(self, rows: Tensor) -> list[Tensor]:
        blocks = rows.split([len(mean) for mean in self.means], 1)
        return [
            gain * mapped(block - mean)
            for block, mean, mapped, gain in zip(blocks, self.means, self.maps, self.gains, strict=True)
        ]

    def state(self) -> dict[str, Tensor]:
        """Return the whitening as named tensors, from which `of_state` makes it again."""
        found = {"gains": torch.tensor(self.gains, dtype=torch.float64)}
        for number, (mean, mapped) in enumerate(zip(self.means, self.maps, strict=True)):
            found[f"mean{number}"] = mean
            if isinstance(mapped, Triangular):
                found[f"factor{number}"] = mapped.factor
            else:
                found |= {f"directions{number}": mapped.directions, f"stretch{number}": mapped.stretch}
        return found

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Make a whitening from its `state`."""
        gains, maps = tuple(state["gains"].tolist()), list[Triangular | Leading]()
        for number in range(len(gains)):
            factor = state.get(f"factor{number}")
            if factor is None:
                maps.append(Leading(state[f"directions{number}"], state[f"stretch{number}"]))
            else:
                maps.append(Triangular(factor))
        return cls(tuple(state[f"mean{number}"] for number in range(len(gains))), tuple(maps), gains)

    def folded(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return a linear layer on unit rows with the same decisions as `weight` (classes, d) on whitened rows.

        The final normalisation is left out, as it multiplies all logits of a row by the same number; rows of public
        images have a norm of about 1 before it.

        Returns:
            weight (classes, d) and bias (classes,).
        """
        blocks, bias = list[Tensor](), torch.zeros(len(weight), device=weight.device)
        parts = weight.split([len(mean) for mean in self.means], 1)
        for part, mean, mapped, gain in zip(parts, self.means, self.maps, self.gains, strict=True):
            back = mapped.transposed(gain * part)
            blocks.append(back)
            bias -= back @ mean
        return torch.cat(blocks, 1), bias
