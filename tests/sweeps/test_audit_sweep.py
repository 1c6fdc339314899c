"""Sweeps with audits as cells: the plan, shared steps, and the summary."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import write_toy

from bench.cli import main
from bench.cli.sweep import SettingsParser
from bench.pipeline.canary_game import CanaryGame
from bench.storage.records import AUDIT, Audit
from bench.sweeps import run_sweep
from bench.sweeps.plan import Cell, plan
from bench.sweeps.recipe import read

HEAD = """
[defaults]
command = "audit release"
teacher = "datalens"
"""


def recipe(folder: Path, *grids: str, dataset: str = "digits") -> Path:
    path = folder / "audits.toml"
    defaults = f'{HEAD}dataset = "{dataset}"\n'
    path.write_text(defaults + "".join(f"[[grid]]\n{grid}\n" for grid in grids), encoding="utf-8")
    return path


def planned(folder: Path, *grids: str) -> list[Cell]:
    write_toy(folder, 360)
    path = recipe(folder, *grids, dataset=f"npz:{folder}/toy.npz")
    return plan(
        read(path), ["--tier", "smoke", "--out", str(folder / "runs"), "--device", "cpu"], [], folder, SettingsParser()
    )


def test_plan_audits_are_ready_planned_or_refused(tmp_path: Path) -> None:
    grid = 'method = ["dpsd", "not-there"]\n"method.queries" = 48\n"teacher.epochs" = 2\ncanaries = 40\noverfit = true'
    asked = 'method = "dpsd"\ncanaries = 40\nguesses = 20\nscore = "rmia"\nseeds = [0, 1]'
    wrong = ("canaries = 999", "canaries = 40\nguesses = 4", 'attack = "gmi"', '"teacher.length" = 2', "overfit = 3")
    cells = planned(tmp_path, grid, asked, *(f'method = "rr"\nunit = "label"\n{each}' for each in wrong))
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
    assert cells[0].after != cells[2].after != cells[3].after, (
        "other recipes, other scores, other seeds: other teachers"
    )


def test_plan_readable_audit_is_cached(tmp_path: Path) -> None:
    grid = 'method = "no-defence"\ncanaries = [40, 41]'
    (ready, other) = planned(tmp_path, grid)
    assert main(["audit", "release", *ready.arguments]) == 0
    assert [cell.state for cell in planned(tmp_path, grid)] == ["cached", "ready"]
    assert ready.record is not None and other.record != ready.record
    (ready.record / AUDIT).write_text("{}")
    assert [cell.state for cell in planned(tmp_path, grid)] == ["ready", "ready"]
    assert main(["audit", "release", *ready.arguments]) == 0, "an unreadable audit is made again"
    assert Audit.read(ready.record / AUDIT).hash == ready.record.name


@pytest.mark.thorough
def test_sweep_audits_share_teachers_and_report_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = recipe(tmp_path, 'method = ["label-smoothing", "rr"]\ncanaries = 60'), tmp_path / "runs"
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
    cells = planned(
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


def test_audit_prepare_too_many_canaries_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--method", "no-defence", "--tier", "smoke", "--out", str(tmp_path), "--canaries", "4000"]
    assert main(["audit", "prepare", *given]) == 2
    said = capsys.readouterr().err
    assert "--canaries 4000" in said and said.count("\n") == 1
    assert not (tmp_path / "steps").exists()
