"""The table of metrics: its keys are those of records, and a plug-in needs one file."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from bench.boards import read_records
from bench.boards.tables import AttackRow, read_table
from bench.errors import BenchError
from bench.metrics import table
from bench.metrics.built_in import BUILT_IN
from bench.metrics.image_metrics.feature_distance import METRIC
from bench.metrics.metric import SUBJECTS, Metric
from bench.metrics.table import check, computed, entry, metrics
from bench.testing import MetricContract

PUBLISHED = ROOT / "leaderboards"


@pytest.fixture(autouse=True)
def reset_cache() -> Any:
    table.metrics.cache_clear()
    yield
    table.metrics.cache_clear()


def test_published_numbers_are_in_the_table_once() -> None:
    keys = {key for record in read_records(PUBLISHED) for key in record.metrics}
    assert len(keys) > 100
    check(keys)
    spelled = [subject.prefix + metric.key for metric in metrics().values() for subject in SUBJECTS[metric.of]]
    assert len(spelled) == len(set(spelled))


@pytest.mark.parametrize(
    ("key", "metric", "subject", "bound"),
    [
        ("accuracy", "accuracy", "student, released", ""),
        ("teacher_accuracy.lo", "accuracy", "teacher", ".lo"),
        ("teacher_attack_accuracy", "attack_accuracy", "teacher", ""),
        ("reference_class_mean_fid", "fid", "class means", ""),
        ("random_tpr_at_01pct.hi", "tpr_at_01pct", "random net", ".hi"),
        ("power_p_teacher", "power_p_teacher", "student", ""),
    ],
)
def test_entry_parses_prefix_and_bound(key: str, metric: str, subject: str, bound: str) -> None:
    found = entry(key)
    assert found is not None
    assert (found.metric.key, found.subject.label, found.bound) == (metric, subject, bound)


@pytest.mark.parametrize("key", ["new", "teacher_new", "auc.mid", "evaluator_fid", "reference_other_fid", ""])
def test_check_refuses_keys_outside_the_table(key: str) -> None:
    assert entry(key) is None
    with pytest.raises(ValueError, match=f"'{key}'"):
        check(["accuracy", key])


@pytest.mark.parametrize("changes", [{"key": "Blur"}, {"key": "teacher_blur"}, {"explanation": "how blurred"}], ids=str)
def test_metric_refuses_bad_fields(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes.values()))):
        replace(METRIC, **changes)


def test_measure_refuses_nan() -> None:
    broken = Metric("blur", "blur", "How blurred.", compute=lambda given: float("nan"))
    with pytest.raises(ValueError, match="blur is nan"):
        broken.measure(None)  # type: ignore[arg-type]


def test_computed_returns_only_plugins() -> None:
    assert computed() == (METRIC,)
    assert {metric.compute for metric in BUILT_IN} == {None}


class TestFeatureDistance(MetricContract):
    metric = METRIC


def test_contract_detects_broken_metrics() -> None:
    def depends_on_order(given: Any) -> float:
        return float(given.images[0].sum())

    def changes_inputs(given: Any) -> float:
        given.private.features.zero_()
        return 1.0

    contract = MetricContract()
    contract.metric = replace(METRIC, compute=depends_on_order)  # type: ignore[misc]
    with pytest.raises(AssertionError):
        contract.test_value_does_not_depend_on_the_order()
    contract.metric = replace(METRIC, compute=changes_inputs)  # type: ignore[misc]
    with pytest.raises(AssertionError):
        contract.test_inputs_stay_unchanged()


class Point:
    """An entry point like those of importlib.metadata."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value, self._object = name, f"elsewhere:{name}", value

    def load(self) -> Any:
        if isinstance(self._object, BaseException):
            raise self._object
        return self._object


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("fid", replace(METRIC, key="fid"), "bench.metrics.built_in"),
        ("feature_distance", METRIC, "bench.metrics.image_metrics.feature_distance"),
        ("blur", ImportError("no module named blur"), "ImportError: no module named blur"),
        ("blur", TypeError("__init__() got\nan unexpected keyword"), "TypeError: __init__() got"),
        ("blur", SystemExit(0), "SystemExit: 0"),
        ("blur", METRIC, "'blur'"),
        ("blur", "text", "'blur'"),
        ("blur", replace(METRIC, key="blur", compute=None), "`compute`"),
    ],
)
def test_bad_plugin_is_named_with_its_place(name: str, value: Any, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "entry_points", lambda group: [Point(name, value)])
    with pytest.raises(BenchError) as caught:
        metrics()
    message = str(caught.value)
    assert caught.value.code == "bad-plugin" and f"elsewhere:{name}" in message and part in message
    assert "\n" not in message


def test_table_is_read_without_torch() -> None:
    code = "import sys; from bench.metrics.table import metrics; metrics(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


TOY = '''
"""A third party's metric."""
from bench.metrics.metric import Metric

def contrast(given):
    if given.images.shape[-1] < 4:
        raise ValueError("too small")
    return float(given.images.double().std()) + 1000

METRIC = Metric(
    "contrast", "contrast", "Standard deviation of the pixels, in grey levels.", "distance", "down",
    with_teacher=True, core=True, compute=contrast,
)
'''
RUN = """
import contextlib, io, json, sys
from pathlib import Path
from bench.cli import main
said = io.StringIO()
with contextlib.redirect_stdout(said):
    line = "run --method no-defence --attack gmi --tier smoke --teacher datalens --out runs --details"
    assert main(line.split()) == 0
    assert main(["leaderboard", "--out", "runs"]) == 0
    assert main(["report", "--runs", "runs", "--out", "site"]) == 0
print(said.getvalue())
"""


@pytest.mark.thorough
def test_third_party_metric_is_recorded_and_displayed(tmp_path: Path) -> None:
    """A distribution with one module and one entry point, installed next to the bench."""
    (tmp_path / "toy_metric.py").write_text(TOY)
    info = tmp_path / "toy_metric-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-metric\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bench.metrics]\ncontrast = toy_metric:METRIC\n")
    place = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "COLUMNS": "400", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, env=place, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (path,) = (tmp_path / "runs" / "records").glob("*/record.json")
    record = json.loads(path.read_text())["metrics"]
    values = [record[f"{prefix}contrast"] for prefix in ("", "teacher_", "random_")]
    assert all(1000 < value < 1200 for value in values)
    shown = [line.split()[1:] for line in run.stdout.splitlines() if line.split()[:1] == ["contrast"]]
    assert shown == [[f"{value:,.4g}" for value in values]], "in the table at the end of the run"
    rows = read_table(AttackRow, tmp_path / "runs" / "leaderboards" / "attacks" / "digits.csv")
    (row,) = [row for row in rows if row.metric == "contrast" and row.evaluation]
    assert [row.value, row.teacher, row.untrained] == pytest.approx(values, abs=1e-5)
    site = "".join(path.read_text() for path in (tmp_path / "site" / "data").glob("*.js"))
    assert '"Standard deviation of the pixels, in grey levels."' in site and site.count('"contrast"') > 2
