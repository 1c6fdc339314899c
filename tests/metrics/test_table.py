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
def read_again() -> Any:
    """The cached table of the plug-ins is reset after a test."""
    table.metrics.cache_clear()
    yield
    table.metrics.cache_clear()


def test_every_number_of_the_published_records_is_in_the_table_and_none_has_two_meanings() -> None:
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
def test_prefixes_and_bounds_are_read_by_rule(key: str, metric: str, subject: str, bound: str) -> None:
    found = entry(key)
    assert found is not None
    assert (found.metric.key, found.subject.label, found.bound) == (metric, subject, bound)


@pytest.mark.parametrize("key", ["new", "teacher_new", "auc.mid", "evaluator_fid", "reference_other_fid", ""])
def test_a_record_holds_nothing_that_is_not_in_the_table(key: str) -> None:
    assert entry(key) is None
    with pytest.raises(ValueError, match=f"'{key}', which is no metric"):
        check(["accuracy", key])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"key": "Blur"}, "small letters"),
        ({"key": "teacher_blur"}, "prefix"),
        ({"explanation": "how blurred"}, "no sentence"),
    ],
)
def test_a_metric_says_what_is_wrong_with_it(changes: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        replace(METRIC, **changes)


def test_a_number_that_is_none_is_a_reason() -> None:
    broken = Metric("blur", "blur", "How blurred.", compute=lambda given: float("nan"))
    with pytest.raises(ValueError, match="blur is nan"):
        broken.measure(None)  # type: ignore[arg-type]


def test_the_folder_s_plug_ins_compute_themselves_and_others_do_not() -> None:
    assert computed() == (METRIC,)
    assert {metric.compute for metric in BUILT_IN} == {None}


class TestFeatureDistance(MetricContract):
    metric = METRIC


def test_the_contract_notices_what_breaks_it() -> None:
    def first(given: Any) -> float:
        return float(given.images[0].sum())

    def greedy(given: Any) -> float:
        given.private.features.zero_()
        return 1.0

    for compute, broken in (
        (first, "the_order_of_the_images_plays_no_part"),
        (greedy, "leaves_what_it_is_given_alone"),
    ):
        made = MetricContract()
        made.metric = replace(METRIC, compute=compute)  # type: ignore[misc]
        with pytest.raises(AssertionError):
            getattr(made, f"test_{broken}")()


class Point:
    """An entry point as importlib.metadata gives them."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value, self._object = name, f"elsewhere:{name}", value

    def load(self) -> Any:
        if isinstance(self._object, BaseException):
            raise self._object
        return self._object


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("fid", replace(METRIC, key="fid"), "called 'fid': in bench.metrics.built_in and elsewhere:fid"),
        ("feature_distance", METRIC, "in bench.metrics.image_metrics.feature_distance and elsewhere:feature_distance"),
        (
            "blur",
            ImportError("no module named blur"),
            "metric 'blur' in elsewhere:blur: ImportError: no module named blur",
        ),
        ("blur", TypeError("__init__() got\nan unexpected keyword"), "elsewhere:blur: TypeError: __init__() got; mend"),
        ("blur", SystemExit(0), "metric 'blur' in elsewhere:blur: SystemExit: 0; mend"),
        ("blur", METRIC, "expected a Metric with the key 'blur'"),
        ("blur", "text", "expected a Metric"),
        ("blur", replace(METRIC, key="blur", compute=None), "with `compute`"),
    ],
)
def test_a_bad_plug_in_is_named_with_its_place(
    name: str, value: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "entry_points", lambda group: [Point(name, value)])
    with pytest.raises(BenchError) as caught:
        metrics()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_table_is_read_without_torch() -> None:
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
    beside_teacher=True, core=True, compute=contrast,
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
def test_a_third_partys_metric_is_in_record_board_page_and_terminal(tmp_path: Path) -> None:
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
