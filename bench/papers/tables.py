"""The papers' tables as pages: every published number with our results, and the results that its cell shows."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bench import registry
from bench.boards.results import Result
from bench.boards.tables import ReleaseRow
from bench.papers import information, printed_numbers
from bench.papers.comparison import Line, compare
from bench.papers.matching import ONE_OF_TWO
from bench.papers.printed_numbers import UNNAMED, PrintedNumber, epsilons_of_table
from bench.papers.reasons import CLOSE, Controls, Reason, reason, without_noise
from bench.report.command import installed, variants_of
from bench.report.files import readable
from bench.validate import present


@dataclass(frozen=True)
class Recipe:
    """A recipe's file name and title."""

    file: str
    title: str


Recipes = Mapping[tuple[str, str], Recipe]
"""Paper and table, or figure, to the recipe that runs it."""


def read_recipes() -> Recipes:
    """Read the recipes of the papers' tables and figures."""
    found = {}
    for path in sorted((registry.ROOT / "recipes").glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if content.get("paper"):
            found[content["paper"], content["table"]] = Recipe(f"recipes/{path.name}", content["title"])
    return found


@dataclass(frozen=True)
class OurNumber:
    """Our result in a line of a table's page.

    Attributes:
        usual: whether its variant is the default one.
        difference: our accuracy minus the published one.
        claimed, epsilon, information: None where they are not known.
        run: hash of one of its runs.
        reason: the reason if it is more than two points behind.
    """

    usual: bool
    variant: str
    accuracy: float
    std: float | None
    seeds: int
    tier: str
    dataset: str
    setting: str
    difference: float | None
    claimed: float | None
    epsilon: float | None
    unit: str
    information: float | None
    flags: list[str]
    run: str
    reason: Reason | None


@dataclass(frozen=True)
class TableLine:
    """A line of a table's page: a published number with one result of ours, or without one.

    Attributes:
        entry: position of the number in its table.
        either: the two epsilons to which the number may belong; () for the others.
        allows: the largest accuracy that the published settings allow; None if it is not known.
        state: why we have no result; "" if we have one.
        counts: whether the number is counted by this line (`PaperTable.counting`).
        shown: whether the number's cell shows the line.
        label: small print in the cell.
    """

    entry: int
    dataset: str
    method: str
    ablation: str
    unit: str
    epsilon: float | None
    either: tuple[float, ...]
    printed: float
    issues: tuple[str, ...]
    note: str
    allows: float | None
    state: str
    counts: bool
    shown: bool
    label: str
    ours: OurNumber | None


@dataclass(frozen=True)
class TableSummary:
    """A table in the list of all tables.

    Attributes:
        cells: number of published accuracies.
        ours: number of those that we have a result for.
        within: number of those whose result is at most two points below, or better.
    """

    slug: str
    paper: str
    table: str
    title: str
    recipe: str | None
    cells: int
    ours: int
    within: int


@dataclass(frozen=True)
class TablePage(TableSummary):
    """A table's page; `chart` is SVG markup."""

    lines: list[TableLine]
    chart: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A table, or the sentences of a section, with a line for each published number and each variant of ours.

    Attributes:
        controls: our results without noise (`without_noise`).
        recipe: the recipe that runs the table; None for none.
    """

    entries: Sequence[PrintedNumber]
    lines: Sequence[Line]
    controls: Controls
    recipe: Recipe | None = None

    @cached_property
    def counting(self) -> dict[PrintedNumber, Line]:
        """Published number to the line by which it is counted.

        This is the line of the default variant, else of another variant that was run; if several epsilons are possible,
        the line that is furthest below.
        """
        found: dict[PrintedNumber, Line] = {}
        for line in self.lines:
            if line.result is not None and (line.entry not in found or _rank(line) < _rank(found[line.entry])):
                found[line.entry] = line
        return found

    @property
    def within(self) -> int:
        """Number of published numbers whose counted line is at most two points below, or better."""
        return sum((line.difference or 0.0) >= -CLOSE for line in self.counting.values())

    @cached_property
    def ablation_variants(self) -> dict[str, set[str]]:
        """Method to our variants with which its ablations were run."""
        found: dict[str, set[str]] = defaultdict(set)
        for line in self.counting.values():
            if line.entry.ablation and line.result is not None:
                found[line.entry.method].add(line.result.release.variant)
        return dict(found)

    def is_shown(self, line: Line) -> bool:
        """Whether the number's cell shows a line.

        A cell shows the line in `counting`. If the number belongs to one of two epsilons, it also shows our result for
        the other one. In a table with ablations, the full method is also shown in the variant of the ablations.
        """
        counting = self.counting.get(line.entry)
        if line.result is None or counting is None or counting.result is None or line is counting:
            return True
        if line.result.release.variant == counting.result.release.variant:
            return ONE_OF_TWO in line.entry.issues
        variants = self.ablation_variants.get(line.entry.method, set())
        return not line.entry.ablation and line.result.release.variant in variants

    @cached_property
    def mixed(self) -> frozenset[str]:
        """Methods that a table with ablations shows in more than one variant or tier."""
        found: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for line in self.lines if self.ablation_variants else ():
            if line.result is not None and self.is_shown(line):
                found[line.entry.method].add((line.result.release.variant, line.result.release.tier))
        return frozenset(method for method, kinds in found.items() if len(kinds) > 1)

    def label(self, line: Line) -> str:
        """Return the small print of a line in its cell: epsilon, variant and tier, if they are ambiguous."""
        if line.result is None or not self.is_shown(line):
            return ""
        claimed, words = line.result.claimed, []
        if ONE_OF_TWO in line.entry.issues and claimed is not None:
            words.append(f"ε {claimed:.3g}")
        if line.entry.method in self.mixed:
            words += [line.result.release.variant, line.result.release.tier]
        return ", ".join(words)

    def to_page(self) -> TablePage:
        """Return the table's page. Lines of one number have the same `entry`."""
        first = self.entries[0]
        methods, places = dict.fromkeys(e.method for e in self.entries), dict.fromkeys(e.dataset for e in self.entries)
        summary = f"{', '.join(methods)} on {', '.join(places)}".replace(f" on {UNNAMED}", ", no data set named")
        return TablePage(
            slug=readable(first.source),
            paper=first.paper,
            table=first.table,
            title=f"{first.source}: {summary}" if self.recipe is None else self.recipe.title,
            recipe=None if self.recipe is None else self.recipe.file,
            cells=len(set(self.entries)),
            ours=len(self.counting),
            within=self.within,
            lines=[self._to_table_line(line) for line in self.lines],
        )

    def _to_table_line(self, line: Line) -> TableLine:
        entry = line.entry
        return TableLine(
            entry=self.entries.index(entry),
            dataset=entry.dataset,
            method=entry.method,
            ablation=" ".join(part for part in (entry.ablation, entry.teacher) if part),
            unit=entry.unit,
            epsilon=entry.epsilon,
            either=epsilons_of_table(entry) if ONE_OF_TWO in entry.issues else (),
            printed=entry.value,
            issues=entry.issues,
            note=entry.note,
            allows=information.allowed(entry),
            state=line.state,
            counts=line is self.counting.get(entry),
            shown=self.is_shown(line),
            label=self.label(line),
            ours=None if line.result is None else self._to_our_number(line, line.result),
        )

    def _to_our_number(self, line: Line, result: Result) -> OurNumber:
        why, release = reason(line, self.controls), result.release
        return OurNumber(
            usual=_is_default_variant(release),
            variant=release.variant,
            accuracy=present(result.accuracy, "accuracy of a compared result"),
            std=result.deviation,
            seeds=len(result.finished),
            tier=release.tier,
            dataset=release.dataset,
            setting=result.setting,
            difference=line.difference,
            claimed=result.claimed,
            epsilon=result.accounted,
            unit=release.unit,
            information=result.information,
            flags=line.flags,
            run=result.runs[0].run,
            reason=why,
        )


def read_tables(results: Sequence[Result], recipes: Recipes, dataset: str | None = None) -> list[PaperTable]:
    """Return every table and every group of sentences that prints accuracies, in the file's order.

    Args:
        results: results on boards; each number is compared with the result of the largest tier.
        dataset: only published numbers of this data set.
    """
    controls, found = without_noise(results), []
    for paper, names in printed_numbers.papers().items():
        for name in names:
            entries = [each for each in printed_numbers.table(paper, name) if dataset in (None, each.dataset)]
            if entries:
                found.append(PaperTable(entries, compare(entries, results), controls, recipes.get((paper, name))))
    return found


def _rank(line: Line) -> tuple[bool, float]:
    """Return the sort key of lines of one number: the default variant first, then the one that is furthest behind."""
    return line.result is None or not _is_default_variant(line.result.release), line.difference or 0.0


def _is_default_variant(release: ReleaseRow) -> bool:
    method = release.method
    return method in installed("method") and release.variant == variants_of("method", method)[-1]
