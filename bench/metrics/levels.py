"""Thresholds that an attack must reach on the undefended teacher.

This module imports no libraries, since boards import it on every start.
"""

from __future__ import annotations

from collections.abc import Mapping

LEAST_AUC = 0.6
"""AUC that a membership attack must reach on the undefended teacher for a student's 0.5 to be evidence of
protection."""
LEAST_SHOWN = 0.25
"""Share of the undefended teacher's reconstructions that must show their class, where there are too few classes for a
test against public images. With ten classes, one class recovered and nine at chance give 0.19. With four classes the
threshold equals the chance level and has no effect."""


def teacher_class_share(metrics: Mapping[str, float | None]) -> float | None:
    """Return the share of the teacher's reconstructions that show their class, in [0, 1]; None if it is unknown.

    It is measured by the face judge if the record has its number, else by the evaluator.
    """
    judged = metrics.get("teacher_judge_accuracy")
    return metrics.get("teacher_attack_accuracy") if judged is None else judged


def is_strong_enough(metrics: Mapping[str, float | None]) -> bool:
    """Return whether at least `LEAST_SHOWN` of the teacher's reconstructions show their class; True if unknown."""
    share = teacher_class_share(metrics)
    return share is None or share >= LEAST_SHOWN
