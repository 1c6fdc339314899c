"""The result of a run as typed values: utility, privacy, attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.core.records import RunRecord

UNPROTECTED = "teacher_"
UNTRAINED = "random_"
NO_TEACHER = "control_"
WITHOUT_MODEL = "blind_"
"""Prefixes of the metrics of the unprotected teacher, of an untrained network, of the student without a teacher, and of
a classifier that separates records without any network."""
PREFIXES = (
    *(UNPROTECTED, UNTRAINED, NO_TEACHER, "ensemble_", "member_", "votes_", "evaluator_", "reference_"),
    *("unaware_", "memorising_", WITHOUT_MODEL),
)
"""Prefixes of metrics that are not of the released student."""


@dataclass(frozen=True)
class Measure:
    """A number with its 95 % interval, where it has one.

    Attributes:
        value: the number; shares are in [0, 1].
        low, high: bounds of the interval; None where the metric has none.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __float__(self) -> float:
        return float(self.value)


@dataclass(frozen=True)
class Utility:
    """Accuracy on the test set.

    Attributes:
        student: accuracy of the released network.
        teacher: accuracy of the unprotected teacher; None where no teacher was trained.
        without_teacher: accuracy of a student made in the same way without the teachers' responses; None without one.
    """

    student: Measure
    teacher: Measure | None
    without_teacher: Measure | None


@dataclass(frozen=True)
class AttackReport:
    """The result of an attack.

    Attributes:
        name, variant: name and variant of the attack.
        has_power: whether the attack works on the unprotected teacher and fails on an untrained network. Without
            power its numbers for the student show nothing.
        reason: why the attack has no power, or was skipped; "" otherwise.
        student, teacher, untrained: metric name to its value on the released student, on the unprotected teacher and
            on a network with random weights.
    """

    name: str
    variant: str
    has_power: bool
    reason: str
    student: dict[str, Measure]
    teacher: dict[str, Measure]
    untrained: dict[str, Measure]

    @property
    def accuracy(self) -> Measure | None:
        """Share of reconstructions that show the intended class; None for an attack that reconstructs nothing."""
        return self.student.get("attack_accuracy")

    @property
    def auc(self) -> Measure | None:
        """Area under the ROC curve of a membership attack; None for other attacks."""
        return self.student.get("auc")


def measures(metrics: Mapping[str, float | None], prefix: str = "") -> dict[str, Measure]:
    """Return the metrics of one network, by name without the prefix; metrics that could not be computed are left out.

    Args:
        prefix: `UNPROTECTED`, `UNTRAINED` or `NO_TEACHER`; "" for the released student.
    """
    found = {}
    for key, value in metrics.items():
        is_bound = key.endswith((".lo", ".hi"))
        is_of_network = key.startswith(prefix) if prefix else not key.startswith(PREFIXES)
        if value is not None and not is_bound and is_of_network:
            found[key.removeprefix(prefix)] = Measure(value, metrics.get(f"{key}.lo"), metrics.get(f"{key}.hi"))
    return found


def utility_of(record: RunRecord) -> Utility | None:
    """Return the accuracies of a record; None for a run that failed."""
    student = measures(record.metrics).get("accuracy")
    if student is None:
        return None
    teacher = measures(record.metrics, UNPROTECTED).get("accuracy")
    return Utility(student, teacher, measures(record.metrics, NO_TEACHER).get("accuracy"))


def attack_of(record: RunRecord) -> AttackReport | None:
    """Return the result of a record's attack; None for a run without an attack."""
    attack = record.spec.attack
    if attack is None:
        return None
    groups = [measures(record.metrics, prefix) for prefix in ("", UNPROTECTED, UNTRAINED)]
    for group in groups:
        group.pop("accuracy", None)  # the network's accuracy on the test set, not the attack's
    return AttackReport(attack.attack, attack.variant, record.status == "ok", record.reason, *groups)
