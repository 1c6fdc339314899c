"""The papers' section of the report: pages of their tables and figures, and a list of all published numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files

from bench.boards.results import of_tier
from bench.papers import reasons
from bench.papers.figures.draw import FigureSummary, draw_figures, find_undrawn
from bench.papers.figures.sweep_charts import agreement
from bench.papers.printed_numbers import ISSUES, PrintedNumber, load
from bench.papers.tables import TablePage, TableSummary, read_recipes, read_tables
from bench.report import glossary
from bench.report.files import shorten
from bench.report.points import Panel, Point
from bench.report.sections import Content, Section


@dataclass(frozen=True)
class MethodTable:
    """A table on a method's page: how many accuracies of the method it has, and for how many we have a result."""

    slug: str
    title: str
    cells: int
    ours: int


def section(content: Content, numbers: Sequence[PrintedNumber] | None = None) -> Section:
    """Build the papers' section from the report's content.

    Args:
        numbers: published numbers for the figures and the charts; None = all.
    """
    dataset, recipes = content.sources.dataset, read_recipes()
    numbers = [each for each in (load() if numbers is None else numbers) if dataset in (None, each.dataset)]
    pages = [table.to_page() for table in read_tables(of_tier(content.results), recipes, dataset)]
    drawn = draw_figures(content, numbers, recipes)
    parts: dict[str, object] = {f"table-{page.slug}": replace(page, chart=agreement(page.lines)) for page in pages}
    parts |= {f"figure-{figure.slug}": figure for figure in drawn}
    flags = {flag for page in pages for line in page.lines if line.ours for flag in line.ours.flags}
    explained = {}
    for flag in flags:
        kind, _, issue = flag.partition(":")
        explained[flag] = ISSUES[issue] if kind == "reported" else glossary.flag(flag)
    index = {
        "tables": [shorten(TableSummary, page) for page in pages],
        "figures": [shorten(FigureSummary, figure) for figure in drawn],
        "undrawn": find_undrawn(drawn),
        "numbers": len(numbers),
        "issues": ISSUES,
        "reasons": reasons.CODES,
        "close": reasons.CLOSE,
    }
    return Section(
        script=files("bench.papers").joinpath("web", "papers.js").read_bytes(),
        index=index,
        parts=parts | {"reported": [each.to_row() for each in numbers]},
        flags=explained,
        methods=count_by_method(pages),
        curves=partial(curves, numbers),
    )


def count_by_method(pages: Iterable[TablePage]) -> dict[str, list[MethodTable]]:
    """Return the tables of each method."""
    counts: dict[str, list[MethodTable]] = defaultdict(list)
    for page in pages:
        for method in dict.fromkeys(line.method for line in page.lines):
            lines = [line for line in page.lines if line.method == method]
            ours = {line.entry for line in lines if line.ours is not None}
            counts[method].append(MethodTable(page.slug, page.title, len({line.entry for line in lines}), len(ours)))
    return dict(counts)


def curves(numbers: Iterable[PrintedNumber], dataset: str, methods: Collection[str]) -> list[Panel]:
    """Return the papers' accuracies on a data set at a finite epsilon, for methods with runs; one panel per unit.

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
