"""The conclusion from an attack on a release: it leaks, no leak was found, or the attack cannot tell.

No verdict proves privacy. Only the accounted epsilon is a guarantee; a verdict speaks of one attack on one release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.core.results import UNPROTECTED

if TYPE_CHECKING:
    from bench.core.records import RunRecord

Finding = Literal["leaks", "no-leak-found", "cannot-tell", "not-attacked", "failed"]
SIGNIFICANCE = 0.05
"""Significance level of every test on attacks: p-values below it count as evidence."""
GUESSING = 0.5
"""AUC of an attacker who guesses."""


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
    if record.status != "ok":
        return Verdict("cannot-tell", f"This attack cannot tell. {record.reason}")
    return decide_membership(record.metrics) if "auc" in record.metrics else decide_inversion(record.metrics)


def decide_membership(metrics: Mapping[str, float | None]) -> Verdict:
    """Decide whether members of the training set were distinguished from other records better than by guessing.

    The AUC on a network trained on none of the records (`auc_gain`) is subtracted where it was measured: members and
    other records may differ by themselves.
    """
    low, gain = metrics.get("auc.lo"), metrics.get("auc_gain.lo")
    if low is None:
        return Verdict("cannot-tell", "This attack cannot tell: its AUC on the release could not be computed.")
    if low > GUESSING and (gain is None or gain > 0):
        return Verdict(
            "leaks", "Leaks: from the student, this attack identifies training records better than guessing."
        )
    return NOTHING_FOUND


def decide_inversion(metrics: Mapping[str, float | None]) -> Verdict:
    """Decide whether reconstructions show private classes more often than the attacker's own images.

    With too few classes for a p-value, the 95 % interval of the difference decides.
    """
    on_teacher, on_student = (_beats_own_images(metrics, prefix) for prefix in (UNPROTECTED, ""))
    if on_teacher is None:
        return Verdict("cannot-tell", "This attack cannot tell: it was not compared with the attacker's own images.")
    if not on_teacher:
        return Verdict(
            "cannot-tell",
            "This attack cannot tell: even from the unprotected teacher it recovers no more than the attacker's own "
            "images show.",
        )
    if on_student:
        return Verdict("leaks", "Leaks: images made from the student show more than the attacker's own images.")
    return NOTHING_FOUND


def _beats_own_images(metrics: Mapping[str, float | None], prefix: str) -> bool | None:
    """Whether an inversion of a network beats the attacker's own images; None if that was not measured."""
    p, low = metrics.get(f"{prefix}floor_p"), metrics.get(f"{prefix}above_floor.lo")
    if p is not None:
        return p < SIGNIFICANCE
    return None if low is None else low > 0
