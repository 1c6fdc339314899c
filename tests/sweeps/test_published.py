"""`bench sweep --boards`: published runs are not repeated, and their seconds estimate the remaining time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import write_toy

from bench.cli import main
from bench.cli.sweep import SettingsParser
from bench.storage.records import AUDIT, RECORD
from bench.sweeps.plan import Cell, plan
from bench.sweeps.recipe import read

GRIDS = """
[[grid]]
method = "no-defence"
seeds = [0, 1]

[[grid]]
command = "audit release"
method = "no-defence"
canaries = [40, 41]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    write_toy(tmp_path, 360)
    path = tmp_path / "toy.toml"
    path.write_text(f'[defaults]\ndataset = "npz:{tmp_path}/toy.npz"\nteacher = "datalens"\n{GRIDS}', encoding="utf-8")
    return path


def planned(recipe: Path, out: Path, boards: Path | None) -> list[Cell]:
    return plan(read(recipe), ["--tier", "smoke", "--out", str(out)], [], out, SettingsParser(), boards=boards)


def publish(cell: Cell, boards: Path) -> Path:
    """Return a cell's result in the form of boards."""
    assert cell.record is not None
    kind, name = cell.record.parent.name, cell.record.name
    (boards / kind).mkdir(parents=True, exist_ok=True)
    return shutil.copy(cell.record / (RECORD if kind == "records" else AUDIT), boards / kind / f"{name}.json")


def one_published(recipe: Path, there: Path, boards: Path) -> tuple[Path, dict[str, Any]]:
    """Run and publish the first cell; return its file on the boards, and the content."""
    run = planned(recipe, there, None)[0]
    assert main(["run", *run.arguments]) == 0
    path = publish(run, boards)
    return path, json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.thorough
def test_plan_published_runs_and_audits_are_not_repeated(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, boards, new = tmp_path / "there", tmp_path / "boards", tmp_path / "new"
    run, _, audit, _ = planned(recipe, there, None)
    assert main(["run", *run.arguments]) == main(["audit", "release", *audit.arguments]) == 0
    paths = [publish(run, boards), publish(audit, boards)]
    cells = planned(recipe, new, boards)
    assert [cell.state for cell in cells] == ["published", "ready", "published", "ready"]
    assert [cell.record for cell in cells[::2]] == paths and not any(cell.after for cell in cells[::2])
    assert [cell.state for cell in planned(recipe, new, None)] == ["ready"] * 4, "without boards"
    assert [cell.state for cell in planned(recipe, there, boards)][::2] == ["cached"] * 2, "own records have precedence"

    typed = ["sweep", str(recipe), "--tier", "smoke", "--out", str(new), "--boards", str(boards)]
    capsys.readouterr()
    assert main([*typed, "--dry-run"]) == 0
    assert "2 published, 2 ready; 4 in all" in " ".join(capsys.readouterr().out.split())
    assert main([*typed, "--jobs", "2"]) == 0
    assert [len(list((new / kind).glob("[0-9a-f]*"))) for kind in ("records", "audits")] == [1, 1]
    (summary,) = (new / "sweeps").glob("*.json")
    states = [outcome["state"] for outcome in json.loads(summary.read_text())["outcomes"]]
    assert states[0] == states[2] == "published" and "published" not in states[1::2]


def test_plan_record_with_damaged_picture_is_ready(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("seeds =", 'attack = "loss-threshold"\nseeds ='))
    out = tmp_path / "there"
    run = planned(recipe, out, None)[0]
    assert main(["run", *run.arguments]) == 0 and planned(recipe, out, None)[0].state == "cached"
    assert run.record is not None
    picture = next(run.record.glob("*.png"))
    picture.write_bytes(picture.read_bytes()[:-20])
    assert planned(recipe, out, None)[0].state == "ready"


def test_plan_failed_or_damaged_published_record_is_ready(recipe: Path, tmp_path: Path) -> None:
    boards = tmp_path / "boards"
    path, content = one_published(recipe, tmp_path / "there", boards)
    for damaged in ("{", json.dumps(content | {"status": "failed", "reason": "no memory"})):
        path.write_text(damaged, encoding="utf-8")
        assert planned(recipe, tmp_path / "new", boards)[0].state == "ready"


def test_plan_published_record_of_float32_noise_is_ready(tmp_path: Path) -> None:
    """Its flag is `float32-noise`; the spec of the run is the same."""
    write_toy(tmp_path, 360)
    recipe, boards = tmp_path / "toy.toml", tmp_path / "boards"
    grid = 'method = "rr"\nepsilon = 1\nunit = "label"\naccount = "accounted"'
    recipe.write_text(f'[[grid]]\ndataset = "npz:{tmp_path}/toy.npz"\n{grid}\n', encoding="utf-8")
    path, content = one_published(recipe, tmp_path / "there", boards)
    assert planned(recipe, tmp_path / "new", boards)[0].state == "published"
    del content["privacy"]["noise_version"]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert planned(recipe, tmp_path / "new", boards)[0].state == "ready"


def test_estimate_uses_seconds_of_published_records(recipe: Path, tmp_path: Path) -> None:
    boards = tmp_path / "boards"
    path, content = one_published(recipe, tmp_path / "there", boards)
    content["provenance"]["seconds"] = {"teacher": 100.0, "release": 20.0}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert planned(recipe, tmp_path / "new", None)[1].seconds is None
    assert planned(recipe, tmp_path / "new", boards)[1].seconds == 10 + 100 + 20, (
        "with ten seconds outside of the steps"
    )


def test_sweep_missing_boards_folder_exits_with_2(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["sweep", str(recipe), "--tier", "smoke", "--out", str(tmp_path / "new")]
    assert main([*typed, "--boards", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "none") in said and said.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        ("prepare --method no-defence --only evaluator", "teacher"),
        ("audit prepare --method no-defence --canaries 40 --only reference_teacher", "teacher, null_teacher"),
    ],
)
def test_prepare_only_unshared_step_exits_with_2(
    command: str, steps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--tier", "smoke", "--out", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert steps in error and error.count("\n") == 1 and not (tmp_path / "runs" / "steps").exists()


def test_estimate_separates_gpu_and_cpu_seconds(recipe: Path, tmp_path: Path) -> None:
    there, boards, new = tmp_path / "there", tmp_path / "boards", tmp_path / "new"
    path, content = one_published(recipe, there, boards)
    content["provenance"] |= {"device": "NVIDIA H200", "seconds": {"teacher": 1.0, "release": 2.0}}
    path.write_text(json.dumps(content), encoding="utf-8")

    def seconds(out: Path, on_gpu: bool) -> float | None:
        given = ["--tier", "smoke", "--out", str(out)]
        return plan(read(recipe), given, [], out, SettingsParser(), boards=boards, on_gpu=on_gpu)[1].seconds

    assert seconds(new, on_gpu=False) is None and seconds(new, on_gpu=True) == 13
    assert seconds(there, on_gpu=True) not in (None, 13)
