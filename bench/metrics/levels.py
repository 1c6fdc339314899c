"""What an attack must reach where nothing defends; in a file that needs no library, as boards ask for it at once."""

from __future__ import annotations

from collections.abc import Mapping

ALPHA = 0.05
"""Level of the test against retrieval (`bench.metrics.floors`)."""
LEAST_AUC = 0.6
"""Of a membership attack on the undefended teacher, for a student's 0.5 to say anything."""
LEAST_SHOWN = 0.25
"""Of the reconstructions of the undefended teacher, where its classes are too few to be tested against public images:
with ten classes, 0.19 is one class found and nine at chance. With four it is chance itself, and asks nothing."""


def shown(metrics: Mapping[str, float | None]) -> float | None:
    """The share of the undefended teacher's reconstructions that show their class: to the judge of faces, if there is
    one, else to the evaluator."""
    judged = metrics.get("teacher_judge_accuracy")
    return metrics.get("teacher_attack_accuracy") if judged is None else judged


def strong_enough(metrics: Mapping[str, float | None]) -> bool:
    """Whether an inversion shows at least `LEAST_SHOWN` of the teacher's classes; where that is not known, yes."""
    share = shown(metrics)
    return share is None or share >= LEAST_SHOWN
