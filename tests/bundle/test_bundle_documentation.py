"""docs/releasing.md documents every field of a record, and every metric of runs."""

from __future__ import annotations

import dataclasses
import re
from fnmatch import fnmatch
from pathlib import Path

from bundles import found
from conftest import ROOT

from bench.boards import read_records
from bench.bundle import account, network
from bench.storage.records import Record

PAGE = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")


def named() -> list[str]:
    """Return the names in the first column of the table."""
    rows = re.findall(r"^\| (`.*?) \|", PAGE, flags=re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_docs_table_has_every_field_of_a_record() -> None:
    fields = {field.name for field in dataclasses.fields(Record)}
    assert fields == {name.split(".")[0] for name in named() if name.split(".")[0] in fields}


def test_docs_table_has_every_metric() -> None:
    patterns = [name.removeprefix("metrics.") for name in named() if name.startswith("metrics.")]
    records = [found("dpsd data").record, found("class-moments").record]
    records += read_records(ROOT / "leaderboards")
    metrics = {name for record in records for name in record.metrics}
    assert {"auc", "knn_gap", "ensemble_accuracy", "control_accuracy", "power_p_teacher"} <= metrics
    assert [name for name in sorted(metrics) if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_bundle_code_reads_only_the_accuracy_metric() -> None:
    """The allow-list is in the code: exporting another metric requires changing this test and the table."""
    sources = [Path(module.__file__ or "").read_text(encoding="utf-8") for module in (account, network)]
    assert set(re.findall(r"metrics\[f?\"([a-z_.{}]+)\"\]", "".join(sources))) == {"accuracy{end}"}
