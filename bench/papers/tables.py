"""The papers' tables: every published number with ours, and the lines that a cell of the page shows."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import registry
from bench.papers import information, printed_numbers
from bench.papers.comparison import Line, compare
from bench.papers.matching import ONE_OF_TWO
from bench.papers.printed_numbers import UNNAMED, PrintedNumber, epsilons_of_table
from bench.papers.reasons import CLOSE, Controls, reason, without_noise
from bench.papers.results import Result
from bench.report.command import installed, variants_of
from bench.report.files import readable
from bench.report.releases import plain


@dataclass(frozen=True)
class Recipe:
    """A recipe's file name and title."""

    file: str
    title: str


Recipes = Mapping[tuple[str, str], Recipe]
"""Paper and table, or figure, to the recipe that runs it."""


def read_recipes(folder: Path = registry.ROOT / "recipes") -> Recipes:
    """The recipes of the papers' tables and figures."""
    found = {}
    for path in sorted(folder.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if content.get("paper"):
            found[content["paper"], content["table"]] = Recipe(f"recipes/{path.name}", content["title"])
    return found


@dataclass(frozen=True)
class PaperTable:
    """A table, or the sentences of a section, with a line for each published number and each variant of ours.

    Attributes:
        controls: of the boards (`without_noise`).
        recipe: that runs it; None for none.
    """

    entries: Sequence[PrintedNumber]
    lines: Sequence[Line]
    controls: Controls
    recipe: Recipe | None = None

    @cached_property
    def counting(self) -> dict[PrintedNumber, Line]:
        """Each number that we have to the line that counts: of the variant that is run by default, or else of the one
        that was run; where several epsilons are possible, the line that is furthest behind."""
        found: dict[PrintedNumber, Line] = {}
        for line in self.lines:
            if line.result is not None and (line.entry not in found or _rank(line) < _rank(found[line.entry])):
                found[line.entry] = line
        return found

    @property
    def within(self) -> int:
        """Numbers whose counting line is at most two points behind, or better."""
        return sum((line.difference or 0.0) >= -CLOSE for line in self.counting.values())

    @cached_property
    def ablation_variants(self) -> dict[str, set[str]]:
        """Method to the variants of ours that its ablations were run in."""
        found: dict[str, set[str]] = defaultdict(set)
        for line in self.counting.values():
            if line.entry.ablation and line.result is not None:
                found[line.entry.method].add(line.result.variant)
        return dict(found)

    def is_shown(self, line: Line) -> bool:
        """Whether the number's cell shows a line.

        It shows the one that counts; where the number belongs to one of two epsilons, also ours of the other one; and
        of a number that ablations are compared with, also ours in the ablations' variant.
        """
        counting = self.counting.get(line.entry)
        if line.result is None or counting is None or counting.result is None or line is counting:
            return True
        if line.result.variant == counting.result.variant:
            return ONE_OF_TWO in line.entry.issues
        variants = self.ablation_variants.get(line.entry.method, set())
        return not line.entry.ablation and line.result.variant in variants

    @cached_property
    def mixed(self) -> frozenset[str]:
        """The methods of which a table with ablations shows more than one variant or tier."""
        found: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for line in self.lines if self.ablation_variants else ():
            if line.result is not None and self.is_shown(line):
                found[line.entry.method].add((line.result.variant, line.result.tier))
        return frozenset(method for method, kinds in found.items() if len(kinds) > 1)

    def label(self, line: Line) -> str:
        """The small print of a line in its cell: epsilon, variant and tier, where they are not obvious."""
        if line.result is None or not self.is_shown(line):
            return ""
        claimed, words = line.result.claimed, []
        if ONE_OF_TWO in line.entry.issues and claimed is not None:
            words.append(f"ε {claimed:.3g}")
        return ", ".join(words + ([line.result.variant, line.result.tier] if line.entry.method in self.mixed else []))

    def to_json(self) -> dict[str, Any]:
        """For the page. Lines of one number have the same `entry`."""
        first = self.entries[0]
        return {
            "slug": readable(first.source),
            "paper": first.paper,
            "table": first.table,
            "title": f"{first.source}: {_summary(self.entries)}" if self.recipe is None else self.recipe.title,
            "recipe": None if self.recipe is None else self.recipe.file,
            "cells": len(set(self.entries)),
            "ours": len(self.counting),
            "within": self.within,
            "lines": [self._line_json(line) for line in self.lines],
        }

    def _line_json(self, line: Line) -> dict[str, Any]:
        entry = line.entry
        return {
            "entry": self.entries.index(entry),
            "dataset": entry.dataset,
            "method": entry.method,
            "ablation": " ".join(part for part in (entry.ablation, entry.teacher) if part),
            "unit": entry.unit,
            "epsilon": entry.epsilon,
            "either": list(epsilons_of_table(entry)) if ONE_OF_TWO in entry.issues else [],
            "printed": entry.value,
            "issues": list(entry.issues),
            "note": entry.note,
            "allows": information.allowed(entry),
            "state": line.state,
            "counts": line is self.counting.get(entry),
            "shown": self.is_shown(line),
            "label": self.label(line),
            "ours": None if line.result is None else self._result_json(line, line.result),
        }

    def _result_json(self, line: Line, result: Result) -> dict[str, Any]:
        why = reason(line, self.controls)
        return {
            "usual": _is_default_variant(result),
            "variant": result.variant,
            "accuracy": result.accuracy,
            "std": result.deviation,
            "seeds": result.seeds,
            "tier": result.tier,
            "dataset": result.dataset,
            "setting": result.setting,
            "difference": line.difference,
            "claimed": plain(result.claimed),
            "epsilon": plain(result.accounted),
            "unit": result.unit,
            "information": plain(result.information),
            "flags": line.flags,
            "run": result.runs.split()[0],
            "reason": None if why is None else [why.code, why.experiment],
        }


def read_tables(results: Sequence[Result], recipes: Recipes, dataset: str | None = None) -> list[PaperTable]:
    """Every table and every group of sentences of the papers that prints accuracies, in the file's order.

    Args:
        results: of boards; each number is compared with the largest tier that it was run at.
        dataset: only published numbers of this data set.
    """
    controls, found = without_noise(results), []
    for paper, names in printed_numbers.papers().items():
        for name in names:
            entries = [each for each in printed_numbers.table(paper, name) if dataset in (None, each.dataset)]
            if entries:
                found.append(PaperTable(entries, compare(entries, results), controls, recipes.get((paper, name))))
    return found


def _summary(entries: Iterable[PrintedNumber]) -> str:
    """The methods and data sets of some sentences."""
    methods, places = dict.fromkeys(e.method for e in entries), dict.fromkeys(e.dataset for e in entries)
    return f"{', '.join(methods)} on {', '.join(places)}".replace(f" on {UNNAMED}", ", no data set named")


def _rank(line: Line) -> tuple[bool, float]:
    """The smallest counts: the default variant, then the one that is furthest behind."""
    return line.result is None or not _is_default_variant(line.result), line.difference or 0.0


def _is_default_variant(result: Result) -> bool:
    method = result.method
    return method in installed("method") and result.variant == variants_of("method", method)[-1]
