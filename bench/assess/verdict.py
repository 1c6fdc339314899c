"""The verdict: release, do not release, or cannot tell, from the numbers and a policy."""

from __future__ import annotations

from dataclasses import dataclass

from bench.assess.policy import INVERSION, Policy
from bench.assess.schema import AttackResult, Claim, Copies, Decision, Interval, Inversion, ModelFreeBaseline, Verdict
from bench.core.verdict import Conclusion, Success, conclude, exceeds, has_power, is_within

AT = 0.01
"""The false positive rate at which policies limit the true positive rate."""
DECISIONS: dict[Conclusion, Decision] = {
    "leaks": "do not release",
    "no-leak-found": "release",
    "cannot-tell": "cannot tell",
}
"""The decision that follows from each conclusion of `bench.core.verdict`."""


@dataclass(frozen=True)
class Evidence:
    """All evidence for a verdict.

    Attributes:
        members, others: numbers of records or groups, without removed copies.
        unit: "record" or "group".
        attacks: at least one.
        blind, copies: results of these checks; None if they were not made.
        claim: the test of a claimed epsilon; None without a claim.
        inversion: the test of class inversion; None if it was not made.
    """

    members: int
    others: int
    unit: str
    attacks: tuple[AttackResult, ...]
    blind: ModelFreeBaseline | None
    copies: Copies | None
    claim: Claim | None
    inversion: Inversion | None = None


def excesses(attack: AttackResult, policy: Policy) -> list[str]:
    """Return the maxima of a policy that an attack exceeds significantly: its lower confidence limit is above them."""
    found = []
    rate = rate_at_1(attack)
    if exceeds(_success(attack.auc), policy.auc_max):
        found.append(f"AUC {_shown(attack.auc)} of {attack.name} is above {policy.auc_max:g}")
    if rate is not None and exceeds(_success(rate), policy.tpr_at_fpr_1pct_max):
        found.append(
            f"{attack.name} identifies {_percent(rate)} of the members at a false positive rate of 1 %; at most "
            f"{policy.tpr_at_fpr_1pct_max:.1%} is tolerated"
        )
    if policy.epsilon_lower_max is not None and exceeds(Success(attack.epsilon_lower), policy.epsilon_lower_max):
        found.append(
            f"the lower bound on epsilon by {attack.name}, {attack.epsilon_lower:.2f}, is above "
            f"{policy.epsilon_lower_max:g}"
        )
    return found


def gate_inversion(found: Inversion, policy: Policy) -> Inversion:
    """Return the test of class inversion with its power: on the control it finds a gain that the policy forbids."""
    if not found.beats_chance:
        return found
    most = policy.inversion_gain_max or 0.0
    if has_power(_success(found.control_gain, found.control_p), most):
        return found.model_copy(update={"has_power": True})
    reason = (
        f"on the unprotected control {found.control_shown:.1%} of the reconstructions show their class, and "
        f"{found.control_baseline_shown:.1%} of the baseline, {found.baseline}"
    )
    if not found.are_classes_private:
        reason += "; if the look of a class is private, such as a face, give --private-classes"
    return found.model_copy(update={"reason": reason})


def _excess_of_inversion(found: Inversion | None, policy: Policy) -> list[str]:
    """Return the maximum that class inversion exceeds. It counts only for an attack with power, as in `bench run`."""
    if found is None or policy.inversion_gain_max is None:
        return []
    is_leak = bool(exceeds(_success(found.gain, found.p), policy.inversion_gain_max))
    if conclude(is_leak, found.has_power, needs_power_to_leak=True) != "leaks":
        return []
    return [
        f"images reconstructed from the model show their class more often than {found.baseline}: {found.shown:.1%} "
        f"against {found.baseline_shown:.1%}, a gain of {_shown(found.gain)}; at most {policy.inversion_gain_max:g} is "
        "tolerated"
    ]


def rate_at_1(attack: AttackResult) -> Interval | None:
    """Return the true positive rate at a false positive rate of 1 %; None if it cannot be measured."""
    return next(rate.tpr for rate in attack.rates if rate.fpr == AT)


def decide(evidence: Evidence, policy: Policy) -> Verdict:
    """Decide the verdict, with its reasons.

    The order of decisions is that of `bench.core.verdict.conclude`, as for a run:

    1. Sets that differ without the model: cannot tell, for any result of the attacks.
    2. A lower confidence limit above a maximum of the policy, or a refuted claim: do not release.
    3. A required test was not made or not met, or an upper confidence limit is above its maximum: cannot tell.
    4. Otherwise: release.
    """
    against = _against(evidence, policy)
    missing = [*_not_tested(evidence, policy), *_too_wide(evidence, policy)]
    power = "power" not in policy.require or any(attack.has_power for attack in evidence.attacks)
    blind = evidence.blind
    conclusion = conclude(bool(against), power, not (blind is not None and blind.differs), not missing)
    if blind is not None and blind.differs:
        reasons = [
            "your two sets differ: a classifier that never saw the model separates members and non-members with an AUC "
            f"of {blind.auc:.3f} (p = {blind.p:.2g}), mostly by {', '.join(blind.clues)}. No attack's success can be "
            "attributed to the model; draw non-members from the source of the members"
        ]
    elif against or missing:
        reasons = against or missing
    else:
        reasons = _no_evidence(evidence, policy)
    sentences = tuple(f"{reason[0].upper()}{reason[1:]}." for reason in reasons)
    return Verdict(decision=DECISIONS[conclusion], reasons=sentences)


