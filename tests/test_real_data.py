"""Runs on real data: tier smoke completes, and tier quick meets its documented results. All tests are `slow`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Bench = Callable[..., subprocess.CompletedProcess[str]]


def metrics(out: Path) -> dict[str, float]:
    (path,) = out.glob("records/[!.]*/record.json")
    return json.loads(path.read_text())["metrics"]


@pytest.mark.slow
def test_run_quick_tier_on_digits_learns(bench: Bench, tmp_path: Path) -> None:
    done = bench("run", "--method", "dpsd", "--attack", "gmi")
    assert done.returncode == 0, done.stderr
    found = metrics(tmp_path / "runs")
    assert found["teacher_accuracy"] >= 0.97 and found["evaluator_accuracy"] >= 0.97
    assert found["accuracy"] >= 0.6
    assert found["teacher_attack_accuracy"] >= 0.6 and found["random_attack_accuracy"] <= 0.3


@pytest.mark.slow
def test_run_without_noise_student_is_near_its_teacher(bench: Bench, tmp_path: Path) -> None:
    done = bench("run", "--method", "dpsd", "--epsilon", "inf", "--method.queries", 12_800)
    assert done.returncode == 0, done.stderr
    found = metrics(tmp_path / "runs")
    assert found["teacher_accuracy"] - found["accuracy"] <= 0.10


@pytest.mark.slow
@pytest.mark.data
def test_run_quick_teacher_on_mnist_learns(bench: Bench, tmp_path: Path, data_root: Path) -> None:
    done = bench("run", "--method", "no-defence", "--dataset", "mnist", "--data-root", data_root)
    assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "runs")["teacher_accuracy"] >= 0.98


@pytest.mark.slow
@pytest.mark.data
def test_run_smoke_tier_on_mnist_writes_a_board(bench: Bench, tmp_path: Path, data_root: Path) -> None:
    command = ["run", "--method", "no-defence", "--tier", "smoke", "--teacher", "datalens"]
    done = bench(*command, "--dataset", "mnist", "--data-root", data_root)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "leaderboards" / "releases" / "mnist.csv").exists()
