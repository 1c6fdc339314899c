"""Without noise, tier quick, digits: every method's student is within ten points of its teacher."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.pipeline import run
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget
from bench.storage.records import Record

GAP = 0.10


def record(out: Path, method: str, **options: str) -> Record:
    settings = Settings(
        method=method,
        attack=None,
        out=out,
        budget=Budget(float("inf"), solve="none"),
        method_options=tuple(sorted(options.items())),
    )
    return run.run(load_job(settings), 0).record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "taught_by"),
    [("dpdfd", {"queries": "12800"}, "teacher_accuracy"), ("fed-dpsd", {"queries": "12800"}, "ensemble_accuracy")],
    ids=["dpdfd", "fed-dpsd"],
)
def test_run_without_noise_is_near_the_teacher(
    tmp_path: Path, method: str, options: dict[str, str], taught_by: str
) -> None:
    """12,800 queries, of tier quick's 25,600."""
    found = record(tmp_path, method, **options).metrics
    accuracy, teacher = found["accuracy"], found[taught_by]
    assert accuracy is not None and teacher is not None and accuracy >= teacher - GAP
