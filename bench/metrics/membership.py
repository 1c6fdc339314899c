"""How well scores tell the records a model was trained on from records it never saw.

A higher score says "member". Every number depends on the order of the scores alone: neither the order of the rows nor
an increasing transformation of the scores changes it. Where a threshold has to be chosen, it is chosen on a random half
of the members and of the non-members, and the other half is what is reported.

All intervals take records for independent draws. Records scored on one model share its training, so the intervals are
for other records on this model, not for other models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri
from torch import Tensor

from bench.metrics.intervals import clopper_pearson
from bench.metrics.levels import LEAST_AUC
from bench.seeds import derive

Floats = NDArray[np.float64]
Halves = tuple[Floats, Floats]

_CHOOSING_CONFIDENCE = 0.999
_HALVINGS = 60
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RateAt:
    """The true positive rate at a small false positive rate.

    Attributes:
        limit: the false positive rate allowed.
        tpr: share of members scored above the threshold, in [0, 1].
        low, high: an interval of at least the confidence asked for, for the rate at the threshold that all non-members
            in the world would set: these few may have set it too high or too low.
        fpr: share of non-members scored above it, at most `limit`.
        resolved: False where non-members are fewer than 1 / limit, so that not one may be above the threshold and
            `tpr` is the rate at a measured false positive rate of 0.
    """

    limit: float
    tpr: float
    low: float
    high: float
    fpr: float
    resolved: bool


@dataclass(frozen=True)
class Balanced:
    """The best threshold of one half, on the other half.

    Attributes:
        accuracy: (tpr + 1 - fpr) / 2, in [0, 1].
        low, high: an interval of at least the confidence asked for, from Clopper-Pearson intervals of both rates.
        advantage: tpr - fpr = 2 accuracy - 1; its interval is 2 low - 1 to 2 high - 1.
        tpr, fpr: the rates.
    """

    accuracy: float
    low: float
    high: float
    advantage: float
    tpr: float
    fpr: float


@dataclass(frozen=True)
class Membership:
    """What one attack achieves on one model.

    Attributes:
        members, non_members: how many were scored.
        auc: P(member's score > non-member's) + P(equal) / 2, in [0, 1]; 0.5 is chance.
        auc_low, auc_high: its interval, see `auc_interval`.
        at_1_percent, at_01_percent: the true positive rate at a false positive rate of 1 % and of 0.1 %.
        balanced: accuracy and advantage at the best threshold.
    """

    members: int
    non_members: int
    auc: float
    auc_low: float
    auc_high: float
    at_1_percent: RateAt
    at_01_percent: RateAt
    balanced: Balanced


@dataclass(frozen=True)
class MembershipPower:
    """The verdict on one membership attack, data set and split.

    Attributes:
        passed: whether a failure of this attack says anything about a defence.
        reason: the verdict in a sentence.
    """

    passed: bool
    reason: str


def membership(scores: Tensor, is_member: Tensor, seed: int = 0, confidence: float = 0.95) -> Membership:
    """All numbers of one attack.

    Args:
        scores: (n,) any float type, higher for members.
        is_member: (n,) bool, at least 2 true and 2 false.
        seed: of the halves for the balanced accuracy.
        confidence: in (0, 1), of each interval by itself.

    Raises:
        ValueError: shapes or types of another kind, too few of a side, or a score that is NaN or infinite.
    """
    members, others = _sides(scores, is_member)
    auc, low, high = _auc(members, others, confidence)
    rates = [_rate_at(members, others, limit, confidence) for limit in (0.01, 0.001)]
    balanced = _balanced(members, others, seed, confidence)
    return Membership(len(members), len(others), auc, low, high, rates[0], rates[1], balanced)


def auc_interval(scores: Tensor, is_member: Tensor, confidence: float = 0.95) -> tuple[float, float, float]:
    """AUC with its interval, (auc, low, high), all in [0, 1].

    The interval is that of DeLong, DeLong and Clarke-Pearson (1988), made on the logit scale, where it covers better
    near 0 and 1 than on the plain scale and stays inside of them. It would have no width where the variance estimate is
    0: for scores that separate both sides perfectly, or are all the same. There the interval is every theta with
    kl(auc, theta) <= log(2 / alpha) / k, k the smaller of both numbers, kl the divergence of two coins and alpha = 1 -
    confidence: Hoeffding's bound (1963, section 5) for statistics of two samples, valid for any distribution. After
    perfect separation it is that of k right in k trials by Clopper and Pearson.

    Arguments and errors as for `membership`.
    """
    return _auc(*_sides(scores, is_member), confidence)


def auc_gain(
    scores: Tensor, baseline: Tensor, is_member: Tensor, confidence: float = 0.95
) -> tuple[float, float, float]:
    """How much larger the AUC is than that of other scores of the same records, (gain, low, high), in [-1, 1].

    Both sets of scores share the luck of who was asked about, and the difference has it no more. The interval is that
    of DeLong, DeLong and Clarke-Pearson (1988) for two areas of the same records, by a normal law; where that has no
    width, of the two areas' own.

    Args:
        scores, baseline: (n,) any float type, higher for members, each on a scale of its own.
        is_member, confidence, and errors, as for `membership`.
    """
    _check_confidence(confidence)
    ours, theirs = (_placements(each, is_member) for each in (scores, baseline))
    members, others = (a - b for a, b in zip(ours, theirs, strict=True))
    gain = float(members.mean())
    variance = members.var(ddof=1) / len(members) + others.var(ddof=1) / len(others)
    if variance == 0 and gain:  # both areas are certain of themselves: by theirs, each at half of the error
        (_, low, high), (_, least, most) = (
            auc_interval(x, is_member, (1 + confidence) / 2) for x in (scores, baseline)
        )
        return gain, low - most, high - least
    reach = ndtri((1 + confidence) / 2) * math.sqrt(variance)
    return gain, max(gain - reach, -1.0), min(gain + reach, 1.0)


def tpr_at(scores: Tensor, is_member: Tensor, fpr: float, confidence: float = 0.95) -> RateAt:
    """The true positive rate of the largest set "score above a threshold" with at most a share `fpr` of non-members.

    Equal scores are in the set together or not at all, so ties never flatter.

    Args:
        fpr: in (0, 1). The others, and errors, as for `membership`.
    """
    if not 0 < fpr < 1:
        raise ValueError(f"fpr {fpr}: expected a number between 0 and 1")
    return _rate_at(*_sides(scores, is_member), fpr, confidence)


def balanced_accuracy(scores: Tensor, is_member: Tensor, seed: int = 0, confidence: float = 0.95) -> Balanced:
    """Balanced accuracy and advantage, threshold from one half, rates from the other.

    Arguments and errors as for `membership`.
    """
    return _balanced(*_sides(scores, is_member), seed, confidence)


def epsilon_lower(scores: Tensor, is_member: Tensor, delta: float, confidence: float = 0.95, seed: int = 0) -> float:
    """An epsilon >= 0 that the scores point at: the larger lower bound of two log ratios.

    They are log((TPR - delta) / FPR) and log((TNR - delta) / FNR). A threshold for each is chosen on
    one half. Clopper-Pearson bounds on the other half, TPR and TNR from below and FPR and FNR from above, hold together
    at the confidence asked for.

    An indication, no proof: differential privacy speaks of one record over many trainings, and these are many records
    of one training, whose scores depend on each other. Members that are easier than non-members without any training
    raise it as well. `bench.pipeline.canary_audit` has the bound that holds.

    Args:
        delta: in [0, 1). The others, and errors, as for `membership`.
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta {delta}: expected a number in [0, 1)")
    _check_confidence(confidence)
    members, others = _sides(scores, is_member)
    inside, outside = _halves(members, seed, "members"), _halves(others, seed, "others")
    upwards = _tested_bound(inside, outside, delta, confidence)
    downwards = _tested_bound(_flipped(outside), _flipped(inside), delta, confidence)
    return max(0.0, upwards, downwards)


