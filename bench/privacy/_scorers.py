"""Score functions that distinguish two worlds, fitted on a sample of each; a higher score means world 1.

Every factory takes (n, d) float64 samples of world 0 and world 1 and returns functions (n, d) -> (n,). A score need not
be correct: it is tested on new outputs. This module has the discriminants, which use means, covariances and third
moments; `_marginals` uses one number of an output, including rare values; `_patterns` uses repetitions, orders and
signs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.privacy._marginals import Scorer, most_different, outside_range, single_numbers
from bench.privacy._patterns import category, orders, parity, row_keys, support

SMALLEST_VARIANCE = 1e-13
"""Smallest variance relative to a coordinate's own; float32 rounding errors of two equal noises are below it."""
CUBIC_ROWS = 20_000
"""Most outputs per world to which the cubic discriminant is fitted."""
MOST_CUBED = 8
"""Most coordinates in its products."""
FEW_OUTPUTS = 64
"""Number of distinct outputs up to which only the simplest scores are used."""


def fit(x0: Tensor, x1: Tensor, delta: float) -> dict[str, Scorer]:
    """Return {name: scorer} for every applicable scorer, the simplest first.

    With at most `FEW_OUTPUTS` distinct outputs these are two discriminants and the scores of repeated outputs.
    """
    discriminants = {"mean difference": mean_difference(x0, x1), "linear discriminant": linear(x0, x1)}
    repeats = {"category": category(x0, x1), "support": support(x0, x1)}
    if len(row_keys(torch.cat([x0, x1])).unique()) <= FEW_OUTPUTS:
        return discriminants | repeats
    discriminants |= {"quadratic discriminant": quadratic(x0, x1), "cubic discriminant": cubic(x0, x1)}
    columns = single_numbers(x0, x1, delta) | outside_range(x0, x1)
    return discriminants | repeats | columns | orders(x0, x1, delta) | parity(x0, x1)


def mean_difference(x0: Tensor, x1: Tensor) -> Scorer:
    """Return the projection on the difference of the means."""
    direction = x1.mean(0) - x0.mean(0)
    return lambda x: x @ direction


def linear(x0: Tensor, x1: Tensor) -> Scorer:
    """Return Fisher's linear discriminant with a tiny ridge; it also detects sums of coordinates without noise."""
    centre, scale = _standard(x0, x1)
    z0, z1 = (x0 - centre) / scale, (x1 - centre) / scale
    within = (_covariance(z0) + _covariance(z1)) / 2
    direction = _inverse(within, SMALLEST_VARIANCE) @ (z1.mean(0) - z0.mean(0)) / scale
    return lambda x: (x - centre) @ direction


def quadratic(x0: Tensor, x1: Tensor) -> Scorer:
    """Return the log-likelihood ratio of two Gaussians with own covariances; it detects noise of different size."""
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


def cubic(x0: Tensor, x1: Tensor) -> Scorer:
    """Return Fisher's discriminant on all products of up to three coordinates.

    It detects differences in the signs or the order of coordinates.
    """
    chosen = most_different(x0, x1, MOST_CUBED)
    centre, scale = _standard(x0[:, chosen], x1[:, chosen])
    each = torch.arange(len(chosen))
    twos, threes = (torch.combinations(each, size, with_replacement=True).T for size in (2, 3))

    def lifted(x: Tensor) -> Tensor:
        z = ((x[:, chosen] - centre) / scale).clamp(-4, 4).T.contiguous()
        return torch.cat([z, z[twos[0]] * z[twos[1]], z[threes[0]] * z[threes[1]] * z[threes[2]]]).T

    y0, y1 = lifted(x0[:CUBIC_ROWS]), lifted(x1[:CUBIC_ROWS])
    within = (_covariance(y0) + _covariance(y1)) / 2
    within.diagonal().add_(1e-6 + 10 / len(y0))
    direction = torch.linalg.solve(within, y1.mean(0) - y0.mean(0))
    return lambda x: torch.cat([lifted(part) @ direction for part in x.split(CUBIC_ROWS // 4)])


def _standard(x0: Tensor, x1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centre and scale of every coordinate over both worlds; the scale of a constant is 1."""
    centre = (x0.mean(0) + x1.mean(0)) / 2
    spread = (((x0 - centre).square().mean(0) + (x1 - centre).square().mean(0)) / 2).sqrt()
    return centre, torch.where(spread > 0, spread, torch.ones_like(spread))


def _covariance(z: Tensor) -> Tensor:
    centred = z - z.mean(0)
    return centred.T @ centred / len(z)


def _inverse(covariance: Tensor, floor: float) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors / values.clamp_min(floor)) @ vectors.T
