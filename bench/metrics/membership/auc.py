"""The area under the ROC curve (AUC) of a membership attack, with its confidence interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from bench.metrics.membership.rates import Floats, check_confidence, sides

if TYPE_CHECKING:
    from torch import Tensor

_HALVINGS = 60


def auc_interval(scores: Tensor, is_member: Tensor, confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the AUC with its interval, (auc, low, high), all in [0, 1].

    AUC = P(a member's score > a non-member's) + P(equal) / 2. The interval is that of DeLong, DeLong and Clarke-Pearson
    (1988), computed on the logit scale, where its coverage near 0 and 1 is better than on the plain scale and its ends
    stay within them. Its width would be 0 for scores that separate both sides perfectly or are all equal, as the
    variance estimate is 0. Then the interval is every theta with kl(auc, theta) <= log(2 / alpha) / k, k the smaller of
    both numbers, kl the divergence of two Bernoulli distributions and alpha = 1 - confidence: Hoeffding's bound (1963,
    section 5) for statistics of two samples, valid for any distribution. After perfect separation it equals the
    Clopper-Pearson interval of k successes in k trials.

    Arguments and errors as for `membership`.
    """
    return area(*sides(scores, is_member), confidence)


def auc_gain(
    scores: Tensor, baseline: Tensor, is_member: Tensor, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return how much the AUC exceeds that of baseline scores for the same records, (gain, low, high), in [-1, 1].

    Both sets of scores share the random choice of records, so their difference has less variance. The interval is that
    of DeLong, DeLong and Clarke-Pearson (1988) for two areas of the same records, by a normal approximation; if its
    width is 0, it is derived from the two areas' own intervals.

    Args:
        scores, baseline: (n,) any float type, higher for members, each on its own scale.
        is_member, confidence, and errors: as for `membership`.
    """
    check_confidence(confidence)
    ours, theirs = (placements(each, is_member) for each in (scores, baseline))
    members, others = (a - b for a, b in zip(ours, theirs, strict=True))
    gain = float(members.mean())
    variance = members.var(ddof=1) / len(members) + others.var(ddof=1) / len(others)
    if variance == 0 and gain:  # both estimates have variance 0: use their own intervals, each at half of the error
        (_, low, high), (_, least, most) = (
            auc_interval(x, is_member, (1 + confidence) / 2) for x in (scores, baseline)
        )
        return gain, low - most, high - least
    reach = ndtri((1 + confidence) / 2) * math.sqrt(variance)
    return gain, max(gain - reach, -1.0), min(gain + reach, 1.0)


def gap_auc(is_correct: Tensor, is_member: Tensor) -> float:
    """Return the AUC of the gap attack, (1 + accuracy on members - accuracy on others) / 2 (Yeom et al., CSF 2018).

    The attack predicts "member" for records that the target classifies correctly.

    Args:
        is_correct: (n,) bool, whether the target classifies each record correctly.
        is_member: as for `membership`.
    """
    members, others = sides(is_correct.double(), is_member)
    return float(0.5 + (members.mean() - others.mean()) / 2)


def area(members: Floats, others: Floats, confidence: float) -> tuple[float, float, float]:
    """Return `auc_interval` of ascending scores of members and of others."""
    from scipy.stats import rankdata  # slow to import

    check_confidence(confidence)
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    below_members, below_others = ranks[:m] - rankdata(members), ranks[m:] - rankdata(others)
    auc = float(below_members.sum() / (m * n))
    if not (np.ptp(below_members) or np.ptp(below_others)):
        return auc, *hoeffding_interval(auc, min(m, n), confidence)
    variance = below_members.var(ddof=1) / (n**2 * m) + below_others.var(ddof=1) / (m**2 * n)
    reach = ndtri((1 + confidence) / 2) * math.sqrt(variance) / (auc * (1 - auc))
    centre = math.log(auc / (1 - auc))
    return auc, _expit(centre - reach), _expit(centre + reach)


def placements(scores: Tensor, is_member: Tensor) -> tuple[Floats, Floats]:
    """Return for each member the share of others below it, and for each non-member the share of members above it.

    Both arrays are in the records' order; ties count half. Raises ValueError as `sides`.
    """
    from scipy.stats import rankdata

    sides(scores, is_member)
    values, member = scores.detach().cpu().double().numpy(), is_member.cpu().numpy()
    ranks = rankdata(values)
    m, n = int(member.sum()), int((~member).sum())
    below_members = (ranks[member] - rankdata(values[member])) / n
    above_others = 1 - (ranks[~member] - rankdata(values[~member])) / m
    return below_members, above_others


def _expit(x: float) -> float:
    return math.exp(-np.logaddexp(0, -x))


def hoeffding_interval(share: float, k: int, confidence: float) -> tuple[float, float]:
    """Return the ends of the interval of theta with k kl(share, theta) <= log(2 / (1 - confidence)), by bisection.

    Args:
        share: observed share, in [0, 1]. k: number of observations.
    """

    def divergence(p: float, q: float) -> float:
        """Return the divergence in nats of Bernoulli(p) from Bernoulli(q)."""
        first = p * math.log(p / q) if p > 0 and q > 0 else (math.inf if p > 0 else 0.0)
        second = (1 - p) * math.log((1 - p) / (1 - q)) if p < 1 and q < 1 else (math.inf if p < 1 else 0.0)
        return first + second

    allowed = math.log(2 / (1 - confidence)) / k
    ends = []
    for far in (0.0, 1.0):
        inside, outside = share, far
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if divergence(share, middle) <= allowed else (inside, middle)
        ends.append(outside)
    return ends[0], ends[1]
