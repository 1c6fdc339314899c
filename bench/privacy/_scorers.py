"""Scores that tell two worlds apart, learnt from a sample of each; higher means world 1.

Every maker takes (n, d) float64 samples of world 0 and world 1 and returns a function (n, d) -> (n,), or None where it
has nothing to look at. None of them needs to be right: what they say is tested on fresh answers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Scorer = Callable[[Tensor], Tensor]

MOST_CATEGORIES = 4096
PROBED_ROWS = 4000
ATOM_ROWS = 20
SMALLEST_VARIANCE = 1e-13
"""Relative to a coordinate's own; what float32 rounding leaves of two equal noises is below it."""


def fit(x0: Tensor, x1: Tensor) -> dict[str, Scorer]:
    """Every scorer that applies, by name."""
    makers = {
        "mean difference": mean_difference,
        "linear discriminant": linear,
        "quadratic discriminant": quadratic,
        "category": category,
        "support": support,
    }
    made = {name: maker(x0, x1) for name, maker in makers.items()}
    return {name: scorer for name, scorer in made.items() if scorer is not None}


def mean_difference(x0: Tensor, x1: Tensor) -> Scorer:
    """Projection on the difference of the means."""
    direction = x1.mean(0) - x0.mean(0)
    return lambda x: x @ direction


def linear(x0: Tensor, x1: Tensor) -> Scorer:
    """Fisher's discriminant with a tiny ridge: also finds sums of coordinates in which the noise cancels."""
    centre, scale = _standard(x0, x1)
    z0, z1 = (x0 - centre) / scale, (x1 - centre) / scale
    within = (_covariance(z0) + _covariance(z1)) / 2
    direction = _inverse(within, SMALLEST_VARIANCE) @ (z1.mean(0) - z0.mean(0)) / scale
    return lambda x: (x - centre) @ direction


def quadratic(x0: Tensor, x1: Tensor) -> Scorer:
    """Log-likelihood ratio of two Gaussians with covariances of their own: finds noise that differs in size."""
    centre, scale = _standard(x0, x1)
    parts = []
    for x in (x0, x1):
        z = (x - centre) / scale
        parts.append((z.mean(0), _inverse(_covariance(z), 1e-9)))

    def distance(z: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
        return (((z - mean) @ inverse) * (z - mean)).sum(1)

    def score(x: Tensor) -> Tensor:
        z = (x - centre) / scale
        return distance(z, *parts[0]) - distance(z, *parts[1])

    return score


def category(x0: Tensor, x1: Tensor) -> Scorer | None:
    """Likelihood ratio per distinct answer, where answers repeat (labels, or vectors without noise)."""
    probe = torch.cat([x0[:PROBED_ROWS], x1[:PROBED_ROWS]])
    if len(_keys(probe).unique()) > len(probe) // 4:
        return None
    return _ratio_per_key(_keys, x0, x1)


def support(x0: Tensor, x1: Tensor) -> Scorer | None:
    """Likelihood ratio per pattern of coordinates that hold one exact value, such as a zero that got no noise."""
    probe = torch.cat([x0[:PROBED_ROWS], x1[:PROBED_ROWS]])
    atoms = torch.full((probe.shape[1],), torch.nan, dtype=probe.dtype, device=probe.device)
    for column in range(probe.shape[1]):
        values, counts = probe[:, column].unique(return_counts=True)
        if counts.max() >= ATOM_ROWS:
            atoms[column] = values[counts.argmax()]
    if atoms.isnan().all():
        return None
    return _ratio_per_key(lambda x: _keys((x == atoms).double()), x0, x1)


def _standard(x0: Tensor, x1: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and scale of every coordinate over both worlds; the scale of a constant is 1."""
    centre = (x0.mean(0) + x1.mean(0)) / 2
    spread = (((x0 - centre).square().mean(0) + (x1 - centre).square().mean(0)) / 2).sqrt()
    return centre, torch.where(spread > 0, spread, torch.ones_like(spread))


def _covariance(z: Tensor) -> Tensor:
    centred = z - z.mean(0)
    return centred.T @ centred / len(z)


def _inverse(covariance: Tensor, floor: float) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors / values.clamp_min(floor)) @ vectors.T


def _keys(x: Tensor) -> Tensor:
    """(n,) int64: equal for rows of equal numbers, and all but surely different for others."""
    bits = (x + 0.0).double().contiguous().view(torch.int64)
    odd = torch.randint(2**61, (x.shape[1],), generator=torch.Generator().manual_seed(1)) * 2 + 1
    mixed = bits ^ (bits >> 29)
    return (mixed * odd.to(x.device)).sum(1)


def _ratio_per_key(keys: Callable[[Tensor], Tensor], x0: Tensor, x1: Tensor) -> Scorer:
    """log((n1 + 1/2) / (n0 + 1/2)) of a row's key; 0 for a key not among the most frequent ones."""
    key0, key1 = keys(x0), keys(x1)
    known, index, counts = torch.cat([key0, key1]).unique(return_inverse=True, return_counts=True)
    in_one = torch.bincount(index[len(key0) :], minlength=len(known))
    ratio = ((in_one + 0.5) / (counts - in_one + 0.5)).double().log()
    if len(known) > MOST_CATEGORIES:
        kept = counts.topk(MOST_CATEGORIES).indices.sort().values
        known, ratio = known[kept], ratio[kept]

    def score(x: Tensor) -> Tensor:
        key = keys(x)
        at = torch.searchsorted(known, key).clamp_max(len(known) - 1)
        return torch.where(known[at] == key, ratio[at], torch.zeros_like(ratio[at]))

    return score
