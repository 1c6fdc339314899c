"""All metrics of one membership attack on one model, and the check that the attack works without a defence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.core.verdict import GUESSING, Success, exceeds
from bench.metrics.levels import LEAST_AUC
from bench.metrics.membership.auc import area
from bench.metrics.membership.rates import Balanced, RateAt, best_balanced, rate_at, sides

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Membership:
    """Metrics of one membership attack on one model.

    Attributes:
        members, non_members: numbers of scored records.
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
    """Whether one membership attack is strong enough, for a data set and split, to be evidence about a defence.

    Attributes:
        passed: True if a failure of this attack on a student is evidence for the defence.
        reason: explanation in a sentence.
    """

    passed: bool
    reason: str


def membership(scores: Tensor, is_member: Tensor, seed: int = 0, confidence: float = 0.95) -> Membership:
    """Compute all metrics of one attack.

    Args:
        scores: (n,) any float type, higher for members.
        is_member: (n,) bool, at least 2 true and 2 false.
        seed: of the halves for the balanced accuracy.
        confidence: in (0, 1), of each interval separately.

    Raises:
        ValueError: wrong shapes or types, too few records on a side, or a score that is NaN or infinite.
    """
    members, others = sides(scores, is_member)
    auc, low, high = area(members, others, confidence)
    rates = [rate_at(members, others, limit, confidence) for limit in (0.01, 0.001)]
    balanced = best_balanced(members, others, seed, confidence)
    return Membership(len(members), len(others), auc, low, high, rates[0], rates[1], balanced)


def membership_power(
    teacher: Membership,
    random: Membership,
    gain_low: float | None = None,
    names: tuple[str, str] = ("undefended teacher", "random network"),
) -> MembershipPower:
    """Check that the attack works on the undefended teacher, and not on networks that never saw the suspects.

    It passes if its AUC on the undefended teacher is at least `LEAST_AUC` with an interval above 0.5, its interval on a
    network with random weights is not above 0.5, and its AUC is larger than on a network that saw no suspect. A weaker
    attack could not distinguish a student that leaks most of the membership information from one that leaks nothing:
    with 2 x 300 suspects the interval is 0.09 wide.

    Args:
        teacher, random: the same attack's metrics on both networks.
        gain_low: lower end of `auc_gain` of the teacher; None without a network that saw no suspect.
        names: names of the two networks for the message.
    """
    target = names[0].removeprefix("undefended ")
    on_teacher = f"AUC {teacher.auc:.3f} [{teacher.auc_low:.3f}, {teacher.auc_high:.3f}] on the {target}"
    on_random = f"{random.auc:.3f} [{random.auc_low:.3f}, {random.auc_high:.3f}] on a {names[1]}"
    if not exceeds(Success(teacher.auc_low), GUESSING):
        return MembershipPower(False, f"The attack does not beat chance on the {names[0]}: {on_teacher}.")
    if exceeds(Success(random.auc_low), GUESSING):
        kind = names[1].removeprefix("random ")
        reason = f"The attack also beats chance on a {kind} that knows nothing: {on_teacher}, and {on_random}."
        return MembershipPower(False, reason)
    if teacher.auc < LEAST_AUC:
        reason = f"The attack is too weak on the {names[0]} for a 0.5 elsewhere to say anything: {on_teacher}"
        return MembershipPower(False, f"{reason}; at least {LEAST_AUC:.2f} is expected.")
    if gain_low is not None and not exceeds(Success(gain_low)):
        reason = f"The attack finds as much in a network that saw none of the suspects: {on_teacher}"
        return MembershipPower(False, f"{reason}, at least {gain_low:+.3f} more.")
    return MembershipPower(True, f"The attack works: {on_teacher}, against {on_random}.")