def gap_auc(right: Tensor, is_member: Tensor) -> float:
    """AUC of the gap attack, which calls (n,) records members where the target is right: half of 1 + the accuracy on
    members less that on others (Yeom et al., CSF 2018). `is_member` as for `membership`."""
    members, others = _sides(right.double(), is_member)
    return float(0.5 + (members.mean() - others.mean()) / 2)


def membership_power(
    teacher: Membership,
    random: Membership,
    gain_low: float | None = None,
    names: tuple[str, str] = ("undefended teacher", "random network"),
) -> MembershipPower:
    """Pass if the attack's AUC on the undefended teacher is at least `LEAST_AUC` and its interval above 0.5, and the
    interval on a network with random weights is not; and it is larger than on a network that saw no suspect.

    An attack that is weaker where nothing defends could not tell a student that leaks most of it from one that leaks
    nothing: of 2 x 300 suspects the interval is 0.09 wide.

    Args:
        teacher, random: the same attack on either.
        gain_low: lower end of `auc_gain` of the teacher; None where there is no such network.
        names: what they are, where they are others.
    """
    target = names[0].removeprefix("undefended ")
    on_teacher = f"AUC {teacher.auc:.3f} [{teacher.auc_low:.3f}, {teacher.auc_high:.3f}] on the {target}"
    on_random = f"{random.auc:.3f} [{random.auc_low:.3f}, {random.auc_high:.3f}] on a {names[1]}"
    if teacher.auc_low <= 0.5:
        return MembershipPower(False, f"The attack does not beat chance on the {names[0]}: {on_teacher}.")
    if random.auc_low > 0.5:
        kind = names[1].removeprefix("random ")
        reason = f"The attack also beats chance on a {kind} that knows nothing: {on_teacher}, and {on_random}."
        return MembershipPower(False, reason)
    if teacher.auc < LEAST_AUC:
        reason = f"The attack is too weak on the {names[0]} for a 0.5 elsewhere to say anything: {on_teacher}"
        return MembershipPower(False, f"{reason}; at least {LEAST_AUC:.2f} is expected.")
    if gain_low is not None and gain_low <= 0:
        reason = f"The attack finds as much in a network that saw none of the suspects: {on_teacher}"
        return MembershipPower(False, f"{reason}, at least {gain_low:+.3f} more.")
    return MembershipPower(True, f"The attack works: {on_teacher}, against {on_random}.")


