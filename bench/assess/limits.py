"""Detection limits: the smallest effects that an assessment can detect with given numbers of records."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betaincinv, expit, ndtri

from bench.assess.numbers import RATES, needed_for
from bench.assess.schema import Limits
from bench.core.verdict import SIGNIFICANCE

POWER = 0.8
_HALVINGS = 30


def limits_of(members: int, others: int, delta: float = 0.0) -> Limits:
    """Compute the detection limits of one attack with one threshold, at 95 % confidence and a power of 80 %.

    Args:
        members, others: numbers of records, or of groups.
        delta: delta of the lower bound on epsilon.
    """
    spread = math.sqrt((members + others + 1) / (12 * members * others))
    hit = float(betaincinv(members, 1, SIGNIFICANCE / 2))
    false = float(betaincinv(1, others, 1 - SIGNIFICANCE / 2))
    highest = max(0.0, math.log(max(hit - delta, 1e-300) / false))
    return Limits(
        members=members,
        others=others,
        highest_epsilon=highest,
        smallest_epsilon=_smallest_epsilon(members, others),
        smallest_auc=min(1.0, 0.5 + (ndtri(1 - SIGNIFICANCE / 2) + ndtri(POWER)) * spread),
        rates=tuple((fpr, _smallest_rate(members, fpr) if others >= needed_for(fpr) else None) for fpr in RATES),
        largest_auc_without_leak=min(1.0, 0.5 + float(ndtri(1 - SIGNIFICANCE / 2)) * spread),
    )


def _smallest_rate(members: int, fpr: float) -> float:
    """Return the smallest true positive rate whose lower limit is above `fpr` with a probability of 80 %."""
    hits = np.arange(1, members + 1)
    enough = int(hits[betaincinv(hits, members - hits + 1, SIGNIFICANCE / 2) > fpr][0])
    return float(betaincinv(enough, members - enough + 1, POWER))


def _smallest_epsilon(members: int, others: int) -> float:
    """Return the smallest epsilon whose lower bound is above 0 with a probability of 80 %, for randomised response.

    Its guesses are right for a share of e^eps / (1 + e^eps) of the records.
    """
    from scipy.stats import binom  # here: it takes a second to import

    hits, false = np.arange(members + 1), np.arange(others + 1)
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), members - hits + 1, SIGNIFICANCE / 2), 0.0)
    high = np.where(false < others, betaincinv(false + 1, np.maximum(others - false, 0.5), 1 - SIGNIFICANCE / 2), 1.0)
    # For each number of hits, the largest number of false ones whose upper limit is below the lower limit of the hits
    most = np.searchsorted(high, low, side="left") - 1
    least, largest = 0.0, 20.0
    for _ in range(_HALVINGS):
        middle = (least + largest) / 2
        right = float(expit(middle))
        reached = np.where(most >= 0, binom.cdf(most, others, 1 - right), 0.0)
        is_seen = float(binom.pmf(hits, members, right) @ reached) >= POWER
        least, largest = (least, middle) if is_seen else (middle, largest)
    return largest


def limit_lines(found: Limits, unit: str) -> list[str]:
    """Format the detection limits as lines for a terminal."""
    rates = "; ".join(
        f"{value:.1%} at FPR {fpr:.1%}" if value is not None else f"nothing at FPR {fpr:.1%}"
        for fpr, value in found.rates
    )
    return [
        f"With {found.members} members and {found.others} non-members ({unit}s), one attack can show at most:",
        f"  a lower bound on epsilon of {found.highest_epsilon:.2f}; it can find an epsilon from "
        f"{found.smallest_epsilon:.2f} and an AUC from {found.smallest_auc:.3f}",
        f"  smallest true positive rate that can be found: {rates}",
        f"  without any leak the AUC's upper limit is about {found.largest_auc_without_leak:.3f}",
    ]
