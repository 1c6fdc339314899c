"""The verdict of a run: leaks, no leak found, or the attack cannot tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.core.records import RunRecord
from bench.core.verdict import Finding, decide

WORKS = {"teacher_above_floor.lo": 0.1}
"""An inversion of the unprotected teacher that beats the attacker's own images."""


def record(metrics: dict[str, float | None], status: str = "ok", attack: bool = True) -> RunRecord:
    spec: Any = SimpleNamespace(attack=SimpleNamespace() if attack else None)
    return RunRecord.model_construct(status=status, reason="the reason", metrics=metrics, spec=spec)


@pytest.mark.parametrize(
    ("metrics", "finding"),
    [
        ({"auc": 0.6, "auc.lo": 0.51}, "leaks"),
        ({"auc": 0.6, "auc.lo": 0.49}, "no-leak-found"),
        ({"auc": 0.6, "auc.lo": 0.51, "auc_gain.lo": -0.01}, "no-leak-found"),
        ({"auc": 0.6, "auc.lo": 0.51, "auc_gain.lo": 0.01}, "leaks"),
        ({"auc": 0.6, "auc.lo": 0.51, "blind_auc.lo": 0.49}, "leaks"),
        ({"auc": 0.6, "auc.lo": 0.51, "blind_auc.lo": 0.51}, "cannot-tell"),
        ({"auc": 0.6, "auc.lo": 0.49, "blind_auc.lo": 0.51}, "cannot-tell"),
        ({"auc": None}, "cannot-tell"),
        ({"attack_accuracy": 0.9}, "cannot-tell"),
        ({"above_floor.lo": 0.1, "teacher_above_floor.lo": -0.1}, "cannot-tell"),
        ({"above_floor.lo": 0.1, **WORKS}, "leaks"),
        ({"above_floor.lo": -0.1, **WORKS}, "no-leak-found"),
        ({"above_floor.lo": -0.1, "floor_p": 0.01, "teacher_floor_p": 0.01}, "leaks"),
        ({"above_floor.lo": 0.1, "floor_p": 0.2, "teacher_floor_p": 0.01}, "no-leak-found"),
        ({"above_floor.lo": 0.1, "floor_p": 0.01, "teacher_floor_p": 0.2}, "cannot-tell"),
    ],
)
def test_decide_reads_the_metrics(metrics: dict[str, float | None], finding: Finding) -> None:
    assert decide(record(metrics)).finding == finding


@pytest.mark.parametrize(
    ("metrics", "status"),
    [
        ({}, "skipped"),
        ({"auc": 0.5, "auc.lo": 0.4}, "inconclusive"),
        ({"above_floor.lo": 0.1, **WORKS}, "inconclusive"),
    ],
)
def test_decide_has_the_reason_of_a_powerless_attack(metrics: dict[str, float | None], status: str) -> None:
    verdict = decide(record(metrics, status))
    assert verdict.finding == "cannot-tell" and "the reason" in verdict.sentence


def test_a_significant_success_needs_no_power_elsewhere() -> None:
    """A failure on the unprotected teacher does not undo a success on the student, unless sets differ by themselves."""
    assert decide(record({"auc": 0.9, "auc.lo": 0.8}, "inconclusive")).finding == "leaks"
    differs = {"auc": 0.9, "auc.lo": 0.8, "random_auc.lo": 0.6}
    assert decide(record(differs, "inconclusive")).finding == "cannot-tell"


def test_decide_without_an_attack_or_after_a_failure() -> None:
    assert decide(record({}, attack=False)).finding == "not-attacked"
    assert decide(record({}, "failed")).finding == "failed"