def _sides(scores: Tensor, is_member: Tensor) -> tuple[Floats, Floats]:
    """The scores of members and of non-members, each ascending."""
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


def _placements(scores: Tensor, is_member: Tensor) -> tuple[Floats, Floats]:
    """Of each member the share of others that it lies above, of each other one the share of members above it, in the
    order of the records; half of those it ties with. Raises ValueError as `_sides`."""
    from scipy.stats import rankdata

    _sides(scores, is_member)
    values, member = scores.detach().cpu().double().numpy(), is_member.cpu().numpy()
    ranks = rankdata(values)
    m, n = int(member.sum()), int((~member).sum())
    below_members = (ranks[member] - rankdata(values[member])) / n
    above_others = 1 - (ranks[~member] - rankdata(values[~member])) / m
    return below_members, above_others


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: expected a number between 0 and 1")


def _auc(members: Floats, others: Floats, confidence: float) -> tuple[float, float, float]:
    from scipy.stats import rankdata  # here: it takes a second to import, and few commands rank

    _check_confidence(confidence)
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    below_members, below_others = ranks[:m] - rankdata(members), ranks[m:] - rankdata(others)
    auc = float(below_members.sum() / (m * n))
    if not (np.ptp(below_members) or np.ptp(below_others)):
        return auc, *_divergence_interval(auc, min(m, n), confidence)
    variance = below_members.var(ddof=1) / (n**2 * m) + below_others.var(ddof=1) / (m**2 * n)
    reach = ndtri((1 + confidence) / 2) * math.sqrt(variance) / (auc * (1 - auc))
    centre = math.log(auc / (1 - auc))
    return auc, _expit(centre - reach), _expit(centre + reach)


def _expit(x: float) -> float:
    return math.exp(-np.logaddexp(0, -x))


def _divergence_interval(share: float, k: int, confidence: float) -> tuple[float, float]:
    """Ends of the set of theta with k kl(share, theta) <= log(2 / (1 - confidence)), by halving."""
    allowed = math.log(2 / (1 - confidence)) / k
    ends = []
    for far in (0.0, 1.0):
        inside, outside = share, far
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if _kl(share, middle) <= allowed else (inside, middle)
        ends.append(outside)
    return ends[0], ends[1]


def _kl(p: float, q: float) -> float:
    """Divergence in nats of a coin p from a coin q."""
    first = p * math.log(p / q) if p > 0 and q > 0 else (math.inf if p > 0 else 0.0)
    second = (1 - p) * math.log((1 - p) / (1 - q)) if p < 1 and q < 1 else (math.inf if p < 1 else 0.0)
    return first + second


