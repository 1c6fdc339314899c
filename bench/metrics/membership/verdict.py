"""All numbers of one membership attack on one model, and whether the attack has shown its power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.metrics.levels import LEAST_AUC
from bench.metrics.membership.auc import area
from bench.metrics.membership.rates import Balanced, RateAt, best_balanced, rate_at
from bench.metrics.membership.sides import sides

if TYPE_CHECKING:
    from torch import Tensor


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
