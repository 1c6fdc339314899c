"""Distinguishing scores from one number per output: a coordinate, a norm, a difference, or a position within a grid.

The log-likelihood ratio of a number is estimated from two samples: per exact value where values repeat (an atom: a
clamped value, an output without noise), per bin otherwise. Bins are narrow at both ends, where the edge of bounded
noise is visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

Scorer = Callable[[Tensor], Tensor]
"""Score of outputs: (n, d) float64 -> (n,), higher for world 1."""

ATOM_ROWS = 3
"""Number of equal sampled values from which a value is treated as an atom."""
TAIL_ROWS = 8
"""Number of sampled values in the outermost bins."""
MOST_BINS = 64
"""Most bins between the ends."""
MOST_PAIRED = 20
"""Most coordinates whose pairs and grid positions are used."""
MOST_COORDINATES = 256
"""Most coordinates that are used one by one."""
PAIR_NUMBERS = 25_000_000
"""Most numbers to which the statistics of pairs are fitted."""
GRID_NUMBERS = 5_000_000
"""Most numbers to which the statistics of grid positions are fitted."""
GRID_CELLS = 64
"""Number of positions between two grid points that are distinguished."""
BEST_OF_A_KIND = 2
"""Number of statistics of each kind that become scores."""


@dataclass(frozen=True)
class Marginal:
    """Estimated log-likelihood ratio of a real number: log of its frequency in world 1 over that in world 0.

    Attributes:
        atoms, atom_ratio: repeated values, ascending, and the log ratio of each.
        edges, bin_ratio: bin borders for all other numbers, ascending, and the log ratio of each bin.
    """

    atoms: np.ndarray
    atom_ratio: np.ndarray
    edges: np.ndarray
    bin_ratio: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        ratio = self.bin_ratio[np.searchsorted(self.edges, values, side="right")]
        if len(self.atoms) == 0:
            return ratio
        at = np.searchsorted(self.atoms, values).clip(max=len(self.atoms) - 1)
        return np.where(self.atoms[at] == values, self.atom_ratio[at], ratio)

    def significant(self, atom_counts: Counts, bin_counts: Counts) -> Marginal:
        """Return only the significant log ratios, 0 elsewhere; an atom without significance uses its bin."""
        bins = np.where(_is_significant(bin_counts), self.bin_ratio, 0.0)
        around = bins[np.searchsorted(self.edges, self.atoms, side="right")]
        return replace(self, atom_ratio=np.where(_is_significant(atom_counts), self.atom_ratio, around), bin_ratio=bins)

    def atoms_only(self) -> Marginal:
        """Return the log ratios of repeated values only."""
        return replace(self, bin_ratio=np.zeros_like(self.bin_ratio))


Counts = tuple[np.ndarray, np.ndarray]
"""Counts of each value or bin in world 0 and in world 1."""


@dataclass(frozen=True)
class Statistic:
    """A number computed from an output, with its estimated log-likelihood ratio.

    Attributes:
        plain, significant: the estimated ratio, and its significant part only.
        expected_bound: the epsilon bound expected from a test of this number.
    """

    name: str
    number: Scorer
    plain: Marginal
    significant: Marginal
    expected_bound: float


def single_numbers(x0: Tensor, x1: Tensor, delta: float) -> dict[str, Scorer]:
    """Return scores {name: scorer}: the best statistics of every kind, and sums of the coordinates' log ratios."""
    kinds = [list(kind(x0, x1, delta)) for kind in (coordinates, norms, pairs, grid_positions)]
    scorers: dict[str, Scorer] = {}
    if x0.shape[1] > 1:
        scorers["all coordinates"] = _summed(kinds[0], [each.significant for each in kinds[0]])
    if any(len(each.plain.atoms) for each in kinds[0]):
        scorers["repeated values"] = _summed(kinds[0], [each.plain.atoms_only() for each in kinds[0]])
    for statistics in kinds:
        for best in sorted(statistics, key=lambda each: -each.expected_bound)[:BEST_OF_A_KIND]:
            scorers[best.name] = _summed([best], [best.plain])
    return scorers


