"""The Python interface does what the command does, prints nothing and leaves the process as it was."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import bench
from bench.cli import main
from bench.errors import BadOption, BenchError, NotFound

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
