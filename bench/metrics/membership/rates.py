"""Rates at a threshold: true positive rate at a low false positive rate, and the best balanced accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bench.metrics.proportions import clopper_pearson
from bench.seeds import derive

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Halves = tuple[Floats, Floats]

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
    """Balanced accuracy at the threshold that is best on one half of the records, measured on the other half.

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
    """Return `tpr_at` a limit on the false positive rate, from ascending scores of members and of others."""
    from scipy.stats import binom  # slow to import

    allowed = min(len(others) - 1, math.floor(limit * len(others) * (1 + _ROUNDING)))
    threshold = others[len(others) - 1 - allowed]
    above = int((members > threshold).sum())
    # The interval is of P(member > t), t the smallest with P(other > t) <= limit; each of t and P has half the error.
    # Of n others, Binomial(n, at most limit) are above t and Binomial(n, at least limit) are at t or above. So t is
    # between two of their order statistics, and the members' share is counted at both. ppf(q) is the smallest k with
    # P(X <= k) >= q, so that P(X < ppf(tail)) < tail
    each = 1 - (1 - confidence) / 2
    n, tail = len(others), (1 - each) / 2
    fewest, most = int(binom.ppf(tail, n, limit)), int(binom.ppf(1 - tail, n, limit))
    top = members > others[n - fewest] if fewest else np.zeros(len(members), bool)
    all_above = members > others[n - 1 - most] if most < n else np.ones(len(members), bool)
    low, _ = clopper_pearson(int(top.sum()), len(members), each)
    _, high = clopper_pearson(int(all_above.sum()), len(members), each)
    return RateAt(limit, above / len(members), low, high, float((others > threshold).mean()), allowed >= 1)


def best_balanced(members: Floats, others: Floats, seed: int, confidence: float) -> Balanced:
    """Return `balanced_accuracy` from ascending scores of members and of others."""
    check_confidence(confidence)
    (choose_in, test_in), (choose_out, test_out) = halves(members, seed, "members"), halves(others, seed, "others")
    thresholds = distinct_scores(choose_in, choose_out)
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
    """Return the share of ascending scores that are at or above each threshold."""
    return 1 - np.searchsorted(ascending, thresholds, side="left") / len(ascending)


def distinct_scores(members: Floats, others: Floats) -> Floats:
    """Return the distinct scores in descending order; "score >= threshold" predicts member."""
    return np.unique(np.concatenate([members, others]))[::-1]


def sides(scores: Tensor, is_member: Tensor) -> tuple[Floats, Floats]:
    """Return the scores of members and of non-members as float64 arrays, each ascending.

    Raises:
        ValueError: wrong shapes or types, fewer than 2 records on a side, or a score that is NaN or infinite.
    """
    if scores.ndim != 1 or is_member.shape != scores.shape or str(is_member.dtype) != "torch.bool":
        raise ValueError(
            f"scores {tuple(scores.shape)} and is_member {tuple(is_member.shape)} of {is_member.dtype}: "
            "expected (n,) and (n,) of torch.bool"
        )
    if not scores.isfinite().all():
        raise ValueError("a score is NaN or infinite")
    values, member = scores.detach().cpu().double().numpy(), is_member.cpu().numpy()
    members, others = np.sort(values[member]), np.sort(values[~member])
    if min(len(members), len(others)) < 2:
        raise ValueError(f"{len(members)} members and {len(others)} non-members: expected at least 2 of each")
    return members, others


def halves(ascending: Floats, seed: int, name: str) -> Halves:
    """Return two random halves, each ascending; the second has one more if the number is odd."""
    order = np.random.default_rng(derive(seed, "membership-halves", name)).permutation(len(ascending))
    half = len(ascending) // 2
    return np.sort(ascending[order[:half]]), np.sort(ascending[order[half:]])


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless `confidence` is in (0, 1)."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: expected a number between 0 and 1")