def outside_range(x0: Tensor, x1: Tensor) -> dict[str, Scorer]:
    """Score how far an output is outside the range of one world's sample, in the worst coordinate."""
    scale = (torch.cat([x0, x1]).std(0)).clamp_min(torch.finfo(torch.float64).tiny)

    def beyond(sample: Tensor) -> Scorer:
        low, high = sample.amin(0), sample.amax(0)
        return lambda x: (torch.maximum(low - x, x - high) / scale).amax(1)

    return {"outside world 0": beyond(x0), "outside world 1": beyond(x1)}


def most_different(x0: Tensor, x1: Tensor, most: int) -> list[int]:
    """Return up to `most` coordinates whose mean or variance differs most significantly."""
    if x0.shape[1] <= most:
        return list(range(x0.shape[1]))
    first, second = x0.var(0), x1.var(0)
    pooled = (first + second).clamp_min(torch.finfo(torch.float64).tiny)
    differs = (x1.mean(0) - x0.mean(0)).square() / pooled + ((second - first) / pooled).square()
    return sorted(differs.topk(most).indices.tolist())


def expected_bound(counts0: np.ndarray, counts1: np.ndarray, delta: float) -> float:
    """Return a cautious estimate of the best epsilon bound from a set of values, by each value's count per world."""
    n0, n1, best = counts0.sum(), counts1.sum(), -math.inf
    order = np.argsort(_log_ratio(counts0, counts1))
    for likely, unlikely, total, at in ((counts1, counts0, n1, order[::-1]), (counts0, counts1, n0, order)):
        a, b = likely[at].cumsum(), unlikely[at].cumsum()
        low = a - 2 * np.sqrt(a) - delta * total
        high = b + 2 * np.sqrt(b + 1) + 1
        best = max(best, float(np.log(np.maximum(low, 1e-9) / high).max()))
    return best


def _log_ratio(counts0: np.ndarray, counts1: np.ndarray) -> np.ndarray:
    return np.log((counts1 + 0.5) / (counts0 + 0.5))


def _is_significant(counts: Counts) -> np.ndarray:
    return np.square(counts[1] - counts[0]) > 4 * (counts[0] + counts[1])


