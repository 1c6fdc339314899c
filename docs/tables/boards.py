"""The committed boards and records, and the rows of them that the tables of docs/ show."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bench import boards, registry
from bench.boards import board_files
from bench.boards.board_cells import options
from bench.config import STUDENT
from bench.errors import BenchError
from bench.papers.matching import join
from bench.storage.options import BUDGET, Changed
from bench.storage.records import Record

NETWORKS = ("tier", "teacher", "student")
"""Columns that tell apart releases of the same options."""
DRAWN = {"float32-noise", "account-corrected"}
"""Flags of rows that are not of the same release, even if all else is equal."""
TEACHERS = {"quick": "resnet18", "standard": "resnet18", "paper": "resnet34"}
"""The usual network of the teacher, by tier."""
ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, str]


@cache
def published() -> list[Row]:
    """All rows of all committed boards, each with the published number next to it (`bench.papers.matching.join`)."""
    rows = board_files.boards(ROOT / "leaderboards")
    return [row | {name: "" if cell is None else str(cell) for name, cell in join(row).items()} for row in rows]


@cache
def records() -> dict[str, Record]:
    """Every committed record by its hash."""
    return {record.hash: record for record in boards.read_records(ROOT / "leaderboards")}


@cache
def board(name: str, split: str = "iid") -> list[Row]:
    """The releases of a committed board and a split, without reference images."""
    return [
        row for row in published() if (row["dataset"], row["split"]) == (name, split) and row["kind"] != "reference"
    ]


def runs(row: Row) -> list[Record]:
    """The records of a row, one per seed."""
    return [records()[each] for each in row["runs"].split()]


def seeds(row: Row) -> int:
    """How many seeds a row is the mean of."""
    return len(row["seeds"].split())


@dataclass(frozen=True)
class Line:
    """A line of rows.csv: a release that a table shows. Of several variants the default one is meant, and the usual
    teacher, unless `variant` or `teacher` names another. `ingredient` and `unprotected`: the ingredient
    that a paper leaves unprotected, and the options that do the same."""

    label: str
    method: str
    options: Changed = field(default_factory=dict)
    variant: str | None = None
    teacher: str | None = None
    ingredient: str = ""
    unprotected: Changed = field(default_factory=dict)


@cache
def lines(table: str) -> list[Line]:
    """The releases that a table shows, from rows.csv."""
    rows = [row for row in read_rows(Path(__file__).parent / "rows.csv") if row.pop("table") == table]
    return [
        Line(**row | {  # type: ignore[arg-type]
            "options": parsed(row["options"]), "unprotected": parsed(row["unprotected"]),
            "variant": row["variant"] or None, "teacher": row["teacher"] or None,
        })
        for row in rows
    ]  # fmt: skip


def parsed(text: str) -> Changed:
    """Options as rows.csv has them, such as "teachers=40 epsilon=8 solve=none", group to option to value; no epsilon is
    null."""
    return given(**{name: _value(value) for name, _, value in (word.partition("=") for word in text.split())})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def given(**named: Any) -> Changed:
    """Options as records hold them, group to option to value."""
    found: Changed = {"method": {}, "budget": {}}
    for name, value in named.items():
        found["budget" if name in BUDGET else "method"][name] = value
    return filled(found)


def filled(changed: Changed) -> Changed:
    """The groups that hold any option."""
    return {group: held for group, held in changed.items() if held}


def own(row: Row, *without: str) -> Changed:
    """The options of a row, without those of the attack, the evaluator and other groups."""
    return filled(options(row["options"]) | {group: {} for group in ("attack", "evaluator", *without)})


def of(name: str, method: str, changed: Changed, variant: str | None = None) -> list[Row]:
    """The rows of a board with a method, exactly these options, and a variant, or any."""
    rows = [row for row in board(name) if row["method"] == method and variant in (None, row["variant"])]
    return [row for row in rows if own(row) == changed]


def release(
    name: str, method: str, changed: Changed, variant: str | None = None, attack: str = "", **networks: str
) -> Row | None:
    """The usual row of a release and its other seeds; None if it was not run.

    Args:
        attack: of rows that are equal in all else, the one with this attack; by default one without any.
        networks: those of NETWORKS that must be as given.

    Of several rows the first by: the default variant, the present version, a true account, the usual student, the usual
    teacher, most seeds, tier quick, the attack.
    """
    usual = registry.variants("method", method)[-1]

    def preference(row: Row) -> tuple[bool | int, ...]:
        true, teacher = DRAWN.isdisjoint(row["flags"].split()), row["teacher"] == TEACHERS.get(row["tier"])
        last = (seeds(row), row["tier"] == "quick", row["attack"] == attack)
        first = (row["variant"] == usual, not older(row), true, row["student"] == STUDENT)
        return *first, "teacher" in networks or teacher, *last

    rows = of(name, method, changed, variant)
    found = [row for row in rows if all(row[key] == value for key, value in networks.items())]
    best = max(found, key=preference, default=None)
    if best is None:
        return None
    same = (*NETWORKS, "variant", "version", "split", "delta")
    return _joined(best, [row for row in found if row is not best and all(row[key] == best[key] for key in same)])


def needed(name: str, line: Line, **more: str) -> Row:
    """The row of a release that a table must have. Raises BenchError where it was not run."""
    networks = {} if line.teacher is None else {"teacher": line.teacher}
    row = release(name, line.method, line.options, line.variant, **networks, **more)
    if row is None or more.get("attack", row["attack"]) != row["attack"]:
        raise BenchError(f"docs/tables/rows.csv: {line.label!r} is not on the board of {name}; run it and publish it")
    return row


def _joined(best: Row, others: list[Row]) -> Row:
    """A row with the seeds of others of the same release that it does not have."""
    found = {run.spec["release"]["seed"]: run for run in runs(best)} if others else {}
    for other in others:
        if DRAWN & set(other["flags"].split()) == DRAWN & set(best["flags"].split()):
            found = {run.spec["release"]["seed"]: run for run in runs(other)} | found
    if len(found) <= seeds(best):
        return best
    reached = [found[seed].metrics["accuracy"] for seed in sorted(found)]
    if None in reached:
        raise BenchError(f"a run of {best['runs']} has no accuracy; expected one of each seed")
    joined = {"accuracy_mean": f"{mean(reached):.6f}", "accuracy_std": f"{stdev(reached):.6f}"}
    return (
        best
        | joined
        | {"seeds": " ".join(map(str, sorted(found))), "runs": " ".join(found[s].hash for s in sorted(found))}
    )


def older(row: Row) -> bool:
    """Whether the method or the attack has changed since."""
    return "older-version" in row["flags"].split()


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
