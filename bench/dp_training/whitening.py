"""Whitening rows of norm 1 by their second moments, released with noise or taken of public rows.

Noise is the same in all directions, so that gradient descent is slow along directions in which rows hardly vary;
whitened rows vary alike in all (Mehta, Krichene, Thakurta, Kurakin, Cutkosky, "Differentially Private Image
Classification from Features", TMLR 2023, arXiv 2211.13403).

A row u of d features may be looked at as `places` parts u_p of d / places, a map's pixels; the second moment is then
that of the maps, sum_p u_p u_p^T, and the same whitening is used at all places. One place is the whole row.

Sensitivity, in the Frobenius norm, of S = sum over the records of S_i, S_i = sum_p u_p u_p^T:

- a record that comes or goes: |S_i| <= sum_p |u_p u_p^T| = sum_p |u_p|^2 = |u|^2 <= 1.
- a record that is replaced: S_i and S_j are positive semidefinite, so that <S_i, S_j> = tr(S_i S_j) >= 0 and
  |S_i - S_j|^2 = |S_i|^2 + |S_j|^2 - 2 <S_i, S_j> <= 2.

The diagonal and sqrt(2) times what is above it are a vector of S's Frobenius norm: noise of standard deviation s on
its coordinates is s on the diagonal of S and s / sqrt(2) elsewhere.

Precision. Products are added up in float32 for few records at a time, and in float64 from there. A float32 sum of k
products is off by at most k 2^-24 of the sum of their sizes; m records of p places are m p products, whose sizes have
norm m at most: m^2 p 2^-24, twice over for neighbours. With m^2 p <= 2^16 that is 2^-7, which the noise makes room
for. Every record keeps its place where another one is missing, so that the other sums are the same to the last bit.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.dp_training.clipping import MOST_CHUNK, ROOM
from bench.dp_training.exact_products import exact_products
from bench.dp_training.fixed_features import normalised
from bench.privacy.noise import Noise, Source

REPLACED = math.sqrt(2)
"""How far a replaced record moves the second moment; one that comes or goes moves it by 1."""
BLOCKS = 4
"""Of columns: the second moment is symmetric, and blocks below the diagonal are not computed."""
PLAYED = 32
"""Records that are played with at once."""
PART = 2048
"""Rows that are whitened at once."""


@dataclass(frozen=True)
class Whitening:
    """u -> (u - mean) M at every place, then scaled to norm 1.

    Attributes:
        matrix: M, (features of a place, as many or fewer), float32.
        mean: (features of a place,) float32, a public constant.
        places: parts that a row is looked at as; they are the last index of a flattened (maps, places) row.
        scale: root mean square of what M makes of a row of norm 1 in a random direction; > 0.
    """

    matrix: Tensor
    mean: Tensor
    places: int
    scale: float

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) rows to (n, d'), of norm 1."""
        with exact_products(rows.device):
            return torch.cat([normalised(self._mapped(part)) for part in rows.split(PART)])

    def lengths(self, rows: Tensor) -> Tensor:
        """(n,) norms of what M makes of (n, d) rows of norm 1, in units of that of a random direction."""
        return self._mapped(rows).float().norm(dim=1) / self.scale

    def _mapped(self, rows: Tensor) -> Tensor:
        parts = rows.unflatten(1, (-1, self.places)).transpose(1, 2) - self.mean
        return (parts @ self.matrix).transpose(1, 2).flatten(1)

    def folded(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """A linear layer on unit rows that decides as `weight` (classes, d') does on whitened ones.

        The last scaling is left out: it multiplies all logits of a row by the same number, and `scale` stands for it.

        Returns:
            weight (classes, d) and bias (classes,).
        """
        parts = weight.unflatten(1, (-1, self.places)).transpose(1, 2)
        back = (parts @ self.matrix.T) / self.scale
        return back.transpose(1, 2).flatten(1), -(back @ self.mean).sum(1)


def second_moment(rows: Tensor, places: int = 1) -> Tensor:
    """(k, k) float64, k = d / places: the sum over rows and places of u_p u_p^T; exactly symmetric.

    Args:
        rows: (n, d) float32 of norm 1 at most.
    """
    k, few = rows.shape[1] // places, max(int(MOST_CHUNK / math.sqrt(places)), 1)
    total = torch.zeros(k, k, dtype=torch.float64, device=rows.device)
    edges = [k * i // BLOCKS for i in range(BLOCKS + 1)]
    with exact_products(rows.device):
        for part in rows.split(few):
            parts = part.unflatten(1, (-1, places)).transpose(1, 2).flatten(0, 1)
            for low, high in itertools.pairwise(edges):
                total[low:high, low:] += parts[:, low:high].T @ parts[:, low:]
    upper = total.triu(1)
    return upper + upper.T + total.diagonal().diag()


def noisy_second_moment(rows: Tensor, places: int, std: float, source: Source) -> Tensor:
    """The second moment with symmetric noise: standard deviation `std` on the diagonal, `std` / sqrt(2) elsewhere.

    Both are divided by the room that rounding errors are given: noise of multiplier `std` for a record that comes or
    goes, std / sqrt(2) for one that is replaced. The smallest eigenvalue may be negative.

    Args:
        std: >= 0; 0 adds nothing and protects nothing.
    """
    moment = second_moment(rows, places)
    upper = torch.triu_indices(len(moment), len(moment), 1, device=moment.device).unbind()
    vector = torch.cat([moment.diagonal(), moment[upper] * math.sqrt(2)])
    vector = Noise.of(source).gaussian(vector, std / ROOM)
    made = torch.zeros_like(moment)
    made[upper] = vector[len(moment) :] / math.sqrt(2)
    return made + made.T + vector[: len(moment)].diag()


def played_moments(std: float, world: bool, n: int, generator: torch.Generator) -> Tensor:
    """(n, 3): n plays of `noisy_second_moment` with a record, or with zeros in its place, which add nothing.

    Records have two features of their own each, so that one moment is PLAYED plays.
    """
    lanes, found = torch.arange(PLAYED), []
    rows = torch.zeros(PLAYED, PLAYED, 2)
    if world:
        rows[lanes, lanes] = torch.tensor([0.6, 0.8])
    for _ in range(-(-n // PLAYED)):
        moment = noisy_second_moment(rows.flatten(1), 1, std, generator).view(PLAYED, 2, PLAYED, 2)
        found.append(moment[lanes, :, lanes].flatten(1)[:, [0, 1, 3]])
    return torch.cat(found)[:n]


def private_whitening(rows: Tensor, places: int, std: float, kappa: float, source: Source) -> Whitening:
    """By (S + E + kappa std sqrt(2 k) I)^-1, E the noise, whose largest eigenvalue is std sqrt(2 k) or so.

    Without noise the shift is that of noise 1. Where kappa is too small for what is left to be positive, it is doubled
    until it is, which looks at the release alone.
    """
    moment = noisy_second_moment(rows, places, std, source)
    shift = kappa * (std or 1.0) * math.sqrt(2 * len(moment))
    return _whitening(moment, torch.zeros(len(moment), device=rows.device), places, shift)


def public_whitening(rows: Tensor, places: int, rho: float) -> Whitening:
    """By the covariance of public rows, to whose diagonal rho times its mean is added."""
    mean = rows.unflatten(1, (-1, places)).double().mean((0, 2))
    moment = second_moment(rows, places) / len(rows) - places * mean[:, None] * mean
    shift = rho * float(moment.diagonal().mean())
    return _whitening(moment, mean.float(), places, shift)


def _whitening(moment: Tensor, mean: Tensor, places: int, shift: float) -> Whitening:
    """By (moment + shift I)^-1."""
    eye = torch.eye(len(moment), dtype=torch.float64, device=moment.device)
    lower, failed = torch.linalg.cholesky_ex(moment + shift * eye)
    if failed:
        return _whitening(moment, mean, places, 2 * shift)
    matrix = torch.linalg.solve_triangular(lower, eye, upper=False).T
    scale = math.sqrt(float(matrix.square().sum()) / len(moment))
    return Whitening(matrix.float().contiguous(), mean, places, scale)
