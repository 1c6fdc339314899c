"""Published runs and audits in plans: they are not repeated, their seconds estimate the rest; audits as cells."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cli import main
from bench.cli.sweep import SettingsParser
from bench.pipeline.canary_game import CanaryGame
from bench.storage.records import AUDIT, RECORD, Audit
from bench.sweeps import run_sweep
from bench.sweeps.plan import Cell
from tests.sweeps.importable import planned, recipe

GRIDS = (
    'method = "no-defence"\nseeds = [0, 1]',
    'command = "audit release"\nmethod = "no-defence"\ncanaries = [40, 41]',
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return recipe(tmp_path, *GRIDS, images=360)


def publish(cell: Cell, boards: Path) -> Path:
    assert cell.record is not None
    kind, name = cell.record.parent.name, cell.record.name
    (boards / kind).mkdir(parents=True, exist_ok=True)
    return shutil.copy(cell.record / (RECORD if kind == "records" else AUDIT), boards / kind / f"{name}.json")


def one_published(toy: Path, there: Path, boards: Path) -> tuple[Path, dict[str, Any]]:
    """Run and publish the first cell; return its file on the boards, and the content."""
    run = planned(toy, there)[0]
    assert main(["run", *run.arguments]) == 0
    path = publish(run, boards)
    return path, json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.thorough
def test_plan_published_runs_and_audits_are_not_repeated(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, boards, new = tmp_path / "there", tmp_path / "boards", tmp_path / "new"
    run, _, audit, _ = planned(toy, there)
    assert main(["run", *run.arguments]) == main(["audit", "release", *audit.arguments]) == 0
    paths = [publish(run, boards), publish(audit, boards)]
    cells = planned(toy, new, boards=boards)
    assert [cell.state for cell in cells] == ["published", "ready", "published", "ready"]
    assert [cell.record for cell in cells[::2]] == paths and not any(cell.after for cell in cells[::2])
    assert [cell.state for cell in planned(toy, new)] == ["ready"] * 4, "without boards"
    assert [cell.state for cell in planned(toy, there, boards=boards)][::2] == ["cached"] * 2, "own first"

    typed = ["sweep", str(toy), "--tier", "smoke", "--out", str(new), "--boards", str(boards)]
    capsys.readouterr()
    assert main([*typed, "--dry-run"]) == 0
    assert "2 published, 2 ready; 4 in all" in " ".join(capsys.readouterr().out.split())
    assert main([*typed, "--jobs", "2"]) == 0
    assert [len(list((new / kind).glob("[0-9a-f]*"))) for kind in ("records", "audits")] == [1, 1]
    (summary,) = (new / "sweeps").glob("*.json")
    states = [outcome["state"] for outcome in json.loads(summary.read_text())["outcomes"]]
    assert states[0] == states[2] == "published" and "published" not in states[1::2]


def test_plan_record_with_damaged_picture_is_ready(toy: Path, tmp_path: Path) -> None:
    toy.write_text(toy.read_text(encoding="utf-8").replace("seeds =", 'attack = "loss-threshold"\nseeds ='))
    out = tmp_path / "there"
    run = planned(toy, out)[0]
    assert main(["run", *run.arguments]) == 0 and planned(toy, out)[0].state == "cached"
    assert run.record is not None
    picture = next(run.record.glob("*.png"))
    picture.write_bytes(picture.read_bytes()[:-20])
    assert planned(toy, out)[0].state == "ready"


def test_plan_failed_or_damaged_published_record_is_ready(toy: Path, tmp_path: Path) -> None:
    boards = tmp_path / "boards"
    path, content = one_published(toy, tmp_path / "there", boards)
    for damaged in ("{", json.dumps(content | {"status": "failed", "reason": "no memory"})):
        path.write_text(damaged, encoding="utf-8")
        assert planned(toy, tmp_path / "new", boards=boards)[0].state == "ready"


def test_plan_published_record_of_float32_noise_is_ready(tmp_path: Path) -> None:
    """Its flag is `float32-noise`; the spec of the run is the same."""
    grid, boards = 'method = "rr"\nepsilon = 1\nunit = "label"\naccount = "accounted"', tmp_path / "boards"
    toy = recipe(tmp_path, grid, images=360)
    path, content = one_published(toy, tmp_path / "there", boards)
    assert planned(toy, tmp_path / "new", boards=boards)[0].state == "published"
    del content["privacy"]["noise_version"]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert planned(toy, tmp_path / "new", boards=boards)[0].state == "ready"


def test_estimate_uses_seconds_of_published_records(toy: Path, tmp_path: Path) -> None:
    boards = tmp_path / "boards"
    path, content = one_published(toy, tmp_path / "there", boards)
    content["provenance"]["seconds"] = {"teacher": 100.0, "release": 20.0}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert planned(toy, tmp_path / "new")[1].seconds is None
    assert planned(toy, tmp_path / "new", boards=boards)[1].seconds == 10 + 100 + 20, "and 10 s outside of the steps"


@pytest.mark.parametrize(
    ("command", "said", "unmade"),
    [
        ("sweep {toy} --boards {toy.parent}/none", "{toy.parent}/none", "new"),
        ("prepare --method no-defence --only evaluator", "teacher", "new/steps"),
        (
            "audit prepare --method no-defence --canaries 40 --only reference_teacher",
            "teacher, null_teacher",
            "new/steps",
        ),
        ("audit prepare --method no-defence --canaries 4000", "--canaries 4000", "new/steps"),
    ],
)
def test_bad_input_exits_with_2(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, said: str, unmade: str
) -> None:
    """A missing folder of boards, steps that no runs share, and more canaries than records."""
    assert main([*command.format(toy=toy).split(), "--tier", "smoke", "--out", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert said.format(toy=toy) in error and error.count("\n") == 1 and not (tmp_path / unmade).exists()


def test_estimate_separates_gpu_and_cpu_seconds(toy: Path, tmp_path: Path) -> None:
    there, boards, new = tmp_path / "there", tmp_path / "boards", tmp_path / "new"
    path, content = one_published(toy, there, boards)
    content["provenance"] |= {"device": "NVIDIA H200", "seconds": {"teacher": 1.0, "release": 2.0}}
    path.write_text(json.dumps(content), encoding="utf-8")

    def seconds(out: Path, on_gpu: bool) -> float | None:
        return planned(toy, out, boards=boards, on_gpu=on_gpu)[1].seconds

    assert seconds(new, on_gpu=False) is None and seconds(new, on_gpu=True) == 13
    assert seconds(there, on_gpu=True) not in (None, 13)


# Audits as cells


def planned_audits(folder: Path, *grids: str) -> list[Cell]:
    path = recipe(folder, *grids, images=360, command='"audit release"')
    return planned(path, folder / "runs")


def test_plan_audits_are_ready_planned_or_refused(tmp_path: Path) -> None:
    grid = 'method = ["dpsd", "not-there"]\n"method.queries" = 48\n"teacher.epochs" = 2\ncanaries = 40\noverfit = true'
    queried = 'method = "dpsd"\ncanaries = 40\nguesses = 20\nscore = "rmia"\nseeds = [0, 1]'
    wrong = ("canaries = 999", "canaries = 40\nguesses = 4", 'attack = "gmi"', '"teacher.length" = 2', "overfit = 3")
    cells = planned_audits(tmp_path, grid, queried, *(f'method = "rr"\nunit = "label"\n{each}' for each in wrong))
    states = [cell.state for cell in cells]
    assert states == ["ready", "planned", "ready", "ready", *["refused"] * 5], [cell.reason for cell in cells]
    why = "".join(cell.reason for cell in cells[4:])
    for said in ("--canaries 999", "4 guesses", "'--attack'", "'--teacher.length'", "'3'"):
        assert said in why, why
    assert all("\n" not in cell.reason and cell.record is None for cell in cells[4:])
    settings, game = SettingsParser()(["audit", "release", *cells[0].arguments])
    assert game == CanaryGame(40, overfit=True) and settings.teacher_options == (("epochs", "2"),)
    assert settings.attack is None and settings.method_options == (("queries", "48"),)
    first = cells[0].record
    assert first is not None and first.parent == tmp_path / "runs" / "audits"
    assert cells[0].after != cells[2].after != cells[3].after, "recipe, score and seed change the teacher"


def test_plan_readable_audit_is_cached(tmp_path: Path) -> None:
    grid = 'method = "no-defence"\ncanaries = [40, 41]'
    (ready, other) = planned_audits(tmp_path, grid)
    assert main(["audit", "release", *ready.arguments]) == 0
    assert [cell.state for cell in planned_audits(tmp_path, grid)] == ["cached", "ready"]
    assert ready.record is not None and other.record != ready.record
    (ready.record / AUDIT).write_text("{}")
    assert [cell.state for cell in planned_audits(tmp_path, grid)] == ["ready", "ready"]
    assert main(["audit", "release", *ready.arguments]) == 0, "an unreadable audit is made again"
    assert Audit.read(ready.record / AUDIT).hash == ready.record.name


@pytest.mark.thorough
def test_sweep_audits_share_teachers_and_report_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid, out = 'method = ["label-smoothing", "rr"]\ncanaries = 60', tmp_path / "runs"
    path = recipe(tmp_path, grid, command='"audit release"', dataset='"digits"')
    typed = ["sweep", str(path), "--tier", "smoke", "--out", str(out), "--jobs", "2"]
    assert main(typed) == 0
    (summary,) = (out / "sweeps").glob("*.json")
    outcomes = json.loads(summary.read_text())["outcomes"]
    assert [outcome["arguments"][:2] for outcome in outcomes] == [["audit", "release"]] * 2
    for outcome in outcomes:
        found = Audit.read(Path(outcome["record"]) / AUDIT)
        assert (outcome["state"], outcome["reason"]) == run_sweep.audit_state(found), outcome
        assert found.canaries["number"] == 60
    assert len(list((out / "steps" / "teacher").glob("[0-9a-f]*"))) == 2, "one with canaries and one without, for both"
    assert len(list((out / "audits").glob("[0-9a-f]*"))) == 2
    capsys.readouterr()
    assert main([*typed, "--dry-run"]) == 0 and "2 cached; 2 in all" in capsys.readouterr().out


def test_tasks_shared_teachers_precede_audits(tmp_path: Path) -> None:
    """The audits themselves then train no teacher."""
    cells = planned_audits(
        tmp_path,
        'method = ["no-defence", "label-smoothing"]\ncanaries = 40',
        'method = "rr"\ncanaries = 41',
        'method = "rr"\ncanaries = 40\n"teacher.epochs" = 2',
    )
    with_canaries, without, *audits = run_sweep.tasks(cells, run_sweep.shared_steps(cells))
    shared, typed = (with_canaries, without), ("audit", "prepare", *cells[0].arguments, "--only")
    both = {4, 5}
    assert {task.index for task in shared} == both and not any(task.after for task in shared), "made in parallel"
    assert [task.arguments for task in shared] == [(*typed, "teacher"), (*typed, "null_teacher")]
    waits = {audit.index: audit.after for audit in audits}
    # With 41 canaries the null teacher is the same; another recipe has other teachers
    assert waits == {0: both, 1: both, 2: {5}, 3: set()}
    folder = tmp_path / "runs" / "steps" / "teacher"
    for number, task in enumerate(shared, start=1):
        assert main(task.arguments) == 0
        made = {path.name for path in folder.glob("[0-9a-f]*")}
        assert len(made) == number and not (tmp_path / "runs" / "audits").exists()
    assert main(["audit", "release", *cells[1].arguments]) == 0
    assert {path.name for path in folder.glob("[0-9a-f]*")} == made


@pytest.mark.parametrize(
    ("verdict", "student", "teacher", "state", "numbers"),
    [
        ("not refuted", 0.174, 2.04, "ok", ("0.17", "2.04", "3.49")),
        ("refuted", 1.0, 2.04, "ok", ("1.00", "2.04", "3.49")),
        ("refuted", 1.0, 0.0, "ok", ("1.00", "0.00", "3.49")),
        ("not refuted", 0.174, 0.0, "inconclusive", ("0.17", "0.00", "3.49")),
        ("not refuted", 0.0, 0.0, "inconclusive", ("0.00", "0.00", "3.49")),
    ],
)
def test_audit_state_without_power_is_inconclusive(
    verdict: Any, student: float, teacher: float, state: str, numbers: tuple[str, ...]
) -> None:
    lines = {"student": {"epsilon_lower": student}, "teacher": {"epsilon_lower": teacher}}
    found = SimpleNamespace(verdict=verdict, lines=lines, ceiling=3.4913, powerful=teacher > 0)
    result, reason = run_sweep.audit_state(found)  # type: ignore[arg-type]
    assert result == state and reason.startswith(verdict) and all(number in reason for number in numbers)
