"""An indicative epsilon from the scores of a membership attack; not a valid lower bound."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaincinv

from bench.metrics.membership.rates import Halves, check_confidence, distinct_scores, halves, share_from, sides
from bench.metrics.proportions import clopper_pearson

if TYPE_CHECKING:
    from torch import Tensor

_CHOOSING_CONFIDENCE = 0.999
"""Confidence of the Clopper-Pearson bounds by which a threshold is chosen."""


def epsilon_lower(scores: Tensor, is_member: Tensor, delta: float, confidence: float = 0.95, seed: int = 0) -> float:
    """Return an epsilon >= 0 that the scores indicate: the larger lower bound of two log ratios.

    The ratios are log((TPR - delta) / FPR) and log((TNR - delta) / FNR). A threshold for each is chosen on one half.
    Clopper-Pearson bounds on the other half, TPR and TNR from below and FPR and FNR from above, hold together at the
    requested confidence.

    This is an indication, not a proof: differential privacy is about one record over many trainings, and these are many
    records of one training, whose scores depend on each other. Members that are easier than non-members without any
    training also increase it. `bench.pipeline.canary_audit` has a valid bound.

    Args:
        delta: in [0, 1). The others, and errors, as for `membership`.
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta {delta}: expected a number in [0, 1)")
    check_confidence(confidence)
    members, others = sides(scores, is_member)
    inside, outside = halves(members, seed, "members"), halves(others, seed, "others")
    upwards = _tested_bound(inside, outside, delta, confidence)
    downwards = _tested_bound(_negated(outside), _negated(inside), delta, confidence)
    return max(0.0, upwards, downwards)


def _negated(halves: Halves) -> Halves:
    """Return both halves with negated scores, ascending again."""
    return -halves[0][::-1], -halves[1][::-1]


def _tested_bound(likely: Halves, unlikely: Halves, delta: float, confidence: float) -> float:
    """Return a lower bound on log((P[likely >= t] - delta) / P[unlikely >= t]), or -inf; two of these hold together.

    t is the threshold with the largest such bound on the first halves; the second halves give the returned bound.
    """
    thresholds = distinct_scores(likely[0], unlikely[0])
    tail = (1 - _CHOOSING_CONFIDENCE) / 2
    hits, false = (np.rint(share_from(x[0], thresholds) * len(x[0])) for x in (likely, unlikely))
    low_shares = np.where(hits > 0, betaincinv(np.maximum(hits, 1), len(likely[0]) - hits + 1, tail), 0.0)
    rest = np.maximum(len(unlikely[0]) - false, 0.5)
    high_shares = np.where(false < len(unlikely[0]), betaincinv(false + 1, rest, 1 - tail), 1.0)
    bounds = np.log(np.maximum(low_shares - delta, 1e-300)) - np.log(high_shares)
    threshold = float(thresholds[int(bounds.argmax())])

    each = 1 - (1 - confidence) / 2
    low, _ = clopper_pearson(int((likely[1] >= threshold).sum()), len(likely[1]), each)
    _, high = clopper_pearson(int((unlikely[1] >= threshold).sum()), len(unlikely[1]), each)
    return math.log((low - delta) / high) if low > delta else -math.inf
