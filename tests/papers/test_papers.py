"""The papers' tables, ours, and their section of the report: every published number, its cell and flags."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from made import board, line, parts_of, png, printed, record

from bench import registry
from bench.boards.results import Result
from bench.papers.comparison import Line
from bench.papers.figures import sweep_charts
from bench.papers.printed_numbers import COLUMNS, ISSUES, PrintedNumber, load, read_row, table
from bench.papers.section import curves
from bench.papers.tables import PaperTable, Recipes, TablePage, read_recipes, read_tables
from bench.report import Sources, charts
from bench.report.site import build_content, parts


def some_results() -> list[Result]:
    made = {"dataset": "mnist", "claim_unit": "query", "accounted": 7639.0}
    records = [record("dpsd", seed, 0.7 + seed / 100, variant="working", **made) for seed in (0, 1)]
    return board(*records, record("dpsd", 0, 0.1, variant="printed", **made), record("dp-merf", 0, 0.8, **made))


def tables(found: list[Result], recipes: Recipes | None = None, dataset: str | None = None) -> list[TablePage]:
    return [each.to_page() for each in read_tables(found, recipes or {}, dataset)]


def test_table_has_every_number_and_variant() -> None:
    found = {page.slug: page for page in tables(some_results(), read_recipes())}
    one = found["dpsd-table-i"]
    assert one.cells == len(table("dpsd", "Table I")) and one.recipe == "recipes/dpsd-table1.toml"
    own = [each for each in one.lines if each.method == "dpsd" and each.ours]
    assert [(each.epsilon, each.printed) for each in own] == [(10.0, 0.9785)] * 2
    assert len({each.entry for each in own}) == 1, "one printed number, two variants of ours"
    ours = {each.ours.variant: each.ours for each in own if each.ours}
    assert ours["working"].usual and not ours["printed"].usual
    assert ours["working"].difference == pytest.approx(0.705 - 0.9785)
    assert ours["working"].reason and ours["working"].reason.code == "information" and ours["working"].seeds == 2
    assert (one.ours, one.within) == (2, 1), "dp-merf is ahead; dpsd counts by the variant run by default"
    empty = [each for each in one.lines if not each.ours]
    assert {each.state for each in empty} <= {"not run", "planned"} and empty


def test_counting_line_is_furthest_behind_if_unsure() -> None:
    (entry,) = (e for e in load() if (e.paper, e.dataset, e.method) == ("dp-dfd", "celeba-g", "dp-merf"))
    of_merf = {"method": "dp-merf", "variant": "printed"}
    near, far = line(entry, entry.value + 0.01, **of_merf), line(entry, entry.value - 0.05, **of_merf)
    for lines in ([near, far], [far, near]):
        made = PaperTable([entry], lines, {})
        assert made.counting == {entry: far} and made.within == 0
    for one in tables(some_results()):
        assert sum(each.counts for each in one.lines) == one.ours


def number(**changes: Any) -> PrintedNumber:
    """A published number of DPSD, without issues."""
    return replace(printed("dpsd", "Table I", "dpsd", 10.0), issues=(), **changes)


def shown(*lines: Line) -> list[tuple[bool, str]]:
    """Whether each line is shown in its cell, and its small print."""
    made = PaperTable(list(dict.fromkeys(each.entry for each in lines)), lines, {})
    return [(made.is_shown(each), made.label(each)) for each in lines]


def test_cell_of_unsure_epsilon_shows_both() -> None:
    unsure, other = replace(number(), issues=("eps-uncertain",)), number(table="another")
    assert shown(
        line(unsure, 0.5, epsilon_claimed=10.0),
        line(unsure, 0.4, epsilon_claimed=0.9997),
        line(unsure, 0.3, epsilon_claimed=1.0, variant="printed"),
        line(other, 0.5),
        line(other, 0.4, variant="printed"),
    ) == [(True, "ε 10"), (True, "ε 1"), (False, ""), (True, ""), (False, "")]


def test_cell_next_to_ablations_shows_variant_and_tier() -> None:
    full, ablated = number(), number(ablation="loss=CE+IE")
    assert shown(
        line(full, 0.5, tier="paper"),
        line(full, 0.4, variant="printed"),
        line(ablated, 0.4, variant="printed"),
        Line(number(table="not run"), None, "not run"),
        line(number(method="pate"), 0.4, method="pate", variant="printed"),
    ) == [(True, "working, paper"), (True, "printed, quick"), (True, "printed, quick"), (True, ""), (True, "")]
    alike = shown(line(full, 0.4, variant="printed"), line(ablated, 0.4, variant="printed"))
    assert [label for _, label in alike] == ["", ""]


def test_line_names_both_epsilons_or_missing_data_set() -> None:
    found = {one.slug: one for one in tables(some_results())}
    (merf,) = (e for e in found["dp-dfd-table-i"].lines if (e.method, e.dataset) == ("dp-merf", "celeba-g"))
    assert (merf.epsilon, merf.either, merf.shown) == (None, (1.0, 10.0), True)
    (nowhere,) = found["dgd-text-iv-b-label-query"].lines
    assert nowhere.state == "no data set named"
    assert found["dgd-text-iv-b-label-query"].title.endswith("dgd, no data set named")
    claimed = {one.ours.claimed for one in found["dpsd-table-i"].lines if one.ours}
    assert claimed == {10.0}


def test_failed_seeds_are_not_counted() -> None:
    first, *others = some_results()
    failed = replace(first, runs=(first.runs[0], replace(first.runs[-1], status="failed")))
    (seeds,) = {
        line.ours.seeds
        for page in tables([failed, *others])
        for line in page.lines
        if line.ours and (line.method, line.ours.variant) == (first.release.method, first.release.variant)
    }
    assert seeds == len(failed.finished) == 1


def test_tables_of_one_data_set_leave_out_the_others() -> None:
    found = tables(some_results(), {}, "fmnist")
    assert {line.dataset for page in found for line in page.lines} == {"fmnist"}
    assert tables(some_results(), {}, "digits") == []


def dpsd_table() -> TablePage:
    return next(page for page in tables(some_results()) if page.slug == "dpsd-table-i")


def test_agreement_chart_marks_every_number_of_ours() -> None:
    lines = dpsd_table().lines
    markup = sweep_charts.agreement(lines)
    assert markup.count('class="point') == sum(each.ours is not None for each in lines) == 3
    assert sweep_charts.agreement([each for each in lines if not each.ours]) == ""


def test_agreement_band_is_two_points_wide() -> None:
    markup = sweep_charts.agreement(dpsd_table().lines)
    (band,) = re.findall(r'<path d="M([^"]+)z" class="near"', markup)
    corners = [tuple(map(float, each.split())) for each in band.split("L")]
    assert len(corners) == 6
    (x0, y0), (x3, y3) = corners[0], corners[3]
    right = charts.WIDTH - 24
    assert (x0, y0) == (charts.LEFT, charts.BOTTOM) and (x3, y3) == (right, charts.TOP), "from corner to corner"
    (a, b), (c, d) = corners[1], corners[5]
    wide, tall = right - charts.LEFT, charts.BOTTOM - charts.TOP
    assert a == charts.LEFT and d == charts.BOTTOM
    assert (charts.BOTTOM - b) / tall == pytest.approx((c - x0) / wide, abs=1e-3)


def test_agreement_chart_draws_equality() -> None:
    lines = [
        replace(each, printed=0.95, ours=replace(each.ours, accuracy=0.1)) for each in dpsd_table().lines if each.ours
    ]
    markup = sweep_charts.agreement(lines)
    assert 'class="level"' in markup and 'class="near"' in markup


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
