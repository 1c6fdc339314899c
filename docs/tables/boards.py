"""The committed boards and records, and the results on them that the tables of docs/ show."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bench import boards, registry
from bench.boards.results import Result
from bench.boards.tables import ACCURACY, read_boards
from bench.config import STUDENT
from bench.errors import BenchError
from bench.papers.matching import find_for
from bench.papers.printed_numbers import PrintedNumber
from bench.storage.records import BUDGET, Changed, Record

NETWORKS = ("tier", "teacher", "student")
"""Columns in which releases of the same options may differ."""
DRAWN = {"float32-noise", "account-corrected"}
"""Flags of results that are not of the same release, even if they are otherwise equal."""
TEACHERS = {"quick": "resnet18", "standard": "resnet18", "paper": "resnet34"}
"""The usual network of the teacher, by tier."""
ROOT = Path(__file__).resolve().parents[2]


@cache
def published() -> list[Result]:
    """Return all results on the committed boards."""
    return [result for board in read_boards(ROOT / "leaderboards") for result in boards.results(board)]


def published_number(result: Result) -> PrintedNumber | None:
    """Return the published number that a result is compared with; None if there is none."""
    return next(iter(find_for(result)), None)


@cache
def records() -> dict[str, Record]:
    """Return every committed record by its hash."""
    return {record.hash: record for record in boards.read_records(ROOT / "leaderboards")}


@cache
def board(name: str, split: str = "iid") -> list[Result]:
    """Return the results on a committed board and a split."""
    return [each for each in published() if (each.release.dataset, each.release.split) == (name, split)]


def runs(result: Result) -> list[Record]:
    """Return the records of a result, one per seed."""
    return [records()[run.run] for run in result.runs]


@dataclass(frozen=True)
class Line:
    """A line of rows.csv: a release that a table shows.

    Attributes:
        variant, teacher: None for the default variant and the usual teacher.
        ingredient, unprotected: the ingredient that a paper leaves unprotected, and the options that do the same.
    """

    label: str
    method: str
    options: Changed = field(default_factory=dict)
    variant: str | None = None
    teacher: str | None = None
    ingredient: str = ""
    unprotected: Changed = field(default_factory=dict)


@cache
def lines(table: str) -> list[Line]:
    """Return the releases that a table shows, from rows.csv."""
    rows = [row for row in read_rows(Path(__file__).parent / "rows.csv") if row.pop("table") == table]
    return [
        Line(**row | {  # type: ignore[arg-type]
            "options": parsed(row["options"]), "unprotected": parsed(row["unprotected"]),
            "variant": row["variant"] or None, "teacher": row["teacher"] or None,
        })
        for row in rows
    ]  # fmt: skip


def parsed(text: str) -> Changed:
    """Parse options of rows.csv, such as "teachers=40 epsilon=8 solve=none": group to option to value; no epsilon is
    null."""
    return given(**{name: _value(value) for name, _, value in (word.partition("=") for word in text.split())})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def given(**named: Any) -> Changed:
    """Return options as records hold them, group to option to value."""
    found: Changed = {"method": {}, "budget": {}}
    for name, value in named.items():
        found["budget" if name in BUDGET else "method"][name] = value
    return filled(found)


def filled(changed: Changed) -> Changed:
    """Return the groups with an option."""
    return {group: held for group, held in changed.items() if held}


def own(result: Result, *without: str) -> Changed:
    """Return the options of a release, without the groups `without`."""
    return filled(result.options | {group: {} for group in ("attack", "evaluator", *without)})


def of(name: str, method: str, changed: Changed, variant: str | None = None) -> list[Result]:
    """Return the results on a board of a method with exactly these options, and a variant, or any."""
    found = [each for each in board(name) if each.release.method == method]
    return [each for each in found if variant in (None, each.release.variant) and own(each) == changed]


def attack_of(result: Result) -> str:
    """Return the name of a result's attack; "" without one."""
    return "" if result.attack is None else result.attack.attack


def release(
    name: str, method: str, changed: Changed, variant: str | None = None, attack: str = "", **networks: str
) -> Result | None:
    """Return the usual result of a release, with its other seeds; None if it was not run.

    Args:
        attack: of results that are equal otherwise, the one with this attack; by default one without any.
        networks: required values of some of NETWORKS.

    Of several results the first by: the default variant, the present version, a valid account, the usual student, the
    usual teacher, most seeds, tier quick, the attack.
    """
    usual = registry.variants("method", method)[-1]

    def preference(each: Result) -> tuple[bool | int, ...]:
        row, is_valid = each.release, DRAWN.isdisjoint(each.flags)
        is_usual_teacher = "teacher" in networks or row.teacher == TEACHERS.get(row.tier)
        first = (row.variant == usual, not each.is_older, is_valid, row.student == STUDENT)
        return *first, is_usual_teacher, len(each.runs), row.tier == "quick", attack_of(each) == attack

    found = [
        each
        for each in of(name, method, changed, variant)
        if all(getattr(each.release, key) == value for key, value in networks.items())
    ]
    best = max(found, key=preference, default=None)
    if best is None:
        return None
    same = (*NETWORKS, "variant", "version", "split", "delta")
    alike = [each for each in found if all(getattr(each.release, k) == getattr(best.release, k) for k in same)]
    return _joined(best, [each for each in alike if each is not best])


def needed(name: str, line: Line, attack: str | None = None) -> Result:
    """Return the result that a table must have. Raises BenchError where it was not run."""
    networks = {} if line.teacher is None else {"teacher": line.teacher}
    found = release(name, line.method, line.options, line.variant, attack or "", **networks)
    if found is None or attack not in (None, attack_of(found)):
        raise BenchError(f"docs/tables/rows.csv: {line.label!r} is not on the board of {name}; run it and publish it")
    return found


def _joined(best: Result, others: list[Result]) -> Result:
    """Return a result with the seeds of others of the same release that it does not have."""
    found = {run.seed: run for run in best.runs}
    for other in others:
        if DRAWN & other.flags == DRAWN & best.flags:
            found = {run.seed: run for run in other.runs} | found
    if len(found) <= len(best.runs):
        return best
    joined = tuple(found[seed] for seed in sorted(found))
    reached = [run.accuracy for run in joined if run.accuracy is not None]
    if len(reached) < len(joined):
        raise BenchError(f"a run of {best.release.release} has no accuracy; expected one of each seed")
    accuracy = replace(best.numbers[ACCURACY], value=round(mean(reached), 6), deviation=round(stdev(reached), 6))
    return replace(best, runs=joined, numbers={**best.numbers, ACCURACY: accuracy})


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
