"""`bench.sweep` runs every combination once; a cell that cannot be run does not stop the others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import bench
from baselines.no_defence import NoDefence
from bench.errors import BadOption, BudgetError, UnknownName

FIXED: dict[str, Any] = {"tier": "smoke", "teacher": "datalens"}
GRID: dict[str, Any] = {"method": ["rr", NoDefence], "epsilon": [2, -1], "seed": [0, 1]}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def swept(out: Path) -> bench.SweepResult:
    return bench.sweep(GRID, out=out, attack="loss-threshold", **FIXED)


def test_sweep_runs_every_combination_in_order(swept: bench.SweepResult) -> None:
    given = [tuple(cell.given.values()) for cell in swept.cells]
    assert given == [(m, e, s) for m in GRID["method"] for e in GRID["epsilon"] for s in GRID["seed"]]
    assert [cell.state == "refused" for cell in swept.cells] == [False, False, True, True] * 2
    assert len(swept.results) == 4 and len({result.record.hash for result in swept.results}) == 4
    assert all(isinstance(cell.error, BudgetError) for cell in swept.cells if cell.state == "refused")


def test_frame_has_the_numbers_of_the_results(swept: bench.SweepResult) -> None:
    table = swept.to_frame()
    assert list(table["method"]) == ["rr"] * 4 + ["NoDefence"] * 4
    for row, cell in zip(table.to_dict("records"), swept.cells, strict=True):
        if cell.result is None:
            assert math.isnan(row["accuracy"]) and row["error"] == str(cell.error)
            continue
        attack = cell.result.attack
        assert attack is not None and attack.auc is not None
        assert (row["accuracy"], row["auc"]) == (cell.result.accuracy, attack.auc.value)
        assert row["epsilon_accounted"] == cell.result.privacy.accounted.epsilon
    assert all(str(cell.given["seed"]) in str(swept) for cell in swept.cells) and "<table>" in swept._repr_html_()


def test_sweep_again_is_read_from_the_cache_and_reports_progress(swept: bench.SweepResult, out: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    again = bench.sweep(GRID, out=out, attack="loss-threshold", progress=lambda *given: seen.append(given), **FIXED)
    assert all(result.is_cached for result in again.results) and seen == [("cells", k, 8) for k in range(1, 9)]


@pytest.mark.thorough
def test_workers_make_the_runs_of_one_process(swept: bench.SweepResult, out: Path, tmp_path: Path) -> None:
    data = bench.data.load("digits")
    own = bench.data.from_arrays(data.train_images, data.train_labels, name="digits-again")
    grid = {"dataset": ["digits", own], "epsilon": [2, -1]}
    made = bench.sweep(grid, method="rr", attack="loss-threshold", out=tmp_path, workers=2, **FIXED)
    assert [cell.state == "refused" for cell in made.cells] == [False, True, False, True]
    first, mine = made.results
    assert first.record.metrics == swept.results[0].record.metrics
    assert mine.record.spec.release.teacher.data.dataset == "npz-digits-again"
    assert made.to_frame()["dataset"].tolist() == ["digits"] * 2 + ["digits-again"] * 2


@pytest.mark.parametrize(
    ("grid", "options", "kind"),
    [
        ({"method": ["rr"], "epsilonn": [1]}, {}, UnknownName),
        ({"method": ["rr"]}, {"seeds": 3}, UnknownName),
        ({"method": []}, {}, BadOption),
        ({"method": "rr"}, {}, BadOption),
        ({"seed": [0]}, {}, BadOption),
        ({"method": ["rr"]}, {"method": "rr"}, BadOption),
        ({"method": ["rr"]}, {"workers": 0}, BadOption),
        ({"method": ["rr"]}, {"workers": 2.0}, BadOption),
        ({"method": ["rr"]}, {"backend": "cloud"}, UnknownName),
        ({"method": [NoDefence]}, {"workers": 2}, BadOption),
        ({"method": ["rr"], "out": ["a", "b"]}, {}, UnknownName),
    ],
    ids=range(11),
)
def test_sweep_refuses_bad_input(grid: Any, options: Any, kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind):
        bench.sweep(grid, **{"out": tmp_path, **FIXED} | options)
    assert not list(tmp_path.rglob("record.json"))


@pytest.mark.thorough
def test_interrupted_sweep_keeps_its_finished_cells(tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    grid = {"method": ["rr"], "seed": [0, 1]}
    with pytest.raises(KeyboardInterrupt):
        bench.sweep(grid, out=tmp_path, progress=interrupt, **FIXED)
    again = bench.sweep(grid, out=tmp_path, **FIXED)
    assert [result.is_cached for result in again.results] == [True, False]
