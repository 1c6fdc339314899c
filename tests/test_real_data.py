"""Runs on real data: tier smoke completes, and tier quick meets its documented results. All tests are `slow`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Bench = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def measured(bench: Bench, tmp_path: Path) -> Callable[..., dict[str, float]]:
    """Function that makes a run, and returns the metrics of its record."""

    def run(*words: object) -> dict[str, float]:
        done = bench("run", *words)
        assert done.returncode == 0, done.stderr
        (path,) = (tmp_path / "runs").glob("records/[!.]*/record.json")
        return json.loads(path.read_text())["metrics"]

    return run


@pytest.mark.slow
def test_run_quick_tier_on_digits_learns(measured: Callable[..., dict[str, float]]) -> None:
    found = measured("--method", "dpsd", "--attack", "gmi")
    assert found["teacher_accuracy"] >= 0.97 and found["evaluator_accuracy"] >= 0.97 and found["accuracy"] >= 0.6
    assert found["teacher_attack_accuracy"] >= 0.6 and found["random_attack_accuracy"] <= 0.3


@pytest.mark.slow
def test_run_without_noise_student_is_near_its_teacher(measured: Callable[..., dict[str, float]]) -> None:
    found = measured("--method", "dpsd", "--epsilon", "inf", "--method.queries", 12_800)
    assert found["teacher_accuracy"] - found["accuracy"] <= 0.10


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("options", "least"), [((), 0.98), (("--tier", "smoke", "--teacher", "datalens"), 0.0)], ids=["quick", "smoke"]
)
def test_run_on_mnist_learns_and_writes_a_board(
    measured: Callable[..., dict[str, float]], tmp_path: Path, data_root: Path, options: tuple[str, ...], least: float
) -> None:
    found = measured("--method", "no-defence", "--dataset", "mnist", "--data-root", data_root, *options)
    assert found["teacher_accuracy"] >= least
    assert (tmp_path / "runs" / "leaderboards" / "releases" / "mnist.csv").exists()
