"""The papers' section of the report: pages of their tables, their figures, and all the numbers that they print."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

from bench.papers import reasons
from bench.papers.figures.draw import draw_figures, find_undrawn
from bench.papers.figures.sweep_charts import agreement
from bench.papers.printed_numbers import ISSUES, PrintedNumber, load
from bench.papers.results import read_results
from bench.papers.tables import read_recipes, read_tables
from bench.report import glossary
from bench.report.points import Panel, Point
from bench.report.sections import Section, Shown


def section(shown: Shown, numbers: Sequence[PrintedNumber] | None = None) -> Section:
    """Make the section.

    Args:
        numbers: for the figures and the charts; None = all published numbers.
    """
    dataset, recipes = shown.sources.dataset, read_recipes()
    numbers = [each for each in (load() if numbers is None else numbers) if dataset in (None, each.dataset)]
    found = [table.to_json() for table in read_tables(read_results(shown.rows), recipes, dataset)]
    drawn = draw_figures(shown, numbers, recipes)
    parts = {f"table-{table['slug']}": table | {"chart": agreement(table["lines"])} for table in found}
    parts |= {f"figure-{figure['slug']}": figure for figure in drawn}
    flags = {flag for table in found for line in table["lines"] if line["ours"] for flag in line["ours"]["flags"]}
    index = {
        "tables": [_without(table, "lines") for table in found],
        "figures": [_without(figure, "markup", "gallery") for figure in drawn],
        "undrawn": find_undrawn(drawn),
        "numbers": len(numbers),
        "issues": ISSUES,
        "reasons": reasons.CODES,
        "close": reasons.CLOSE,
    }
    script = files("bench.papers").joinpath("web", "papers.js").read_bytes()
    return Section(
        script=script,
        index=index,
        parts=parts | {"reported": [each.to_row() for each in numbers]},
        flags={flag: _explain(flag) for flag in flags},
        methods=_count_by_method(found),
        curves=partial(curves, numbers),
    )


def _without(found: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in keys}


def _explain(flag: str) -> str:
    """A flag of a table's line in a sentence: a doubt about the printed number, or a flag of the board's row."""
    if flag == "reported-differs":
        return "The papers print different accuracies for this setting; the one shown is the first source's."
    kind, _, issue = flag.partition(":")
    return ISSUES[issue] if kind == "reported" else glossary.flag(flag)


def _count_by_method(found: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Method to its tables: how many of its numbers each prints, and how many of them have one of ours."""
    counts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for table in found:
        for method in dict.fromkeys(line["method"] for line in table["lines"]):
            lines = [line for line in table["lines"] if line["method"] == method]
            ours = {line["entry"] for line in lines if line["ours"] is not None}
            cells = len({line["entry"] for line in lines})
            counts[method].append({"slug": table["slug"], "title": table["title"], "cells": cells, "ours": len(ours)})
    return dict(counts)


def curves(numbers: Iterable[PrintedNumber], dataset: str, methods: Collection[str]) -> list[Panel]:
    """The papers' accuracies on a data set at a finite epsilon, for methods that have runs; a panel for every unit.

    Ablations are left out, except the lowest points of DPSD's figure 9.
    """
    found: dict[str, set[Point]] = defaultdict(set)
    for each in numbers:
        is_drawn = each.dataset == dataset and each.method in methods and each.metric == "accuracy"
        if is_drawn and each.epsilon is not None and (each.kind != "ablation" or "Fig. 9" in each.note):
            label, series = f"as {each.paper} prints", f"{each.named} {each.paper}"
            found[each.unit].add(Point(each.method, label, each.epsilon, each.value, None, "", series=series))
    return [
        Panel("reported", unit, sorted(points, key=lambda p: (p.method, p.x, p.y, p.setting)))
        for unit, points in sorted(found.items())
    ]
