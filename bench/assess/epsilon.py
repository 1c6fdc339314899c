"""An empirical lower bound on epsilon from scores, valid for many thresholds and several attacks at once.

Differential privacy says P(member above t) <= e^epsilon P(non-member above t) + delta for every threshold t, and the
same with the roles exchanged and the scores reversed. Thresholds are fixed ranks of the side that makes the errors:
below 5,000 records the shares 1, 5, 10, 30 and 50 %, from there on twenty shares from 0.05 to 50 %. The error
probability is divided by the number of ranks, by two directions and by the number of attacks (Bonferroni), and each
part by two for the two rates. The k-th largest of m independent scores leaves a share of at most
BetaQuantile(1 - a; k, m - k + 1) above it with probability 1 - a; the other rate has its exact binomial bound.

The bound holds if members and non-members are independent draws that differ by membership only. Records of one training
depend on each other through the model; a bound without that assumption needs canaries (`bench.privacy.one_run`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

Floats = NDArray[np.float64]
FEW_RANKS = (0.01, 0.05, 0.1, 0.3, 0.5)
MANY = 5000
"""Number of records of the smaller set from which on twenty ranks are used."""
_SMALLEST_ALPHA = 1e-12
_HALVINGS = 50


def ranks_of(records: int) -> tuple[float, ...]:
    """Return the shares of records at which thresholds are placed."""
    return FEW_RANKS if records < MANY else tuple(np.geomspace(0.0005, 0.5, 20).tolist())


def lower_bound(members: Floats, others: Floats, delta: float, alpha: float, attacks: int = 1) -> float:
    """Compute a lower bound on epsilon, >= 0, that holds with probability at least 1 - alpha.

    Args:
        members, others: (n,) and (m,) scores, each ascending; larger means more likely a member.
        delta: in [0, 1).
        alpha: the error probability of the whole assessment, in (0, 1).
        attacks: number of attacks that share it, at least 1.
    """
    if not (0 <= delta < 1 and 0 < alpha < 1 and attacks >= 1):
        raise ValueError(f"delta {delta}, alpha {alpha}, {attacks} attacks: expected [0, 1), (0, 1), at least 1")
    ranks = ranks_of(min(len(members), len(others)))
    each = alpha / (2 * len(ranks) * attacks)
    upwards = _bound(members, others, delta, ranks, each)
    downwards = _bound(-others[::-1], -members[::-1], delta, ranks, each)
    return max(0.0, upwards, downwards)


def _bound(likely: Floats, unlikely: Floats, delta: float, ranks: Sequence[float], alpha: float) -> float:
    """Return the largest lower bound on log((P[likely > t] - delta) / P[unlikely > t]) over the ranks, or -inf."""
    m, n = len(unlikely), len(likely)
    k = np.unique(np.maximum(1, np.floor(np.asarray(ranks) * m).astype(int)))
    hits = n - np.searchsorted(likely, unlikely[m - k], side="right")
    highest = betaincinv(k, m - k + 1, 1 - alpha / 2)
    lowest = np.where(hits > 0, betaincinv(np.maximum(hits, 1), n - hits + 1, alpha / 2), 0.0)
    valid = lowest > delta
    return float(np.log((lowest[valid] - delta) / highest[valid]).max(initial=-math.inf))


def p_value(epsilon: float, members: Floats, others: Floats, delta: float, attacks: int = 1) -> float:
    """Return the smallest alpha at which `lower_bound` is above `epsilon`, at most 1; other arguments as there."""
    if lower_bound(members, others, delta, _SMALLEST_ALPHA, attacks) > epsilon:
        return _SMALLEST_ALPHA
    low, high = math.log(_SMALLEST_ALPHA), math.log(1 - 1e-9)
    if lower_bound(members, others, delta, math.exp(high), attacks) <= epsilon:
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if lower_bound(members, others, delta, math.exp(middle), attacks) > epsilon:
            high = middle
        else:
            low = middle
    return math.exp(high)
