"""Decisions from attacks, the same for `bench run` and `bench assess`, and the conclusion of a run's attack.

- Significance: `is_significant` of a p-value, `exceeds` and `is_within` of confidence limits.
- Baseline comparison: `exceeds` compares the success of an attack with the success that needs no private data.
- Power gate: `has_power` requires that the attack succeeds on an unprotected network.
- Claims: `is_refuted` compares a lower bound on epsilon with a claimed epsilon.
- `conclude` is the order of the decisions.

No verdict proves privacy. Only the accounted epsilon is a guarantee; a verdict speaks of one attack on one release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.core.results import UNPROTECTED, UNTRAINED, WITHOUT_MODEL

if TYPE_CHECKING:
    from bench.core.records import RunRecord

Conclusion = Literal["leaks", "no-leak-found", "cannot-tell"]
Finding = Literal["leaks", "no-leak-found", "cannot-tell", "not-attacked", "failed"]
SIGNIFICANCE = 0.05
"""Significance level of every test on attacks: p-values up to it count as evidence."""
GUESSING = 0.5
"""AUC of an attacker who guesses."""


@dataclass(frozen=True)
class Success:
    """The success of an attack on one network: an AUC, a rate, a bound on epsilon, or a gain over a baseline.

    Attributes:
        low, high: confidence limits; None if there is none.
        p: p-value of the test for a gain above 0; None if only the limits decide.
    """

    low: float | None
    high: float | None = None
    p: float | None = None


def is_significant(p: float) -> bool:
    """Return whether a p-value counts as evidence.

    >>> [is_significant(p) for p in (0.01, 0.05, 0.051)]
    [True, True, False]
    """
    return p <= SIGNIFICANCE


def exceeds(found: Success, most: float = 0.0) -> bool | None:
    """Return whether a success is significantly above `most`; None if it was not measured.

    The lower confidence limit must be above `most`. A p-value, which tests for a gain above 0, must be significant too;
    at `most` 0 only the p-value decides.

    >>> [exceeds(Success(0.55), most) for most in (0.5, 0.6)]
    [True, False]
    """
    if found.p is not None and (most == 0 or not is_significant(found.p)):
        return is_significant(found.p)
    return None if found.low is None else found.low > most


def is_within(found: Success, most: float) -> bool:
    """Return whether the upper confidence limit of a success is at most `most`; True if none was given."""
    return found.high is None or found.high <= most


def has_power(unprotected: Success, most: float = 0.0, untrained: Success | None = None) -> bool | None:
    """Return whether an attack has power: it succeeds on an unprotected network, and not on an untrained one.

    Args:
        unprotected: its success on the unprotected network.
        most: the success that is tolerated, as in `exceeds`.
        untrained: its success on a network that saw no private record; None if that was not measured.

    Returns:
        None if its success on the unprotected network was not measured.
    """
    works = exceeds(unprotected, most)
    return works and not (untrained is not None and exceeds(untrained, most))


def is_refuted(epsilon: float, bound: float) -> bool:
    """Return whether a lower bound on epsilon refutes a claimed or accounted epsilon of the same unit and delta.

    >>> [is_refuted(1.0, bound) for bound in (0.5, 1.5)]
    [False, True]
    """
    return bound > epsilon


def conclude(
    is_leak: bool,
    power: bool | None,
    is_comparable: bool = True,
    is_complete: bool = True,
    needs_power_to_leak: bool = False,
) -> Conclusion:
    """Return the conclusion from an attack, or from several.

    1. Its baseline succeeds too, such as a network or a classifier that saw no private record: cannot tell.
    2. The release leaks significantly: leaks. Power is not needed, since a failure elsewhere does not undo a success.
       It is needed if the baseline is an estimate for this network, as the attacker's own images that it prefers.
    3. No power was shown, an upper limit is too high, or a required test is missing: cannot tell.
    4. Otherwise no leak was found.

    Args:
        is_leak: whether the success on the release exceeds its limit.
        power: whether the attack works on an unprotected network; None if that is not known.
        is_comparable: whether the baseline without private records fails, as it should.
        is_complete: whether upper limits are within their maxima and all required tests were made.
        needs_power_to_leak: whether a success counts only for an attack with power.
    """
    if not is_comparable:
        return "cannot-tell"
    if is_leak and (power or not needs_power_to_leak):
        return "leaks"
    return "no-leak-found" if power and is_complete else "cannot-tell"


@dataclass(frozen=True)
class Verdict:
    """The conclusion of a run's attack about its release.

    Attributes:
        finding: "leaks": the attack recovered more than an attacker recovers without private data; "no-leak-found": it
            did not, and it has shown that it works on the unprotected teacher; "cannot-tell": it has not shown that.
        sentence: the finding and its reason, for display.
    """

    finding: Finding
    sentence: str


NOTHING_FOUND = Verdict(
    "no-leak-found",
    "No evidence of leakage by this attack, which works on the unprotected teacher. This does not prove privacy.",
)


def decide(record: RunRecord) -> Verdict:
    """Decide the verdict of a record from its numbers only."""
    if record.status == "failed":
        return Verdict("failed", f"The run failed: {record.reason}")
    if record.spec.attack is None:
        return Verdict("not-attacked", "Not attacked. Name an attack with --attack, see `bench list attacks`.")
    if record.status == "skipped":
        return Verdict("cannot-tell", f"This attack cannot tell. {record.reason}")
    weakness = "" if record.status == "ok" else record.reason
    decide_attack = decide_membership if "auc" in record.metrics else decide_inversion
    return decide_attack(record.metrics, weakness)


def decide_membership(metrics: Mapping[str, float | None], weakness: str = "") -> Verdict:
    """Decide whether members of the training set were distinguished from other records better than by guessing.

    The AUC on a network trained on none of the records (`auc_gain`) is subtracted where it was measured: members and
    other records may differ by themselves. For the same reason the AUC on an untrained network and that of a classifier
    without any model (`blind_auc`) must not exceed that of guessing.

    Args:
        weakness: why the attack has no power; "" if it has.
    """
    is_leak = exceeds(Success(metrics.get("auc.lo")), GUESSING)
    if is_leak is None:
        return Verdict("cannot-tell", "This attack cannot tell: its AUC on the release could not be computed.")
    is_leak &= exceeds(Success(metrics.get("auc_gain.lo"))) is not False
    is_comparable = not any(
        exceeds(Success(metrics.get(f"{prefix}auc.lo")), GUESSING) for prefix in (UNTRAINED, WITHOUT_MODEL)
    )
    finding = conclude(is_leak, not weakness, is_comparable)
    if finding == "leaks":
        return Verdict(
            finding, "Leaks: from the student, this attack identifies training records better than guessing."
        )
    if finding == "no-leak-found":
        return NOTHING_FOUND
    return Verdict(finding, f"This attack cannot tell. {weakness or 'It also succeeds on an untrained network.'}")


def decide_inversion(metrics: Mapping[str, float | None], weakness: str = "") -> Verdict:
    """Decide whether reconstructions show private classes more often than the attacker's own images.

    The own images are those that the attacked network prefers. They are a weak baseline for a network at chance level,
    so that a success counts only for an attack that also succeeds on the unprotected teacher. With too few classes for
    a p-value, the 95 % interval of the difference decides.

    Args:
        weakness: as in `decide_membership`.
    """
    on_teacher, on_student = (
        Success(metrics.get(f"{prefix}above_floor.lo"), p=metrics.get(f"{prefix}floor_p"))
        for prefix in (UNPROTECTED, "")
    )
    works = has_power(on_teacher)
    finding = conclude(bool(exceeds(on_student)), works and not weakness, needs_power_to_leak=True)
    if finding == "leaks":
        return Verdict(finding, "Leaks: images made from the student show more than the attacker's own images.")
    if finding == "no-leak-found":
        return NOTHING_FOUND
    if weakness:
        return Verdict(finding, f"This attack cannot tell. {weakness}")
    if works is None:
        return Verdict(finding, "This attack cannot tell: it was not compared with the attacker's own images.")
    return Verdict(
        finding,
        "This attack cannot tell: even from the unprotected teacher it recovers no more than the attacker's own images "
        "show.",
    )
