"""Distinguishing scores from patterns: repeated outputs, coordinates with an exact value, orders and signs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from bench.privacy._marginals import Scorer, expected_bound, most_different

Keys = Callable[[Tensor], Tensor]
"""Pattern of outputs: (n, d) -> (n,) int64 keys, equal for equal patterns."""

MOST_KEYS = 1_000_000
"""Most patterns whose likelihood ratio is kept."""
PROBED_ROWS = 4000
"""Number of outputs per world in which repeated values of a coordinate are searched."""
ATOM_ROWS = 20
"""Number of equal sampled values from which a coordinate has an exact value."""
MOST_SUBSETS = 130
"""Most subsets of one size whose orders are tried."""
MOST_ORDERED = 10
"""Most coordinates from which these subsets are chosen."""
MOST_SIGNS = 12
"""Most coordinates whose signs are multiplied."""


def category(x0: Tensor, x1: Tensor) -> Scorer:
    """Score an output by the likelihood ratio of its exact value: for labels, vectors without noise, or few seeds."""
    return ratio_per_key(row_keys, x0, x1)


def support(x0: Tensor, x1: Tensor) -> Scorer:
    """Score an output by the set of coordinates that have their most frequent exact value, such as 0 without noise.

    The score is the likelihood ratio of that set.
    """
    probe = torch.cat([x0[:PROBED_ROWS], x1[:PROBED_ROWS]])
    atoms = torch.full((probe.shape[1],), torch.nan, dtype=probe.dtype, device=probe.device)
    for column in range(probe.shape[1]):
        values, counts = probe[:, column].unique(return_counts=True)
        if counts.max() >= ATOM_ROWS:
            atoms[column] = values[counts.argmax()]
    return ratio_per_key(lambda x: row_keys((x == atoms).double()), x0, x1)


def orders(x0: Tensor, x1: Tensor, delta: float) -> dict[str, Scorer]:
    """Score outputs by the order of their coordinates, raw and centred: of the best subsets, and of the extremes."""
    chosen, mean = most_different(x0, x1, MOST_ORDERED), (x0.mean(0) + x1.mean(0)) / 2
    width = x0.shape[1]
    if len(chosen) < 2:
        return {}
    scorers: dict[str, Scorer] = {}
    for word, centre in (("order", torch.zeros_like(mean)), ("order from the mean", mean)):
        found = []
        for name, keys in order_keys(chosen, centre, width):
            key0, key1 = keys(x0).numpy(), keys(x1).numpy()
            size = int(max(key0.max(), key1.max())) + 1
            counts0, counts1 = np.bincount(key0, minlength=size), np.bincount(key1, minlength=size)
            present = counts0 + counts1 > 0
            found.append((expected_bound(counts0[present], counts1[present], delta), name, keys))
        for _, name, keys in sorted(found, key=lambda each: -each[0])[:2]:
            scorers[f"{word}, {name}"] = ratio_per_key(keys, x0, x1)
    return scorers


def parity(x0: Tensor, x1: Tensor) -> dict[str, Scorer]:
    """Score outputs by the product of the signs of the best subset of coordinates, raw and centred."""
    chosen, mean = most_different(x0, x1, MOST_SIGNS), (x0.mean(0) + x1.mean(0)) / 2
    scorers: dict[str, Scorer] = {}
    for word, centre in (("signs", torch.zeros_like(mean)), ("signs from the mean", mean)):
        score, name = best_product(chosen, centre, x0, x1)
        scorers[f"{word}, {name}"] = score
    return scorers


def ratio_per_key(keys: Keys, x0: Tensor, x1: Tensor) -> Scorer:
    """Return the score log((n1 + 1/2) / (n0 + 1/2)) of a row's key; 0 for a key that is in neither sample."""
    key0, key1 = keys(x0), keys(x1)
    known, index, counts = torch.cat([key0, key1]).unique(return_inverse=True, return_counts=True)
    in_one = torch.bincount(index[len(key0) :], minlength=len(known))
    ratio = ((in_one + 0.5) / (counts - in_one + 0.5)).double().log()
    if len(known) > MOST_KEYS:
        kept = counts.topk(MOST_KEYS).indices.sort().values
        known, ratio = known[kept], ratio[kept]

    def score(x: Tensor) -> Tensor:
        key = keys(x)
        at = torch.searchsorted(known, key).clamp_max(len(known) - 1)
        return torch.where(known[at] == key, ratio[at], torch.zeros_like(ratio[at]))

    return score


def row_keys(x: Tensor) -> Tensor:
    """Return (n,) int64 hashes: equal for equal rows, and almost surely different otherwise."""
    bits = (x + 0.0).double().contiguous().view(torch.int64)
    odd = torch.randint(2**61, (x.shape[1],), generator=torch.Generator().manual_seed(1)) * 2 + 1
    mixed = bits ^ (bits >> 29)
    return (mixed * odd.to(x.device)).sum(1)


def order_keys(chosen: list[int], centre: Tensor, width: int) -> Iterator[tuple[str, Keys]]:
    """Yield names and key functions of orders: the extreme coordinates of all `width`, and of subsets of `chosen`."""

    def ends(x: Tensor) -> Tensor:
        z = x - centre
        return z.argmax(1) * width + z.argmin(1)

    def first_two(x: Tensor) -> Tensor:
        two = (x - centre).topk(2, dim=1).indices
        return two[:, 0] * width + two[:, 1]

    yield "largest and smallest", ends
    yield "largest two", first_two
    for size in (3, 4, 5):
        if math.comb(len(chosen), size) <= MOST_SUBSETS:
            for subset in combinations(chosen, size):
                yield "of x" + " x".join(map(str, subset)), partial(signs_of_differences, subset, centre)


def signs_of_differences(subset: tuple[int, ...], centre: Tensor, x: Tensor) -> Tensor:
    """Return (n,) int64 keys: the order of a few coordinates, as the signs of their differences."""
    columns = [x[:, j] - centre[j] for j in subset]
    key = torch.zeros(len(x), dtype=torch.int64)
    for first, second in combinations(columns, 2):
        key.mul_(2).add_(first < second)
    return key


def best_product(chosen: list[int], centre: Tensor, x0: Tensor, x1: Tensor) -> tuple[Scorer, str]:
    """Return the product of signs whose mean differs most between the worlds, as a score, and its name.

    All means are computed at once, by a Walsh-Hadamard transform of the counts of sign patterns.
    """
    powers = 2 ** torch.arange(len(chosen))

    def below(x: Tensor) -> Tensor:
        return x[:, chosen] < centre[chosen]

    means = [torch.bincount((below(x) * powers).sum(1), minlength=2 ** len(chosen)) / len(x) for x in (x0, x1)]
    difference = means[1] - means[0]
    for bit in range(len(chosen)):
        pairs = difference.view(-1, 2, 2**bit)
        difference = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).flatten()
    best = int(difference.abs().argmax())
    members = [k for k in range(len(chosen)) if best >> k & 1]
    name = "product of " + " ".join(f"x{chosen[k]}" for k in members)
    return lambda x: 1.0 - 2.0 * (below(x)[:, members].sum(1) % 2).double(), name
