"""The papers' section of the report: its index, its flags, its curves, and a report without it."""

from __future__ import annotations

import re

from made import parts_of, png, record

from bench import registry
from bench.papers.printed_numbers import COLUMNS, ISSUES, load, read_row
from bench.papers.section import curves
from bench.report import Sources
from bench.report.site import build_content, parts

EMPTY = dict.fromkeys(COLUMNS, "")


def test_every_issue_is_explained() -> None:
    issues = {issue for entry in load() for issue in entry.issues}
    page = (registry.ROOT / "docs" / "papers.md").read_text(encoding="utf-8").partition("## Issues")[2]
    named = set(re.findall(r"^\| `([a-z-]+)` \|", page.partition("\n## ")[0], re.MULTILINE))
    assert issues == named == set(ISSUES) and all(text.endswith(".") for text in ISSUES.values())


def test_flags_of_compared_results_are_explained() -> None:
    made = {"dataset": "mnist", "claim_unit": "query", "accounted": 7639.0, "variant": "working"}
    flags = parts_of(Sources([record("dpsd", accuracy=0.7, **made)]))["index"]["flags"]
    assert flags["reported:exceeds-information"] == ISSUES["exceeds-information"] and "other-unit" in flags


def test_report_without_papers_has_no_trace_of_them() -> None:
    shown, _ = build_content(Sources([record("dpsd", dataset="mnist")]))
    found = parts(shown, {})
    assert "papers" not in found["index"] and not found["method-dpsd"]["sections"]
    assert not [name for name in found if name.startswith(("table-", "figure-", "reported"))]
    assert not [key for key in found["board-mnist"]["columns"] if key.startswith("reported")]
    assert not [flag for flag in found["index"]["flags"] if flag.startswith("reported")]


def test_curves_have_numbers_of_given_methods() -> None:
    row = EMPTY | {"paper": "dpsd", "dataset": "mnist", "method": "dpsgd", "kind": "training", "unit_claimed": "data"}
    row |= {"epsilon": "2", "metric": "accuracy", "value": "0.95"}
    rows = [
        row,
        row,
        row | {"dataset": "fmnist"},
        row | {"method": "other"},
        row | {"kind": "ablation"},
        row | {"epsilon": ""},
    ]
    rows += [
        row | {"unit_claimed": "label"},
        row | {"kind": "ablation", "note": "lowest point of Fig. 9", "value": "0.3"},
    ]
    found = {
        panel.unit: [(p.method, p.x, p.y) for p in panel.points]
        for panel in curves(map(read_row, rows), "mnist", ["dp-sgd"])
    }
    assert found == {"data": [("dp-sgd", 2.0, 0.3), ("dp-sgd", 2.0, 0.95)], "label": [("dp-sgd", 2.0, 0.95)]}


def test_curves_distinguish_dp_dfd_from_dpdfd() -> None:
    row = EMPTY | {"paper": "dp-dfd", "dataset": "mnist", "kind": "generator", "unit_claimed": "label"}
    row |= {"epsilon": "1", "metric": "accuracy"}
    rows = [row | {"method": "dp-dfd", "value": "0.97"}, row | {"method": "dpdfd", "value": "0.9"}]

    def drawn(*methods: str) -> list[tuple[str, float]]:
        return [(p.method, p.y) for panel in curves(map(read_row, rows), "mnist", methods) for p in panel.points]

    assert drawn("dp-dfd", "dpdfd") == [("dp-dfd", 0.97), ("dpdfd", 0.9)]
    assert drawn("dpdfd") == [("dpdfd", 0.9)] and drawn("dp-dfd") == [("dp-dfd", 0.97)]


def test_undrawn_figures_are_named() -> None:
    one = record("dpsd")
    assert ["dpsd", "Fig. 7"] in parts_of(Sources([one]))["index"]["papers"]["undrawn"]
    pictured = parts_of(Sources([one], pictures={one.hash: {"synthetic": png()}}))["index"]["papers"]["undrawn"]
    assert ["dpsd", "Fig. 7"] not in pictured and ["dp-dfd", "Fig. 4"] in pictured
