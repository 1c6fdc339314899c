"""The record of a run's results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records_made import privacy

from bench.core.privacy import PrivacyReport
from bench.core.records import Provenance
from bench.errors import RunFailed
from bench.pipeline.job import run_spec
from bench.pipeline.resolve import load_job
from bench.pipeline.run import make_record
from bench.pipeline.settings import Settings


def made(out: Path, **found: Any) -> Any:
    job = load_job(Settings("no-defence", None, tier="smoke", device="cpu", out=out))
    report = PrivacyReport.model_validate(privacy())
    return make_record(job, run_spec(job, 0), "ok", "", Provenance(device="cpu"), report=report, **found)


def test_numbers_of_numpy_become_plain_numbers(tmp_path: Path) -> None:
    metrics = {"accuracy": np.float64(0.5), "queries": 80, "fid": None}
    record = made(tmp_path, metrics=metrics, missing={"fid": "too few images"})
    assert record.to_plain()["metrics"] == {"accuracy": 0.5, "queries": 80, "fid": None}
    assert type(record.metrics["accuracy"]) is float and type(record.metrics["queries"]) is int


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5", True])
def test_a_metric_that_is_not_a_finite_number_fails_the_run_by_name(tmp_path: Path, value: Any) -> None:
    with pytest.raises(RunFailed, match=r"metrics\.accuracy: .* is not a number"):
        made(tmp_path, metrics={"accuracy": value})


def test_text_that_utf8_cannot_hold_is_escaped(tmp_path: Path) -> None:
    record = made(tmp_path, metrics={"fid": None}, missing={"fid": "caf\udce9"})
    assert record.missing == {"fid": "caf\\xe9"}
