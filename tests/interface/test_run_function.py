"""`bench.run` and `bench.sweep` do what the commands do; a cell that cannot be run does not stop the others."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import bench
from baselines.no_defence import NoDefence
from bench.cli import main
from bench.errors import BadOption, BenchError, BudgetError, NotFound, RunFailed, UnknownName
from bench.sweeps.executors import Executor, Main, Task, TaskResult

SMOKE = ["run", "--method", "rr", "--attack", "loss-threshold", "--tier", "smoke", "--teacher", "datalens"]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> bench.RunResult:
    return bench.run("rr", "loss-threshold", tier="smoke", teacher="datalens", out=tmp_path_factory.mktemp("runs"))


def test_run_makes_the_record_of_the_command(result: bench.RunResult, tmp_path: Path) -> None:
    assert main([*SMOKE, "--out", str(tmp_path)]) == 0
    (file,) = (tmp_path / "records").glob("*/record.json")
    made, typed = json.loads(file.read_bytes()), json.loads((result.path / "record.json").read_bytes())
    assert (made["hash"], made["spec"]) == (typed["hash"], typed["spec"])
    auc = result.attack and result.attack.auc and result.attack.auc.value
    assert [made["metrics"][key] for key in ("accuracy", "auc")] == [result.accuracy, auc]


def test_run_prints_nothing_and_reports_progress(tmp_path: Path, capfd: Any, caplog: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    with caplog.at_level(logging.INFO, logger="bench"):
        bench.run("rr", tier="smoke", out=tmp_path, progress=lambda *step: seen.append(step))
    assert capfd.readouterr() == ("", "")
    stages = {stage for stage, _, _ in seen}
    assert stages and all(max(done for name, done, _ in seen if name == stage) > 0 for stage in stages)
    assert all(0 < done <= total for _, done, total in seen)


def test_second_run_is_read_from_the_cache(result: bench.RunResult) -> None:
    again = bench.run("rr", "loss-threshold", tier="smoke", teacher="datalens", out=result.out)
    assert again.is_cached and not result.is_cached and again.record == result.record


def test_load_reads_what_run_returned(result: bench.RunResult) -> None:
    loaded = bench.load(result.path)
    assert loaded.record == result.record and str(loaded) == str(result)


def test_student_is_the_released_network(result: bench.RunResult) -> None:
    logits = result.student(torch.rand(3, 1, 16, 16))
    assert logits.shape == (3, 10) and not result.student.training


@pytest.mark.thorough
def test_export_writes_a_bundle_that_verifies(result: bench.RunResult, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="seed"):
        result.export(tmp_path / "refused")
    result.export(tmp_path / "bundle", allow_seeded=True)
    assert main(["verify", str(tmp_path / "bundle")]) == 0


def test_save_copies_the_run_with_its_student(result: bench.RunResult, tmp_path: Path) -> None:
    kept = result.save(tmp_path / "kept")
    assert bench.load(kept.path).record == result.record and kept.out == tmp_path / "kept"
    images = torch.rand(3, 1, 16, 16)
    assert torch.equal(kept.student(images), result.student(images))
    assert {path.name for path in kept.path.iterdir()} == {path.name for path in result.path.iterdir()}
    (tmp_path / "file").touch()
    with pytest.raises(BadOption):
        result.save(tmp_path / "file")


def test_result_is_shown_with_its_epsilons(result: bench.RunResult) -> None:
    for word in ("epsilon claimed", "epsilon accounted", "accuracy of the released student"):
        assert word in str(result) and word in result._repr_html_()


@pytest.mark.parametrize("name", ["missing", ""])
def test_load_of_another_folder_is_not_found(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        bench.load(tmp_path / name)


FIXED: dict[str, Any] = {"tier": "smoke", "teacher": "datalens"}
GRID: dict[str, Any] = {"method": ["rr", NoDefence], "epsilon": [2, -1], "seed": [0, 1]}
RR: dict[str, Any] = {"method": ["rr"]}


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


def test_second_sweep_is_cached_and_reports_progress(swept: bench.SweepResult, out: Path) -> None:
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


class Inline(Executor[int]):
    """A cluster that runs each task in this process; a task without a place on it is killed."""

    def __init__(self, main: Main, *given: Any, **options: Any) -> None:
        self.main, self.given, self.results = main, (*given, *options.values()), dict[int, TaskResult]()

    def has_room(self, running: int, until: float | None) -> bool:
        return running < 1

    def start(self, task: Task) -> int:
        is_lost = "lost" in self.given
        status = -9 if is_lost else self.main([*task.arguments, "--device", "cpu"])
        self.results[task.index] = TaskResult(task.index, status, "first\nout of memory\n" if is_lost else "", 0.0)
        return task.index

    def wait(self, running: dict[int, Task], seconds: float) -> dict[int, TaskResult]:
        return {index: self.results[index] for index in running}

    def stop(self, running: dict[int, Task]) -> None:
        """Nothing runs in the background."""


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.sweeps.slurm_cluster.Slurm", Inline)
    monkeypatch.setattr("bench.sweeps.ray_cluster.Ray", Inline)


@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize("options", [{"backend": "slurm", "slurm": {"partition": "a"}}, {"backend": "ray"}], ids=str)
def test_sweep_on_a_cluster_has_the_results_of_one_process(
    options: dict[str, Any], swept: bench.SweepResult, out: Path
) -> None:
    seen: list[int] = []
    grid = {"method": ["rr"], "epsilon": [2, -1], "seed": [0, 1]}
    report = lambda stage, done, total: seen.append(done)  # noqa: E731
    found = bench.sweep(grid, out=out, attack="loss-threshold", gpus=1, progress=report, **options, **FIXED)
    assert [cell.state for cell in found.cells] == [cell.state for cell in swept.cells[:4]] and seen == [1, 2, 3, 4]
    assert [result.record for result in found.results] == [result.record for result in swept.results[:2]]
    assert all(isinstance(cell.error, BudgetError) for cell in found.cells[2:])
    assert not list((out / "sweeps").glob("cells-*"))


@pytest.mark.usefixtures("clusters")
def test_lost_task_of_a_cluster_is_a_failed_cell(tmp_path: Path) -> None:
    (cell,) = bench.sweep({"method": ["rr"]}, out=tmp_path, backend="ray", address="lost", **FIXED).cells
    assert isinstance(cell.error, RunFailed) and str(cell.error) == "out of memory"


@pytest.mark.parametrize(
    ("kind", "grid", "options"),
    [
        (UnknownName, {"method": ["rr"], "epsilonn": [1]}, {}),
        (UnknownName, {"method": ["rr"], "out": ["a", "b"]}, {}),
        *((BadOption, grid, {}) for grid in ({"method": []}, {"method": "rr"}, {"seed": [0]})),
        *((UnknownName, RR, options) for options in ({"seeds": 3}, {"backend": "cloud"})),
        *((BadOption, RR, options) for options in (
            {"method": "rr"}, {"workers": 0}, {"workers": 2.0}, {"gpus": 1},
            {"backend": "ray", "slurm": {"partition": "a"}}, {"backend": "slurm", "slurm": {"job-name": "a"}},
            {"backend": "slurm", "cpus": -1},
        )),
        *((BadOption, {"method": [NoDefence]}, options) for options in ({"workers": 2}, {"backend": "slurm"})),
        (BadOption, RR | {"device": ["cuda:0"]}, {"backend": "slurm"}),
    ],
    ids=range(17),
)  # fmt: skip
def test_sweep_refuses_bad_input(kind: type[Exception], grid: Any, options: Any, tmp_path: Path) -> None:
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
