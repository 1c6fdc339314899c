"""The record of a run's results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records_made import privacy

from bench.core.privacy import PrivacyReport
from bench.core.records import RunRecord
from bench.errors import RunFailed
from bench.pipeline.job import run_spec
from bench.pipeline.resolve import load_job
from bench.pipeline.run import make_record
from bench.pipeline.settings import Settings
from bench.pipeline.trained import StageResult
from bench.storage.provenance import Origin, StepLog


def record_of(out: Path, **found: Any) -> RunRecord:
    job = load_job(Settings("no-defence", None, tier="smoke", device="cpu", out=out))
    report = PrivacyReport.model_validate(privacy())
    return make_record(job, run_spec(job, 0), StepLog(Origin()), StageResult(**found), privacy=report)


def test_record_numpy_numbers_become_plain(tmp_path: Path) -> None:
    metrics = {"accuracy": np.float64(0.5), "queries": 80, "fid": None}
    record = record_of(tmp_path, metrics=metrics, missing={"fid": "too few images"})
    assert record.to_plain()["metrics"] == {"accuracy": 0.5, "queries": 80, "fid": None}
    assert type(record.metrics["accuracy"]) is float and type(record.metrics["queries"]) is int


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5", True])
def test_record_metric_not_finite_fails_the_run(tmp_path: Path, value: Any) -> None:
    with pytest.raises(RunFailed, match=r"metrics\.accuracy"):
        record_of(tmp_path, metrics={"accuracy": value})


def test_record_text_not_utf8_is_escaped(tmp_path: Path) -> None:
    record = record_of(tmp_path, metrics={"fid": None}, missing={"fid": "caf\udce9"})
    assert record.missing == {"fid": "caf\\xe9"}
