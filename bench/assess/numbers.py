"""The numbers of one attack with their confidence limits: AUC, true positive rates, lower bound on epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.assess.epsilon import lower_bound
from bench.assess.schema import Interval, Levels, Rate
from bench.core.verdict import SIGNIFICANCE
from bench.metrics.membership.auc import area
from bench.metrics.membership.rates import rate_at
from bench.metrics.proportions import clopper_pearson

Floats = NDArray[np.float64]
RATES = (0.1, 0.01, 0.001)
POLICY_NUMBERS = 2
"""Numbers that a policy limits: AUC and the true positive rate at 1 %; they share the error probability."""
RESAMPLES = 1000
COMBINE = ("mean", "sum", "max")


@dataclass(frozen=True)
class Scored:
    """The scores of one attack, larger for members: (n,) and (m,), in the order of the records.

    Attributes:
        reads: the part of the model's outputs that the attack reads.
        note: a remark for the reader.
        rows: indices of the members and the others that were scored; None = all.
    """

    name: str
    source: str
    reads: str
    members: Floats
    others: Floats
    note: str = ""
    rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None


@dataclass(frozen=True)
class Numbers:
    """AUC, true positive rates and lower bound on epsilon of one attack, as in `AttackResult`."""

    auc: Interval
    rates: tuple[Rate, ...]
    epsilon_lower: float


def levels_for(attacks: int) -> Levels:
    """Return the error probability of each kind of confidence limit.

    An upper limit needs no correction for the number of attacks: a release needs the upper limits of all of them below
    the maximum, and the limit of the strongest attack is wrong with at most its own probability. One lower limit above
    the maximum is enough to refuse, so lower limits share their probability (Bonferroni).
    """
    each = SIGNIFICANCE / 2 / POLICY_NUMBERS
    count = max(1, attacks)
    return Levels(
        upper=each,
        lower=each / count,
        epsilon=SIGNIFICANCE,
        correction=f"Bonferroni over {count} attack{'s' * (count != 1)}",
    )


def measure(members: Floats, others: Floats, delta: float, attacks: int) -> Numbers:
    """Compute all numbers of one attack.

    Args:
        members, others: scores of at least two records or groups each, in any order, finite.
        delta: delta of the lower bound on epsilon.
        attacks: number of attacks for which the limits are corrected.
    """
    levels = levels_for(attacks)
    inside, outside = np.sort(members), np.sort(others)
    for values in (inside, outside):
        if not (len(values) >= 2 and np.isfinite(values[[0, -1]]).all()):
            raise ValueError(f"{len(values)} scores, some of which may be NaN: expected 2 or more finite ones")
    value, low, _ = area(inside, outside, 1 - 2 * levels.lower)
    _, _, high = area(inside, outside, 1 - 2 * levels.upper)
    rates = tuple(_rate(inside, outside, fpr, levels) for fpr in RATES)
    bound = lower_bound(inside, outside, delta, levels.epsilon, max(1, attacks))
    return Numbers(Interval(value=value, low=low, high=high), rates, bound)


def needed_for(fpr: float, confidence: float = 0.95) -> int:
    """Return the number of non-members that a true positive rate at this false positive rate needs.

    With that many, the largest of their scores is exceeded by a share of at most `fpr` of all non-members.

    >>> [needed_for(fpr) for fpr in (0.1, 0.01, 0.001)]
    [29, 299, 2995]
    """
    return math.ceil(math.log(1 - confidence) / math.log(1 - fpr))


def _rate(members: Floats, others: Floats, fpr: float, levels: Levels) -> Rate:
    needed = needed_for(fpr)
    if len(others) < needed:
        return Rate(fpr=fpr, tpr=None, needed=needed)
    lower = rate_at(members, others, fpr, 1 - 2 * levels.lower)
    upper = rate_at(members, others, fpr, 1 - 2 * levels.upper)
    return Rate(fpr=fpr, tpr=Interval(value=lower.tpr, low=lower.low, high=upper.high), needed=needed)


def share(right: Floats) -> Interval:
    """Return the share of ones among (n,) zeros and ones, with its exact 95 % interval."""
    low, high = clopper_pearson(int(right.sum()), len(right))
    return Interval(value=float(right.mean()), low=low, high=high)


def combine(scores: Floats, groups: NDArray[np.str_], how: str) -> tuple[Floats, NDArray[np.str_]]:
    """Combine the scores of each group into one; return them with the names of the groups.

    Args:
        how: mean, sum or max. The mean is the default of an assessment: sums and maxima of groups of different sizes
            differ by their sizes, without any model.
    """
    names, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if how == "max":
        found = np.full(len(names), -np.inf)
        np.maximum.at(found, place, scores)
        return found, names
    sums = np.bincount(place, weights=scores, minlength=len(names)).astype(np.float64)
    return (sums if how == "sum" else sums / counts), names


def group_bootstrap(
    members: Floats, others: Floats, groups: tuple[NDArray[np.str_], NDArray[np.str_]], seed: int
) -> Interval:
    """Return the AUC of single records, with a 95 % interval from 1,000 bootstrap samples of whole groups.

    Records of a group are correlated, so that intervals for independent records would be too narrow. All records are
    sorted once; in the AUC of a sample, each record counts as often as its group was drawn.
    """
    rng = np.random.default_rng(seed)
    scores = np.concatenate([members, others])
    order = np.argsort(scores, kind="stable")
    _, tie = np.unique(scores[order], return_inverse=True)
    sides = [np.unique(each, return_inverse=True, return_counts=False) for each in groups]
    areas = np.empty(RESAMPLES + 1)
    for sample in range(RESAMPLES + 1):
        weights = []
        for names, place in sides:
            drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)))
            weights.append((drawn if sample else np.ones_like(drawn))[place])
        inside = np.concatenate([weights[0], np.zeros(len(others))])[order]
        outside = np.concatenate([np.zeros(len(members)), weights[1]])[order]
        at_tie, below = np.bincount(tie, outside), np.cumsum(np.bincount(tie, outside))
        pairs = np.bincount(tie, inside) @ (below - at_tie / 2)
        areas[sample] = pairs / (inside.sum() * outside.sum())
    low, high = np.quantile(areas[1:], [0.025, 0.975])
    return Interval(value=float(areas[0]), low=float(low), high=float(high))
