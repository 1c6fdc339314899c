"""Rates at a threshold: true positive rate at a low false positive rate, and the best balanced accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.metrics.intervals import clopper_pearson
from bench.metrics.membership.sides import Floats, check_confidence, halves, sides

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDING = 1e-9


@dataclass(frozen=True)
class RateAt:
    """A true positive rate at a low false positive rate.

    Attributes:
        limit: the largest allowed false positive rate.
        tpr: share of members with scores above the threshold, in [0, 1].
        low, high: an interval with at least the requested confidence for the rate at the population threshold, which
            all non-members would determine; the sampled ones may set it too high or too low.
        fpr: share of non-members above the threshold, at most `limit`.
        resolved: False if there are fewer than 1 / limit non-members, so that none may be above the threshold and `tpr`
            is the rate at a measured false positive rate of 0.
    """

    limit: float
    tpr: float
    low: float
    high: float
    fpr: float
    resolved: bool


@dataclass(frozen=True)
class Balanced:
    """Balanced accuracy of the best threshold of one half, measured on the other half.

    Attributes:
        accuracy: (tpr + 1 - fpr) / 2, in [0, 1].
        low, high: an interval with at least the requested confidence, from Clopper-Pearson intervals of both rates.
        advantage: tpr - fpr = 2 accuracy - 1; its interval is 2 low - 1 to 2 high - 1.
        tpr, fpr: the two rates.
    """

    accuracy: float
    low: float
    high: float
    advantage: float
    tpr: float
    fpr: float


def tpr_at(scores: Tensor, is_member: Tensor, fpr: float, confidence: float = 0.95) -> RateAt:
    """Return the true positive rate of the lowest threshold with a false positive rate of at most `fpr`.

    Records with equal scores are on the same side of the threshold, so ties never inflate the rate.

    Args:
        fpr: in (0, 1). The others, and errors, as for `membership`.
    """
    if not 0 < fpr < 1:
        raise ValueError(f"fpr {fpr}: expected a number between 0 and 1")
    return rate_at(*sides(scores, is_member), fpr, confidence)


def balanced_accuracy(scores: Tensor, is_member: Tensor, seed: int = 0, confidence: float = 0.95) -> Balanced:
    """Return balanced accuracy and advantage, with the threshold from one half and the rates from the other.

    Arguments and errors as for `membership`.
    """
    return best_balanced(*sides(scores, is_member), seed, confidence)


def rate_at(members: Floats, others: Floats, limit: float, confidence: float) -> RateAt:
    allowed = min(len(others) - 1, math.floor(limit * len(others) * (1 + _ROUNDING)))
    threshold = others[len(others) - 1 - allowed]
    above = int((members > threshold).sum())
    low, high = _rate_interval(members, others, limit, confidence)
    return RateAt(limit, above / len(members), low, high, float((others > threshold).mean()), allowed >= 1)


def _rate_interval(members: Floats, others: Floats, limit: float, confidence: float) -> tuple[float, float]:
    """Return the interval of P(member > t), t the smallest with P(other > t) <= limit.

    Each of t and P has half the error.

    Of n others, Binomial(n, at most limit) are above t and Binomial(n, at least limit) are at t or above. So t is
    between two of their order statistics, and the members' share is counted at both.
    """
    each = 1 - (1 - confidence) / 2
    n = len(others)
    fewest, most = _binomial_range(n, limit, each)
    top = members > others[n - fewest] if fewest else np.zeros(len(members), bool)
    all_above = members > others[n - 1 - most] if most < n else np.ones(len(members), bool)
    low, _ = clopper_pearson(int(top.sum()), len(members), each)
    _, high = clopper_pearson(int(all_above.sum()), len(members), each)
    return low, high


def _binomial_range(n: int, p: float, confidence: float) -> tuple[int, int]:
    """Return (a, b) with P(X < a) and P(X > b) each at most (1 - confidence) / 2, for X ~ Binomial(n, p)."""
    from scipy.stats import binom  # imported here, as it takes a second and few commands need it

    tail = (1 - confidence) / 2
    # ppf(q) is the smallest k with P(X <= k) >= q, so that P(X < ppf(tail)) < tail
    return int(binom.ppf(tail, n, p)), int(binom.ppf(1 - tail, n, p))


def best_balanced(members: Floats, others: Floats, seed: int, confidence: float) -> Balanced:
    check_confidence(confidence)
    (choose_in, test_in), (choose_out, test_out) = halves(members, seed, "members"), halves(others, seed, "others")
    thresholds = thresholds_seen(choose_in, choose_out)
    gain = share_from(choose_in, thresholds) - share_from(choose_out, thresholds)
    threshold = thresholds[int(gain.argmax())]
    hits, false = int((test_in >= threshold).sum()), int((test_out >= threshold).sum())
    tpr, fpr = hits / len(test_in), false / len(test_out)
    each = 1 - (1 - confidence) / 2
    tpr_low, tpr_high = clopper_pearson(hits, len(test_in), each)
    fpr_low, fpr_high = clopper_pearson(false, len(test_out), each)
    low, high = (tpr_low + 1 - fpr_high) / 2, (tpr_high + 1 - fpr_low) / 2
    return Balanced((tpr + 1 - fpr) / 2, low, high, tpr - fpr, tpr, fpr)


def share_from(ascending: Floats, thresholds: Floats) -> Floats:
    return 1 - np.searchsorted(ascending, thresholds, side="left") / len(ascending)


def thresholds_seen(members: Floats, others: Floats) -> Floats:
    """Return the distinct scores in descending order; "score >= threshold" predicts member."""
    return np.unique(np.concatenate([members, others]))[::-1]
