"""The verdict: release, do not release, or cannot tell, from the numbers and a policy."""

from __future__ import annotations

from dataclasses import dataclass

from bench.assess.policy import Policy
from bench.assess.schema import AttackResult, Claim, Copies, Interval, ModelFreeBaseline, Verdict

AT = 0.01
"""The false positive rate at which policies limit the true positive rate."""


@dataclass(frozen=True)
class Evidence:
    """All evidence for a verdict.

    Attributes:
        members, others: numbers of records or groups, without removed copies.
        unit: "record" or "group".
        attacks: at least one.
        blind, copies: results of these checks; None if they were not made.
        claim: the test of a claimed epsilon; None without a claim.
    """

    members: int
    others: int
    unit: str
    attacks: tuple[AttackResult, ...]
    blind: ModelFreeBaseline | None
    copies: Copies | None
    claim: Claim | None


def exceeds(attack: AttackResult, policy: Policy) -> list[str]:
    """Return the maxima of a policy that an attack exceeds significantly: its lower confidence limit is above them."""
    found = []
    rate = rate_at_1(attack)
    if attack.auc.low > policy.auc_max:
        found.append(f"AUC {_shown(attack.auc)} of {attack.name} is above {policy.auc_max:g}")
    if rate is not None and rate.low > policy.tpr_at_fpr_1pct_max:
        found.append(
            f"{attack.name} identifies {_percent(rate)} of the members at a false positive rate of 1 %; at most "
            f"{policy.tpr_at_fpr_1pct_max:.1%} is tolerated"
        )
    if policy.epsilon_lower_max is not None and attack.epsilon_lower > policy.epsilon_lower_max:
        found.append(
            f"the lower bound on epsilon by {attack.name}, {attack.epsilon_lower:.2f}, is above "
            f"{policy.epsilon_lower_max:g}"
        )
    return found


def rate_at_1(attack: AttackResult) -> Interval | None:
    """Return the true positive rate at a false positive rate of 1 %; None if it cannot be measured."""
    return next(rate.tpr for rate in attack.rates if rate.fpr == AT)


def decide(evidence: Evidence, policy: Policy) -> Verdict:
    """Decide the verdict, with its reasons.

    1. Sets that differ without the model: cannot tell, for any result of the attacks.
    2. A lower confidence limit above a maximum of the policy, or a refuted claim: do not release.
    3. All upper confidence limits within the maxima, and all required tests made and met: release.
    4. Otherwise: cannot tell.
    """
    if evidence.blind is not None and evidence.blind.differs:
        clues = ", ".join(evidence.blind.clues)
        return Verdict(
            decision="cannot tell",
            reasons=(
                f"Your two sets differ: a classifier that never saw the model separates members and non-members "
                f"with an AUC of {evidence.blind.auc:.3f} (p = {evidence.blind.p:.2g}), mostly by {clues}. No "
                "attack's success can be attributed to the model; draw non-members from the source of the members.",
            ),
        )
    against = [reason for attack in evidence.attacks for reason in exceeds(attack, policy)]
    refuted = evidence.claim is not None and evidence.claim.finding == "refuted"
    if refuted and policy.epsilon_claim_must_hold and evidence.claim is not None:
        against.insert(0, evidence.claim.sentence.removesuffix("."))
    if against:
        return Verdict(decision="do not release", reasons=tuple(_sentence(reason) for reason in against))
    missing = [*_not_tested(evidence, policy), *_too_wide(evidence, policy)]
    if missing:
        return Verdict(decision="cannot tell", reasons=tuple(_sentence(reason) for reason in missing))
    tested = any(attack.has_power for attack in evidence.attacks)
    power = ", which have shown that they work on an unprotected copy" if tested else " (their power was not shown)"
    names = ", ".join(attack.name for attack in evidence.attacks)
    return Verdict(
        decision="release",
        reasons=(
            f"No evidence of leakage beyond the policy '{policy.name}' by these attacks{power}: {names}.",
            f"All upper limits are within the policy: AUC at most {policy.auc_max:g}, true positive rate at a false "
            f"positive rate of 1 % at most {policy.tpr_at_fpr_1pct_max:.1%}.",
        ),
    )


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
        elif name not in ("blind-baseline", "copies", "power") and name not in names:
            found.append(f"the attack {name} did not run, and the policy requires it")
    return found


def _too_wide(evidence: Evidence, policy: Policy) -> list[str]:
    """Return, for each number, the largest upper confidence limit that is above a maximum of the policy."""
    found = []
    widest = max(evidence.attacks, key=lambda attack: attack.auc.high)
    if widest.auc.high > policy.auc_max:
        found.append(
            f"the AUC of {widest.name}, {_shown(widest.auc)}, may be above {policy.auc_max:g}; "
            "more records would narrow it"
        )
    rates = [(attack, rate) for attack in evidence.attacks if (rate := rate_at_1(attack)) is not None]
    if not rates:
        found.append("the true positive rate at 1 % cannot be measured with fewer than 299 non-members")
    else:
        attack, rate = max(rates, key=lambda pair: pair[1].high)
        if rate.high > policy.tpr_at_fpr_1pct_max:
            found.append(
                f"the true positive rate of {attack.name} at a false positive rate of 1 %, {_percent(rate)}, may be "
                f"above {policy.tpr_at_fpr_1pct_max:.1%}; more records would narrow it"
            )
    return found


def _shown(found: Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _percent(found: Interval) -> str:
    return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