def _against(evidence: Evidence, policy: Policy) -> list[str]:
    """Return the reasons against a release: the refuted claim, and the maxima that are exceeded."""
    found = [reason for attack in evidence.attacks for reason in excesses(attack, policy)]
    found += _excess_of_inversion(evidence.inversion, policy)
    claim = evidence.claim
    if claim is not None and claim.finding == "refuted" and policy.epsilon_claim_must_hold:
        found.insert(0, claim.sentence.removesuffix("."))
    return found


def _no_evidence(evidence: Evidence, policy: Policy) -> list[str]:
    """Return the reasons for a release."""
    tested = any(attack.has_power for attack in evidence.attacks)
    power = ", which have shown that they work on an unprotected copy" if tested else " (their power was not shown)"
    names = ", ".join(attack.name for attack in evidence.attacks)
    limits = f"AUC at most {policy.auc_max:g}, true positive rate at a false positive rate of 1 % at most "
    limits += f"{policy.tpr_at_fpr_1pct_max:.1%}"
    if evidence.inversion is not None and evidence.inversion.has_power and policy.inversion_gain_max is not None:
        limits += f", gain of reconstructed classes at most {policy.inversion_gain_max:g}"
    return [
        f"no evidence of leakage beyond the policy '{policy.name}' by these attacks{power}: {names}",
        f"all upper limits are within the policy: {limits}",
    ]


def _not_tested(evidence: Evidence, policy: Policy) -> list[str]:
    """Return the requirements of the policy that were not tested or not met."""
    found = []
    if policy.unit == "group" and evidence.unit != "group":
        found.append(f"the policy '{policy.name}' judges groups, such as patients, and no groups were given (--groups)")
    least = min(evidence.members, evidence.others)
    if least < policy.min_members:
        found.append(
            f"{evidence.members} members and {evidence.others} non-members ({evidence.unit}s) are fewer than the "
            f"{policy.min_members} that the policy '{policy.name}' needs"
        )
    names = {attack.name for attack in evidence.attacks}
    for name in policy.require:
        if name == "blind-baseline" and evidence.blind is None:
            found.append("the baseline without the model could not be made, and the policy requires it")
        elif name == "copies" and evidence.copies is None:
            found.append("copies between the two sets were not looked for, and the policy requires it")
        elif name == "power" and all(attack.has_power is None for attack in evidence.attacks):
            found.append(
                "no unprotected copy could be made on which attacks show their power, and the policy requires it"
            )
        elif name == "power" and not any(attack.has_power for attack in evidence.attacks):
            found.append("no attack succeeds on the unprotected control: these attacks cannot tell here")
        elif name == INVERSION and evidence.inversion is not None:
            if not evidence.inversion.has_power:
                found.append(
                    f"class inversion cannot tell here, and the policy requires it: {evidence.inversion.reason}"
                )
        elif name not in ("blind-baseline", "copies", "power") and name not in names:
            found.append(f"the attack {name} did not run, and the policy requires it")
    return found


def _too_wide(evidence: Evidence, policy: Policy) -> list[str]:
    """Return, for each number, the largest upper confidence limit that is above a maximum of the policy."""
    found = []
    widest = max(evidence.attacks, key=lambda attack: attack.auc.high)
    if not is_within(_success(widest.auc), policy.auc_max):
        found.append(
            f"the AUC of {widest.name}, {_shown(widest.auc)}, may be above {policy.auc_max:g}; "
            "more records would narrow it"
        )
    rates = [(attack, rate) for attack in evidence.attacks if (rate := rate_at_1(attack)) is not None]
    if not rates:
        found.append("the true positive rate at 1 % cannot be measured with fewer than 299 non-members")
    else:
        attack, rate = max(rates, key=lambda pair: pair[1].high)
        if not is_within(_success(rate), policy.tpr_at_fpr_1pct_max):
            found.append(
                f"the true positive rate of {attack.name} at a false positive rate of 1 %, {_percent(rate)}, may be "
                f"above {policy.tpr_at_fpr_1pct_max:.1%}; more records would narrow it"
            )
    return found + _doubts_of_inversion(evidence.inversion, policy.inversion_gain_max)


def _doubts_of_inversion(found: Inversion | None, most: float | None) -> list[str]:
    """Return why a gain of class inversion neither exceeds its maximum for certain nor is within it."""
    if found is None or most is None:
        return []
    if found.has_power and not is_within(_success(found.gain), most):
        return [f"the gain of class inversion, {_shown(found.gain)}, may be above {most:g}"]
    if not found.has_power and exceeds(_success(found.gain, found.p), most):
        return [
            f"the gain of class inversion, {_shown(found.gain)}, is above {most:g}, and this attack has not shown its "
            f"power: {found.reason}"
        ]
    return []


def _success(found: Interval, p: float | None = None) -> Success:
    return Success(found.low, found.high, p)


def _shown(found: Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _percent(found: Interval) -> str:
    return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"
