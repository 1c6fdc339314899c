"""Rows of the tables of epsilons claimed, accounted and audited, and of the papers' numbers and sentences."""

from __future__ import annotations

import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bench import registry
from bench.boards.reproduction import number_of, read_claims
from bench.boards.results import of_tier
from bench.boards.tables import ACCURACY, LOWER, LOWER_CEILING, LOWER_NULL
from bench.errors import BenchError, kinds
from bench.papers import information, printed_numbers
from bench.papers.comparison import Line, compare
from bench.papers.figures import FIGURES
from bench.papers.figures.draw import check_sentences
from bench.papers.figures.sweep_points import pictures
from bench.papers.reasons import Reason, reason, without_noise
from bench.papers.tables import read_tables
from bench.report.points import grouped
from bench.validate import present
from docs.tables.boards import ROOT, board, lines, needed, published, published_number, records
from docs.tables.cells import sized

GROUPS = 14
"""Groups of numbers in the table `behind`."""


def audited(name: str) -> dict[str, object]:
    """Return the bounds of audits of whole releases, next to the epsilons for one private record."""
    audits = [each for each in board(name) if each.value(LOWER) is not None]
    audits.sort(key=lambda each: (not each.is_older, len(each.runs)))
    kinds = {(each.release.method, each.release.variant, sized(each)): each for each in audits}
    rows = []
    for _, each in sorted(kinds.items(), key=lambda kind: kind[0]):
        bounds = (each.value(LOWER), each.on_teacher(LOWER), each.value(LOWER_NULL), each.value(LOWER_CEILING))
        rows.append((each, bounds))
    return {"rows": rows}


def excluded() -> dict[str, object]:
    """Return the published accuracies that need more information than their published settings let through; sentences
    that repeat a table are left out."""
    found = [each for each in printed_numbers.load() if information.exceeds(each) and not each.table.startswith("text")]
    return {"rows": [(e, information.allowed(e), information.least(e), information.carried(e)) for e in found]}


def found(finding: str) -> dict[str, object]:
    """Return the results of a finding on MNIST."""
    rows = [(line, needed("mnist", line)) for line in lines(f"found_{finding}")]
    return {"rows": rows, "printed": any(published_number(result) for _, result in rows)}


def compared() -> dict[str, object]:
    """Count the numbers with one of ours, for each table of the papers and for their sentences."""
    counts: dict[str, Counter[str]] = {}
    codes: dict[str, Counter[str]] = {}
    for page in (table.to_page() for table in read_tables(of_tier(published()), {})):
        of = f"`{page.paper}` {page.table if page.table.startswith('Table') else 'sentences'}"
        counting = [line.ours for line in page.lines if line.counts and line.ours is not None]
        for key in (of, "all"):
            counts.setdefault(key, Counter()).update(cells=page.cells, ours=page.ours, within=page.within)
            codes.setdefault(key, Counter()).update(ours.reason.code for ours in counting if ours.reason)
    ordered = sorted(counts, key="all".__eq__)  # the sums come last
    return {"rows": [(key, counts[key], codes[key].most_common()) for key in ordered]}


@dataclass(frozen=True)
class Group:
    """Published numbers of one paper, method and data set that ours is more than two points behind.

    Attributes:
        printed, ours, teacher: mean accuracies of the group; `teacher` is None where none was measured.
        closes: mean share of the difference that the same runs without noise close; None without such runs.
        measured: how many of the numbers have such a run.
        codes: the codes of the reasons, and how many numbers have each.
    """

    paper: str
    method: str
    dataset: str
    count: int
    printed: float
    ours: float
    teacher: float | None
    closes: float | None
    measured: int
    codes: list[tuple[str, int]]


