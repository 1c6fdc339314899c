"""Tier quick, digits: without noise a student is near its teacher, and with noise DP-DFD's is above chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.pipeline import run
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget

FREE = Budget(float("inf"), solve="none")


def metrics(out: Path, method: str, budget: Budget = FREE, **options: str) -> dict[str, float | None]:
    given = tuple(sorted(options.items()))
    settings = Settings(method=method, attack=None, out=out, budget=budget, method_options=given)
    return run.run(load_job(settings), 0).record.metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "taught_by", "gap"),
    [
        ("dpdfd", {"queries": "12800"}, "teacher_accuracy", 0.10),
        ("fed-dpsd", {"queries": "12800"}, "ensemble_accuracy", 0.10),
        ("dgd", {"queries": "6000"}, "ensemble_accuracy", 0.15),
        ("dp-dfd", {}, "teacher_accuracy", 0.10),
    ],
    ids=["dpdfd", "fed-dpsd", "dgd", "dp-dfd"],
)
def test_run_without_noise_is_near_the_teacher(
    tmp_path: Path, method: str, options: dict[str, str], taught_by: str, gap: float
) -> None:
    found = metrics(tmp_path, method, **options)
    accuracy, teacher = found["accuracy"], found[taught_by]
    assert accuracy is not None and teacher is not None and accuracy >= teacher - gap
    assert taught_by != "teacher_accuracy" or teacher >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "least"), [(float("inf"), 0.8), (10.0, 0.8), (1.0, 0.5)])
def test_dp_dfd_on_digits_is_better_than_chance(tmp_path: Path, epsilon: float, least: float) -> None:
    assert (metrics(tmp_path, "dp-dfd", Budget(epsilon))["accuracy"] or 0) >= least
