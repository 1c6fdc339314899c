"""Rows of the tables of epsilons claimed, accounted and audited, and of the papers' numbers and sentences."""

from __future__ import annotations

import inspect
from collections import Counter

from bench import registry
from bench.errors import BenchError, kinds
from bench.papers import information, printed_numbers
from bench.papers.figures import FIGURES
from bench.papers.figures.draw import answer
from bench.papers.figures.sweep_points import pictures
from bench.papers.results import read_results
from bench.papers.tables import read_tables
from bench.report.points import grouped
from docs.tables.boards import board, lines, needed, older, published, records, seeds
from docs.tables.cells import sized


def audited(name: str) -> dict[str, object]:
    """What audits of whole releases measured, next to what the releases promise for one private record."""
    rows = sorted(board(name), key=lambda row: (not older(row), seeds(row)))
    kinds = {(row["method"], row["variant"], sized(row)): row for row in rows if row["epsilon_audited"]}
    return {"rows": [row for _, row in sorted(kinds.items())]}


def excluded() -> dict[str, object]:
    """The published accuracies that need more than the settings published with them let through; a sentence that
    repeats a table is left out."""
    found = [each for each in printed_numbers.load() if information.exceeds(each) and not each.table.startswith("text")]
    return {"rows": [(e, information.allowed(e), information.least(e), information.carried(e)) for e in found]}


def found(finding: str) -> dict[str, object]:
    """The published number, and what was measured, claimed and accounted here, on MNIST."""
    rows = [(line, needed("mnist", line)) for line in lines(f"found_{finding}")]
    return {"rows": rows, "printed": any(row["reported_accuracy"] for _, row in rows)}


def compared() -> dict[str, object]:
    """Of each table of the papers, and of their sentences: how many numbers have one of ours."""
    counts: dict[str, Counter[str]] = {}
    codes: dict[str, Counter[str]] = {}
    for each in (found.to_json() for found in read_tables(read_results(published()), {})):
        of = f"`{each['paper']}` {each['table'] if each['table'].startswith('Table') else 'sentences'}"
        counting = [line["ours"] for line in each["lines"] if line["counts"]]
        for key in (of, "all"):
            counts.setdefault(key, Counter()).update({name: each[name] for name in ("cells", "ours", "within")})
            codes.setdefault(key, Counter()).update(ours["reason"][0] for ours in counting if ours["reason"])
    ordered = sorted(counts, key="all".__eq__)  # the sums come last
    return {"rows": [(key, counts[key], codes[key].most_common()) for key in ordered]}


def issues() -> dict[str, object]:
    """How many of the papers' published numbers a contradiction touches, by paper."""
    numbers = printed_numbers.load()
    papers = list(dict.fromkeys(number.paper for number in numbers))
    names = sorted({name for number in numbers for name in number.issues})
    counts = Counter((number.paper, name) for number in numbers for name in number.issues)
    touched, every = (Counter(number.paper for number in of) for of in ([n for n in numbers if n.issues], numbers))
    return {"papers": papers, "names": names, "counts": counts, "touched": touched, "every": every}


def said() -> dict[str, object]:
    """Every sentence of the papers on a figure that a picture has an answer to, by figure and data set."""
    numbers, rows = printed_numbers.load(), []
    groups = grouped([record for record in records().values() if record.spec["tier"] != "smoke"], attacks=False)
    for figure in FIGURES:
        sweeps = [sweep for sweep in figure.sweeps if sweep.says]
        drawn = [picture for sweep in sweeps for picture in pictures(sweep, figure.paper, groups, numbers)]
        answers = sorted(answer(figure, drawn, numbers), key=lambda each: (each["text"], each["dataset"]))
        rows += [(figure, found) for found in answers]
    return {"rows": rows}


def seen() -> dict[str, object]:
    """Data set and settings of every baseline that says that they were chosen by a test set."""
    rows = [
        (name, dataset, settings)
        for name in registry.entries("method", "baselines")
        for dataset, settings in sorted(registry.describe("method", name).facts.get("seen_test_sets", {}).items())
    ]
    return {"rows": rows}


def errors() -> dict[str, object]:
    """Every class of errors with its exit status, and its meaning: the first paragraph of its docstring."""
    rows = []
    for kind in kinds():
        meaning = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
        rows.append((kind, 2 if issubclass(kind, BenchError) else 1, meaning))
    return {"rows": rows}