def _statistic(name: str, number: Scorer, x0: Tensor, x1: Tensor, delta: float) -> Statistic:
    """Estimate the log-likelihood ratio of a number from samples of world 0 and world 1."""
    values = [np.sort(number(x).numpy()) for x in (x0, x1)]
    pooled = np.sort(np.concatenate(values))
    repeats = pooled[ATOM_ROWS - 1 :]
    atoms = np.unique(repeats[repeats == pooled[: 1 - ATOM_ROWS]])
    n = len(pooled)  # bin edges are quantiles that are dense at both ends
    tail = np.geomspace(TAIL_ROWS, n / 2, 2 + int(2 * math.log2(n / TAIL_ROWS))).astype(int)
    middle = np.linspace(0, n - 1, 2 + min(MOST_BINS, n // 50)).astype(int)[1:-1]
    edges = np.unique(pooled[np.concatenate([tail, n - tail, middle])])
    atom_counts = [np.searchsorted(v, atoms, side="right") - np.searchsorted(v, atoms) for v in values]
    inside = np.searchsorted(edges, atoms, side="right")
    all_counts = [np.diff(np.searchsorted(v, edges), prepend=0, append=len(v)) for v in values]
    bin_counts = [
        every - np.bincount(inside, count, len(every)) for every, count in zip(all_counts, atom_counts, strict=True)
    ]
    plain = Marginal(atoms, _log_ratio(*atom_counts), edges, _log_ratio(*bin_counts))
    keys0, keys1 = (np.concatenate(both) for both in zip(atom_counts, bin_counts, strict=True))
    significant = plain.significant((atom_counts[0], atom_counts[1]), (all_counts[0], all_counts[1]))
    return Statistic(name, number, plain, significant, expected_bound(keys0, keys1, delta))


def _summed(statistics: list[Statistic], marginals: list[Marginal]) -> Scorer:
    def score(x: Tensor) -> Tensor:
        parts = (ratio(each.number(x).numpy()) for each, ratio in zip(statistics, marginals, strict=True))
        return torch.from_numpy(sum(parts, np.zeros(len(x))))

    return score


def coordinates(x0: Tensor, x1: Tensor, delta: float) -> Iterator[Statistic]:
    """Yield a statistic for each of the coordinates that differ most between the worlds."""
    for j in most_different(x0, x1, MOST_COORDINATES):
        yield _statistic(f"x{j}", lambda x, j=j: x[:, j].contiguous(), x0, x1, delta)  # type: ignore[misc]


def norms(x0: Tensor, x1: Tensor, delta: float) -> Iterator[Statistic]:
    """Yield statistics of norms, extreme coordinates, and distances from both worlds' means."""
    m0, m1 = x0.mean(0), x1.mean(0)
    numbers: dict[str, Scorer] = {
        "distance from mean 0": lambda x: (x - m0).norm(dim=1),
        "distance from mean 1": lambda x: (x - m1).norm(dim=1),
        "norm": lambda x: x.norm(dim=1),
        "sum": lambda x: x.sum(1),
        "sum of magnitudes": lambda x: x.abs().sum(1),
        "largest": lambda x: x.amax(1),
        "smallest": lambda x: x.amin(1),
        "largest magnitude": lambda x: x.abs().amax(1),
        "smallest magnitude": lambda x: x.abs().amin(1),
    }
    if x0.shape[1] > 1:
        numbers["lead of the largest"] = lambda x: x.topk(2, dim=1).values.diff(dim=1)[:, 0].neg()
        for name, number in numbers.items():
            yield _statistic(name, number, x0, x1, delta)


def pairs(x0: Tensor, x1: Tensor, delta: float) -> Iterator[Statistic]:
    """Yield statistics of differences and sums of two coordinates, rounded so that shared noise cancels exactly."""
    chosen = most_different(x0, x1, MOST_PAIRED)
    columns = len(chosen) * (len(chosen) - 1)
    rows = PAIR_NUMBERS // max(columns, 1)
    x0, x1 = x0[:rows], x1[:rows]
    scale = (x0.std(0) + x1.std(0)) / 2
    for i, j in combinations(chosen, 2):
        unit = 2.0 ** math.floor(math.log2(max(float(scale[i]), float(scale[j]), 1e-300)) - 19)
        for sign, word in ((-1, "-"), (1, "+")):

            def number(x: Tensor, i: int = i, j: int = j, sign: int = sign, unit: float = unit) -> Tensor:
                return ((x[:, i] + sign * x[:, j]) / unit).round() * unit

            yield _statistic(f"x{i} {word} x{j}", number, x0, x1, delta)


def grid_positions(x0: Tensor, x1: Tensor, delta: float) -> Iterator[Statistic]:
    """Yield statistics of a coordinate's position between two grid points, for grids of powers of 2 and of 10."""
    chosen = most_different(x0, x1, MOST_PAIRED)
    rows = GRID_NUMBERS // (14 * len(chosen))
    x0, x1 = x0[:rows], x1[:rows]
    for j in chosen:
        scale = float(torch.cat([x0[:, j], x1[:, j]]).std())
        if scale == 0:
            continue
        twos = [2.0 ** (math.ceil(math.log2(scale)) - k) for k in range(-1, 17, 2)]
        tens = [10.0 ** (math.ceil(math.log10(scale)) - k) for k in range(5)]
        for grid in twos + tens:

            def number(x: Tensor, j: int = j, grid: float = grid) -> Tensor:
                return (x[:, j] * (GRID_CELLS / grid)).round().remainder(GRID_CELLS)

            yield _statistic(f"x{j} mod {grid:g}", number, x0, x1, delta)
