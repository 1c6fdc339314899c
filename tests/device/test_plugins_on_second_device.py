"""Every method, attack and audit on the second device, from data to record: no tensor is left on the host.

The host may wait for the device about once per logged step at each line, and outside of loops: then no wait is hidden
that would keep a GPU idle. `make device` runs all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import write_toy
from everything import AUDITED, EVERY, FEW, LOOPS, TAUGHT, job_on, steps_logged
from second_device import Generator, SecondDevice, register

from bench.pipeline import canary_audit, run
from bench.pipeline.canary_game import CanaryGame, Score

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this release of torch has no devices in Python",
)
FAST = [("dp-sgd", None, "bf16"), ("dp-merf", "gan-leaks", "fp32")]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"), 160)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that progress bars reported."""
    monkeypatch.setattr(torch, "Generator", Generator)
    return steps_logged(monkeypatch)


CASES = [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in dict.fromkeys(FAST + EVERY)]


@pytest.mark.parametrize(("method", "attack", "precision"), CASES)
def test_it_runs_there_and_waits_seldom(
    toy: Path, logged: list[int], method: str, attack: str | None, precision: str
) -> None:
    job = job_on(register(), toy, method, attack, precision)
    with SecondDevice(ROOT) as device:
        record = run.run(job, 0).record
    assert record.status in ("ok", "inconclusive", "skipped"), record.reason
    assert not loops(device, logged)


@pytest.mark.parametrize(
    ("method", "score"), [("dp-sgd", "rmia"), *(pytest.param(m, "loss", marks=pytest.mark.slow) for m in AUDITED)]
)
def test_an_audit_of_its_release_does_so_too(toy: Path, logged: list[int], method: str, score: Score) -> None:
    job = job_on(register(), toy, method, None, "fp32")
    with SecondDevice(ROOT) as device:
        audit = canary_audit.run(job, CanaryGame(12, 6, score), 0).audit
    assert audit.lines.keys() == {"student", "teacher", "null"}
    assert not loops(device, logged)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_student_of_typical_questions_does_so_too(toy: Path, logged: list[int], precision: str) -> None:
    job = job_on(register(), toy, "dp-teacher", None, precision, TAUGHT)
    with SecondDevice(ROOT) as device:
        record = run.run(job, 0).record
    assert record.status == "ok", record.reason
    assert not loops(device, logged)


def loops(device: SecondDevice, logged: list[int]) -> dict[str, int]:
    """Lines at which the host waited more often than for every logged step, with how often."""
    allowed = max(FEW, sum(logged))
    return {line: count for line, count in device.waits.items() if count > allowed and line.split(":")[0] not in LOOPS}