def behind() -> dict[str, object]:
    """Return the largest groups of numbers that ours is behind, with what the measured factors close."""
    results = of_tier(published())
    controls = without_noise(results)
    lines: defaultdict[tuple[str, str, str], list[tuple[Line, Reason]]] = defaultdict(list)
    for line in compare(printed_numbers.load(), results):
        why = reason(line, controls)
        if why is not None:
            lines[line.entry.paper, line.entry.method, line.entry.dataset].append((line, why))
    groups = [_group(*key, found) for key, found in lines.items()]
    groups.sort(key=lambda each: (-each.count, each.paper, each.method, each.dataset))
    return {"groups": groups[:GROUPS]}


def _group(paper: str, method: str, dataset: str, found: Sequence[tuple[Line, Reason]]) -> Group:
    results = [present(line.result, "result") for line, _ in found]
    teachers = [each for each in (result.on_teacher(ACCURACY) for result in results) if each is not None]
    closes = [why.closes for _, why in found if why.code in ("noise", "learns-less") and why.closes is not None]
    return Group(
        paper=paper,
        method=method,
        dataset=dataset,
        count=len(found),
        printed=fmean(line.entry.value for line, _ in found),
        ours=fmean(present(result.accuracy, "accuracy") for result in results),
        teacher=fmean(teachers) if teachers else None,
        closes=fmean(closes) if closes else None,
        measured=len(closes),
        codes=Counter(why.code for _, why in found).most_common(),
    )


def claims() -> dict[str, object]:
    """Return every claim of the study with the published number behind it, as `bench reproduce --list`."""
    kept = records()
    rows = [(claim, number_of(kept[claim.run], claim.metric)) for claim in read_claims(ROOT / "leaderboards")]
    if wrong := [claim.name for claim, value in rows if value is None or not claim.low <= value <= claim.high]:
        raise BenchError(
            f"claims {', '.join(wrong)}: their records have other numbers; correct leaderboards/claims.csv"
        )
    return {"rows": [(claim, *map(_number, (value, claim.low, claim.high))) for claim, value in rows]}


def _number(value: float) -> str:
    """Format a share, an AUC or an epsilon: three digits, or all before the point."""
    return f"{value:,.0f}" if 20 <= value < math.inf else f"{value:.3g}"


def issues() -> dict[str, object]:
    """Count the published numbers with each issue, by paper."""
    numbers = printed_numbers.load()
    papers = list(dict.fromkeys(number.paper for number in numbers))
    names = sorted({name for number in numbers for name in number.issues})
    counts = Counter((number.paper, name) for number in numbers for name in number.issues)
    touched, every = (Counter(number.paper for number in of) for of in ([n for n in numbers if n.issues], numbers))
    return {"papers": papers, "names": names, "counts": counts, "touched": touched, "every": every}


def said() -> dict[str, object]:
    """Return every sentence of the papers on a figure that our runs can check, by figure and data set."""
    numbers, rows = printed_numbers.load(), []
    groups = grouped([record for record in records().values() if record.spec["tier"] != "smoke"], attacks=False)
    for figure in FIGURES:
        sweeps = [sweep for sweep in figure.sweeps if sweep.says]
        drawn = [picture for sweep in sweeps for picture in pictures(sweep, figure.paper, groups, numbers)]
        found = check_sentences(figure, drawn, numbers)
        rows += [(figure, each) for each in sorted(found, key=lambda each: (each.text, each.dataset))]
    return {"rows": rows}


def seen() -> dict[str, object]:
    """Return data set and settings of every baseline whose settings were chosen on a test set."""
    rows = [
        (name, dataset, settings)
        for name in registry.entries("method", "baselines")
        for dataset, settings in sorted(registry.describe("method", name).facts.get("seen_test_sets", {}).items())
    ]
    return {"rows": rows}


def errors() -> dict[str, object]:
    """Return every class of errors with its exit status and the first paragraph of its docstring."""
    rows = []
    for kind in kinds():
        meaning = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
        rows.append((kind, 2 if issubclass(kind, BenchError) else 1, meaning))
    return {"rows": rows}
