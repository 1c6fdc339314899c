"""The comparison and the lines of an end-to-end audit for its three networks, without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from conftest import toy_job
from records_made import accounted
from torch import nn

from bench import teachers
from bench.core.privacy import Account, AccountedRecord
from bench.core.records import AuditLine, Provenance
from bench.pipeline import canary_audit
from bench.pipeline.canary_game import Canaries, CanaryGame, draw
from bench.pipeline.job import Job
from bench.pipeline.trained import Trained
from bench.privacy.one_run import ceiling
from bench.storage.provenance import GitState, Origin, StepLog

PROVED = AccountedRecord.model_validate(accounted(3.0))
ACCOUNT = Account(claimed=None, accounted=PROVED, accounted_units={"example": PROVED}, audited=None, events=[])
TOY_IMAGES = 360


def line_of(bound: float) -> AuditLine:
    shares = {"accuracy": 0.5, "memorised_inserted": None, "memorised_left_out": None}
    return AuditLine(correct=10, guesses=20, epsilon_lower=bound, **shares)


@pytest.fixture(scope="module")
def job(toy: Path) -> Job:
    return toy_job(toy)


def line(job: Job, canaries: Canaries, game: CanaryGame) -> AuditLine:
    """The line of a network whose predictions are replaced."""
    audited = cast("Trained[Any]", SimpleNamespace(network=None, result=SimpleNamespace(accuracy=0.5)))
    return canary_audit.audit_line(job, audited, None, canaries, canary_audit.audit_spec(job, game, 0))


@pytest.mark.parametrize(("student", "teacher", "powerful"), [(0.0, 0.5, True), (0.5, 0.0, False), (0.0, 0.0, False)])
def test_audit_power_is_bound_on_teacher(job: Job, student: float, teacher: float, powerful: bool) -> None:
    game = CanaryGame(40)
    lines = {name: line_of(bound) for name, bound in (("student", student), ("teacher", teacher), ("null", 0.0))}
    spec = canary_audit.audit_spec(job, game, 0)
    assert canary_audit.make_audit(job, spec, draw(job, game, 0), lines, ACCOUNT, Provenance()).powerful == powerful


def test_memorised_canaries_reach_the_ceiling(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    game = CanaryGame(40, 20)
    canaries = draw(job, game, 0)
    answers = torch.where(canaries.coins, canaries.labels, (canaries.labels + 1) % 4)
    monkeypatch.setattr(teachers, "predict", lambda *_: nn.functional.one_hot(answers, 4).float())
    found = line(job, canaries, game)
    assert (found.memorised_inserted, found.memorised_left_out) == (1.0, 0.0)
    assert found.correct == 20 and found.epsilon_lower == ceiling(20, 40, job.settings.budget.delta)


@pytest.mark.parametrize("fell", [False, True])
def test_equal_coins_leave_one_share_unknown(job: Job, monkeypatch: pytest.MonkeyPatch, fell: bool) -> None:
    game = CanaryGame(6, 6)
    canaries = replace(draw(job, game, 0), coins=torch.full((6,), fell))
    monkeypatch.setattr(teachers, "predict", lambda *_: nn.functional.one_hot(canaries.labels, 4).float())
    found = line(job, canaries, game)
    assert (found.memorised_inserted, found.memorised_left_out) == ((1.0, None) if fell else (None, 1.0))


def test_reference_network_is_of_the_same_kind(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks are their names here; the reference teacher saw no canary, and was converted as the audited one."""

    class Named:
        def __init__(self, *given: Any) -> None:
            self.seconds: dict[str, float] = {}

        def teacher(self, name: str, spec: Any) -> Any:
            return SimpleNamespace(network=name)

        def release(self, name: str, teacher: Any, spec: Any) -> Any:
            return SimpleNamespace(network=f"{name} of {teacher.network}", account=ACCOUNT)

    compared = {}

    def line(job: Job, audited: Any, reference: Any, *rest: Any) -> AuditLine:
        compared[audited.network] = reference
        return line_of(0.0)

    monkeypatch.setattr(canary_audit, "AuditTraining", Named)
    monkeypatch.setattr(canary_audit, "audit_line", line)
    game = CanaryGame(40, score="rmia")
    made = StepLog(Origin(GitState()))
    canary_audit.play(job, game, canary_audit.audit_spec(job, game, 0), draw(job, game, 0), made)
    assert compared == {
        "release of teacher": "reference_release of reference_teacher",
        "teacher": "reference_teacher",
        "null_teacher": "reference_teacher",
    }
