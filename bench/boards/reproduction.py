"""Reproduction: a published run is found, and its numbers are compared with those of the same command run again.

A *claim* is a sentence of the documentation about one number of one published run; `FOLDER/claims.csv` lists them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.boards.records import read_records
from bench.boards.tables import RunRow, data_sets, read_board
from bench.core.epsilon import epsilon_from_json
from bench.errors import BadOption, BenchError, NotFound
from bench.storage.records import Record

CLAIMS = Path("claims.csv")
"""The file of claims in a folder of boards."""
COLUMNS = ("claim", "dataset", "run", "metric", "low", "high", "statement")
FEWEST_DIGITS = 6
"""Smallest number of digits that name a run or a row."""
EPSILONS = ("epsilon_claimed", "epsilon_accounted")
"""Names of a run's epsilons; all other numbers are metrics of its record."""
SAME = 1e-6
"""Largest relative difference of two epsilons of the same account."""
LOW, HIGH = ".lo", ".hi"
"""Endings of the limits of a metric's 95 % interval in a record."""


@dataclass(frozen=True)
class Compared:
    """A number of a published run and of its repetition.

    Attributes:
        tolerance: largest difference that the 95 % intervals of both explain, sqrt(h1^2 + h2^2) with h1 and h2 the
            parts of the intervals towards each other; for epsilons rounding only.
    """

    metric: str
    published: float
    again: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether both numbers agree; infinite ones agree if they are equal."""
        return self.published == self.again or abs(self.published - self.again) <= self.tolerance


@dataclass(frozen=True)
class Claim:
    """A sentence about a number of a published run.

    Attributes:
        name: "C1", "C2" and so on.
        run: hash of the record.
        metric: a metric of the record, or one of `EPSILONS`.
        low, high: the sentence holds for numbers in [low, high].
    """

    name: str
    dataset: str
    run: str
    metric: str
    low: float
    high: float
    statement: str


def read_claims(boards: Path) -> list[Claim]:
    """Read the claims of a folder of boards; [] without the file.

    Raises:
        BenchError: other columns, an empty cell, a limit that is not a number, or the same name twice.
    """
    path = boards / CLAIMS
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            heads, *lines = list(csv.reader(stream))
    except FileNotFoundError:
        return []
    except (OSError, csv.Error, ValueError) as error:  # empty, or not UTF-8 text
        raise BenchError(f"{path}: not a CSV file: {error}") from None
    if tuple(heads) != COLUMNS:
        raise BenchError(f"{path}: expected the columns {','.join(COLUMNS)}, not {','.join(heads)}")
    found = [_claim(path, number, cells) for number, cells in enumerate(lines, 2)]
    names = [each.name for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BenchError(f"{path}: {min(twice)} is listed twice; give each claim its own name")
    return found


def _claim(path: Path, number: int, cells: Sequence[str]) -> Claim:
    """Return the claim of a line. Raises BenchError as `read_claims`."""
    if len(cells) != len(COLUMNS) or not all(cell.strip() for cell in cells):
        raise BenchError(f"{path}, line {number}: expected {len(COLUMNS)} cells, none of them empty")
    name, dataset, run, metric, low, high, statement = cells
    try:
        return Claim(name, dataset, run, metric, float(low), float(high), statement)
    except ValueError:
        raise BenchError(f"{path}, line {number}: low and high must be numbers, not {low} and {high}") from None


def find_run(boards: Path, key: str, seed: int | None = None) -> Record:
    """Return the published record of a run.

    Args:
        key: first digits, at least 6, of a run, of a release (its runs without an attack come first) or of an
            evaluation, as in the tables of a board.
        seed: of the release; None = the smallest one that did not fail.

    Raises:
        BadOption: too few digits, or digits of several runs or rows.
        NotFound: no such run, or only failed ones.
    """
    if len(key) < FEWEST_DIGITS or not set(key) <= set("0123456789abcdef"):
        raise BadOption(
            f"'{key}' names no claim and no run; give C1, or the first {FEWEST_DIGITS} digits of a run or row"
        )
    for dataset in data_sets(boards):
        rows = read_board(boards, dataset, with_attacks=False).runs
        if found := _rows_of(rows, key):
            run = _first_run(found, key, seed)
            for record in read_records(boards, dataset):
                if record.hash == run.run:
                    return record
            raise NotFound(f"{boards}: no record of run {run.run} on {dataset}; give a folder that holds the records")
    raise NotFound(f"{boards}: no run, release or evaluation begins with {key}; `bench leaderboard` lists them")


def _rows_of(rows: Iterable[RunRow], key: str) -> list[RunRow]:
    """Return the runs of the run, release or evaluation with these first digits. Raises BadOption for several."""
    rows = list(rows)
    for column in ("run", "evaluation", "release"):
        names = {getattr(row, column) for row in rows if getattr(row, column).startswith(key)}
        if len(names) > 1:
            raise BadOption(f"{key} begins {len(names)} keys, such as {', '.join(sorted(names)[:2])}; give more digits")
        if names:
            return [row for row in rows if getattr(row, column) in names]
    return []


def _first_run(found: Sequence[RunRow], key: str, seed: int | None) -> RunRow:
    """Return the run with this seed, or with the smallest; those that count for the release come first."""
    done = [row for row in found if row.status != "failed" and seed in (None, row.seed)]
    if not done:
        seeds = ", ".join(map(str, sorted({row.seed for row in found if row.status != "failed"}))) or "none"
        raise NotFound(f"{key} has no finished run of seed {seed}; its finished seeds: {seeds}")
    return min(done, key=lambda row: (row.counted != "yes", row.seed, row.run))


def number_of(record: Record, metric: str) -> float | None:
    """Return a metric or one of `EPSILONS` of a run; None if it has none."""
    if metric in EPSILONS:
        part = record.privacy.get(metric.removeprefix("epsilon_")) or {}
        return epsilon_from_json(part["epsilon"]) if "epsilon" in part else None
    return record.metrics.get(metric)


def compare(published: Record, again: Record) -> list[Compared]:
    """Compare both epsilons and every metric that has an interval in both records, the accuracy first."""
    found = [
        Compared(name, first, second, SAME * abs(first) if math.isfinite(first) else 0.0)
        for name in EPSILONS
        if (first := number_of(published, name)) is not None and (second := number_of(again, name)) is not None
    ]
    names = [name.removesuffix(LOW) for name in sorted(published.metrics) if name.endswith(LOW)]
    for name in sorted(names, key=lambda name: name != "accuracy"):
        one, two = _interval(published, name), _interval(again, name)
        if one is not None and two is not None:
            found.append(Compared(name, one[1], two[1], _tolerance(one, two)))
    return found


def _interval(record: Record, metric: str) -> tuple[float, float, float] | None:
    """Return (low, value, high) of a metric; None unless all are measured."""
    low, value, high = (record.metrics.get(name) for name in (metric + LOW, metric, metric + HIGH))
    return None if low is None or value is None or high is None else (low, value, high)


def _tolerance(one: tuple[float, float, float], two: tuple[float, float, float]) -> float:
    """Return the largest difference of two values that their intervals explain."""
    smaller, larger = sorted((one, two), key=lambda interval: interval[1])
    return math.hypot(smaller[2] - smaller[1], larger[1] - larger[0])
