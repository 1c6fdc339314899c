"""The papers' section of the report: pages of their tables, their figures, and all the numbers that they print."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any

from bench.papers import reasons
from bench.papers.figures.draw import draw_figures, find_undrawn
from bench.papers.figures.sweep_charts import agreement
from bench.papers.printed_numbers import ISSUES, NAMES, read_rows
from bench.papers.tables import read_recipes, tables
from bench.report import glossary
from bench.report.points import Panel, Point
from bench.report.sections import Section, Shown


def section(shown: Shown, numbers: Sequence[Mapping[str, str]] | None = None) -> Section:
    """Make the section.

    Args:
        numbers: rows of reported.csv for the figures and the charts; None reads them.
    """
    dataset, recipes = shown.sources.dataset, read_recipes()
    numbers = [row for row in (read_rows() if numbers is None else numbers) if dataset in (None, row["dataset"])]
    found, drawn = tables(shown.rows, recipes, dataset), draw_figures(shown, numbers, recipes)
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
        parts=parts | {"reported": numbers},
        flags={flag: _explain(flag) for flag in flags},
        methods=_count_by_method(found),
        curves=partial(curves, numbers),
    )


def _without(found: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in keys}


def _explain(flag: str) -> str:
    """A flag of a table's line in a sentence: a doubt about the printed number, or a flag of the board's row."""
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


def curves(numbers: Iterable[Mapping[str, str]], dataset: str, methods: Collection[str]) -> list[Panel]:
    """The papers' accuracies on a data set at a finite epsilon, for methods that have runs; a panel for every unit.

    Ablations are left out, except the lowest points of DPSD's figure 9.
    """
    found: dict[str, set[Point]] = defaultdict(set)
    for row in numbers:
        method = NAMES.get(row["method"], row["method"])
        drawn = row["kind"] != "ablation" or "Fig. 9" in row["note"]
        drawn = drawn and row["dataset"] == dataset and method in methods
        if drawn and row["metric"] == "accuracy" and row["epsilon"]:
            point = Point(method, f"as {row['paper']} prints", float(row["epsilon"]), float(row["value"]), None, "")
            found[row["unit_claimed"]].add(replace(point, series=f"{row['method']} {row['paper']}"))
    return [
        Panel("reported", unit, sorted(points, key=lambda p: (p.method, p.x, p.y, p.setting)))
        for unit, points in sorted(found.items())
    ]