def _rate_at(members: Floats, others: Floats, limit: float, confidence: float) -> RateAt:
    allowed = min(len(others) - 1, math.floor(limit * len(others) * (1 + _ROUNDING)))
    threshold = others[len(others) - 1 - allowed]
    above = int((members > threshold).sum())
    low, high = _rate_interval(members, others, limit, confidence)
    return RateAt(limit, above / len(members), low, high, float((others > threshold).mean()), allowed >= 1)


def _rate_interval(members: Floats, others: Floats, limit: float, confidence: float) -> tuple[float, float]:
    """Of P(member > t), t the smallest with P(other > t) <= limit. Half of the error is for t, half for the members.

    Of n others, Binomial(n, at most limit) are above t and Binomial(n, at least limit) are at t or above. So t lies
    between two of their order statistics, and the members' share is counted at either.
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
    """(a, b) with P(X < a) and P(X > b) at most half of 1 - confidence each, for X of n trials at p."""
    from scipy.stats import binom  # here: it takes a second to import, and few commands need it

    tail = (1 - confidence) / 2
    # ppf(q) is the smallest k with P(X <= k) >= q, so that P(X < ppf(tail)) < tail
    return int(binom.ppf(tail, n, p)), int(binom.ppf(1 - tail, n, p))


def _balanced(members: Floats, others: Floats, seed: int, confidence: float) -> Balanced:
    _check_confidence(confidence)
    (choose_in, test_in), (choose_out, test_out) = _halves(members, seed, "members"), _halves(others, seed, "others")
    thresholds = _thresholds(choose_in, choose_out)
    gain = _share_from(choose_in, thresholds) - _share_from(choose_out, thresholds)
    threshold = thresholds[int(gain.argmax())]
    hits, false = int((test_in >= threshold).sum()), int((test_out >= threshold).sum())
    tpr, fpr = hits / len(test_in), false / len(test_out)
    each = 1 - (1 - confidence) / 2
    tpr_low, tpr_high = clopper_pearson(hits, len(test_in), each)
    fpr_low, fpr_high = clopper_pearson(false, len(test_out), each)
    low, high = (tpr_low + 1 - fpr_high) / 2, (tpr_high + 1 - fpr_low) / 2
    return Balanced((tpr + 1 - fpr) / 2, low, high, tpr - fpr, tpr, fpr)


def _halves(ascending: Floats, seed: int, name: str) -> Halves:
    """Two random halves, each ascending; the second has one more where the number is odd."""
    order = np.random.default_rng(derive(seed, "membership-halves", name)).permutation(len(ascending))
    half = len(ascending) // 2
    return np.sort(ascending[order[:half]]), np.sort(ascending[order[half:]])


def _thresholds(members: Floats, others: Floats) -> Floats:
    """The scores seen, from the highest; "score >= threshold" says member."""
    return np.unique(np.concatenate([members, others]))[::-1]


def _share_from(ascending: Floats, thresholds: Floats) -> Floats:
    return 1 - np.searchsorted(ascending, thresholds, side="left") / len(ascending)


def _flipped(halves: Halves) -> Halves:
    return -halves[0][::-1], -halves[1][::-1]


def _tested_bound(likely: Halves, unlikely: Halves, delta: float, confidence: float) -> float:
    """log((P[likely >= t] - delta) / P[unlikely >= t]) from below, or -inf; two of these hold together."""
    threshold = _best_bound(likely[0], unlikely[0], delta)
    each = 1 - (1 - confidence) / 2
    low, _ = clopper_pearson(int((likely[1] >= threshold).sum()), len(likely[1]), each)
    _, high = clopper_pearson(int((unlikely[1] >= threshold).sum()), len(unlikely[1]), each)
    return math.log((low - delta) / high) if low > delta else -math.inf


def _best_bound(likely: Floats, unlikely: Floats, delta: float) -> float:
    """The threshold t with the largest lower bound on log((P[likely >= t] - delta) / P[unlikely >= t])."""
    thresholds = _thresholds(likely, unlikely)
    tail = (1 - _CHOOSING_CONFIDENCE) / 2
    hits, false = (np.rint(_share_from(x, thresholds) * len(x)) for x in (likely, unlikely))
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), len(likely) - hits + 1, tail), 0.0)
    rest = np.maximum(len(unlikely) - false, 0.5)
    high = np.where(false < len(unlikely), betaincinv(false + 1, rest, 1 - tail), 1.0)
    bound = np.log(np.maximum(low - delta, 1e-300)) - np.log(high)
    return float(thresholds[int(bound.argmax())])
