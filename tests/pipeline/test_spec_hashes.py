"""The hashes that name runs, releases and audits in stores and among published records.

A hash moves with a version, an option or a default of a plug-in, and with the images of digits; then the numbers below
are replaced. It must not move with how a spec is made or written."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records_made import privacy

from bench.core.privacy import PrivacyReport
from bench.core.records import RunRecord
from bench.errors import RunFailed
from bench.pipeline.canary_audit import audit_spec, release_of, teachers_of
from bench.pipeline.canary_game import CanaryGame
from bench.pipeline.components import Components
from bench.pipeline.job import Job, run_spec
from bench.pipeline.resolve import load_job
from bench.pipeline.run import make_record
from bench.pipeline.settings import Settings
from bench.pipeline.trained import StageResult
from bench.privacy import Budget
from bench.storage.provenance import Origin, StepLog

NO_BUDGET = Budget(None, solve="none")
ACCOUNTED = Budget(1.0, account="accounted")
RUNS: list[tuple[dict[str, Any], str, str]] = [
    ({"method": "dpsd", "attack": "gmi"}, "ecdacfe2220d16ba", "18a57e9c3e8d5622"),
    ({"method": "dpsd", "attack": "rmia", "tier": "quick", "variant": "printed"},
     "a3852af413cfc4b0", "15c2739e67004b52"),
    ({"method": "pate", "attack": "lira", "method_options": (("teachers", "20"),)},
     "17e0e2465021b500", "e24017b9ae8a873b"),
    ({"method": "fed-dpsd", "budget": Budget(math.inf)}, "005f8d0562c01074", "7bfbe2e0b52288e8"),
    ({"method": "dp-merf", "attack": "domias", "budget": Budget(3.0, account="accounted")},
     "871be786d4e5a8db", "710a7f6a5928a488"),
    ({"method": "no-defence", "attack": "mi-face", "tier": "paper", "noise": "os", "budget": NO_BUDGET,
      "teacher_options": (("epochs", "3"),)}, "30a30b505a60d2c1", "b93c52ec157167f6"),
    ({"method": "private-features", "split": "disjoint-low", "budget": ACCOUNTED},
     "68696f5c57b8b256", "34a1f3e9199f009e"),
]  # fmt: skip


def job(out: Path, components: Components | None = None, **given: Any) -> Job:
    settings = {"attack": None, "tier": "smoke", "device": "cpu", "out": out} | given
    return load_job(Settings(**settings), components, budget=False)


@pytest.mark.parametrize(
    ("given", "run", "release"), RUNS, ids=lambda given: given.get("method", "") if isinstance(given, dict) else ""
)
def test_hash_of_a_run_and_its_release_does_not_move(
    tmp_path: Path, given: dict[str, Any], run: str, release: str
) -> None:
    for components in (Components(), Components(caches=True)):
        spec = run_spec(job(tmp_path, components, **given), 3)
        assert (spec.hash, spec.release.hash) == (run, release)


@pytest.mark.parametrize(("method", "is_same"), [("private-features", True), ("dp-sgd", True), ("dpsd", False)])
def test_student_counts_where_it_is_trained(tmp_path: Path, method: str, is_same: bool) -> None:
    """A method that releases its own network has one hash for any --student."""
    one, other = (run_spec(job(tmp_path, method=method, student=name), 0).hash for name in ("datalens", "relu-cnn"))
    assert (one == other) == is_same


def test_hash_of_an_audit_does_not_move(tmp_path: Path) -> None:
    spec = audit_spec(job(tmp_path, method="dpsd"), CanaryGame(score="rmia", overfit=True), 2)
    assert spec.hash == "0d84ac85a3f88b69"
    assert {name: release_of(spec, teacher).hash for name, teacher in teachers_of(spec).items()} == {
        "teacher": "cd48440595c0960d",
        "null_teacher": "7d8bdda1f61d1b8f",
        "reference_teacher": "f1ad93f1d611c91c",
    }


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
