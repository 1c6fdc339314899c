"""The tables of a board as typed rows, and how they are written as CSV and read back.

A board holds the results of one data set in three tables: releases (one row per setting), attacks (one row per measured
number) and runs (one row per run). `docs/boards.md` describes every column.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from bench.config import TIERS
from bench.errors import BenchError, NotFound
from bench.escape import csv_cell, csv_value
from bench.renamed import present_names
from bench.storage.records import GROUPS, Changed

if TYPE_CHECKING:
    import pandas as pd

RELEASES, ATTACKS, RUNS = "releases", "attacks", "runs"
"""Folders in a folder of boards, with one file DATASET.csv each."""
ACCURACY = "accuracy"
LOWER, LOWER_NULL, LOWER_CEILING = "epsilon_lower", "epsilon_lower_null", "epsilon_lower_ceiling"
OF_RELEASE = ("epsilon_claimed", "epsilon_accounted", "information")
"""Numbers of a release's row that an evaluation repeats in the table of attacks if its runs differ."""


@dataclass(frozen=True)
class ReleaseRow:
    """One setting of one method, over all seeds.

    Attributes:
        release: key of the row, which rows of attacks and runs refer to.
        version: version of the method.
        options: options that differ from the defaults of variant and tier, as JSON: group to option to value.
        epsilon_claimed, claimed_unit: the guarantee of the method's own paper, mean over seeds; empty where there is
            none.
        epsilon_accounted, unit, relation, delta: computed by the accountant, the largest of the seeds.
        epsilon_lower: empirical lower bound per example, the largest over audits; empty without an audit.
        information: upper bound in nats on what all responses carry; empty where it is not known.
        accuracy, accuracy_low, accuracy_high: share of test images, mean over seeds, with the mean bounds of the 95 %
            intervals of the test images.
        seeds: seeds of the runs behind these numbers, separated by spaces; failed runs included.
        flags: facts to know before the row is used, separated by spaces.
        dataset: the data set of the file; not a column.
    """

    release: str
    tier: str
    split: str
    method: str
    variant: str
    version: int
    teacher: str
    student: str
    options: str
    epsilon_claimed: float | None
    claimed_unit: str
    epsilon_accounted: float | None
    unit: str
    relation: str
    delta: float | None
    epsilon_lower: float | None
    information: float | None
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    seeds: str
    flags: str
    dataset: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class AttackRow:
    """One number measured on a release, by an attack or without one.

    Attributes:
        release: key in the table of releases; `reference/TIER/SPLIT/KIND` for reference images, which belong to no
            release.
        evaluation: key of the runs behind the number: a release with one attack, over its seeds.
        attack, variant, version, access, options: facts about the attack; empty for numbers without an attack.
        metric: name of the number; empty where the attack was skipped or failed, for `reason`.
        value, low, high, deviation: mean over seeds, mean bounds of the 95 % intervals, standard deviation over seeds.
        teacher: the same number of the unprotected teacher.
        untrained: the same number of a network with random weights: one baseline of an attack.
        public_images: the same number of images that the attacker already has: the other baseline of an attack.
        power: "pass" or "inconclusive": whether the attack works on the unprotected teacher.
        reason: why the attack is inconclusive or was skipped.
        seeds: seeds of the runs, separated by spaces.
        dataset: the data set of the file; not a column.
    """

    release: str
    evaluation: str
    attack: str
    variant: str
    version: int | None
    access: str
    options: str
    metric: str
    value: float | None
    low: float | None
    high: float | None
    deviation: float | None
    teacher: float | None
    untrained: float | None
    public_images: float | None
    power: str
    reason: str
    seeds: str
    dataset: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class RunRow:
    """One run.

    Attributes:
        run: hash of its record.
        release, evaluation: keys of the other tables.
        counted: "yes" if the numbers of the release's row include this run.
        seed: seed of the release.
        status: "ok", "skipped", "inconclusive" or "failed".
        accuracy: accuracy of the released student; empty where the run failed.
        seconds: total seconds of its steps.
        device: the device of the run.
        flags: flags of its evaluation, separated by spaces.
        dataset: the data set of the file; not a column.
    """

    run: str
    release: str
    evaluation: str
    counted: str
    seed: int
    status: str
    accuracy: float | None
    seconds: float | None
    device: str
    flags: str
    dataset: str = field(default="", kw_only=True)


Row = TypeVar("Row", ReleaseRow, AttackRow, RunRow)


@dataclass(frozen=True)
class Board:
    """The three tables of a data set, each in its own order; `whose` is "" or the owner of the board, for display."""

    dataset: str
    releases: list[ReleaseRow]
    attacks: list[AttackRow]
    runs: list[RunRow]
    whose: str = ""

    def texts(self) -> dict[str, str]:
        """Return the text of the CSV files, by folder."""
        return {
            RELEASES: to_csv(ReleaseRow, self.releases),
            ATTACKS: to_csv(AttackRow, self.attacks),
            RUNS: to_csv(RunRow, self.runs),
        }


def read_boards(
    folder: Path, only: Collection[str] | None = None, whose: str = "", with_attacks: bool = True
) -> list[Board]:
    """Read the boards of a folder, sorted by name of the data set.

    Args:
        only: data sets to read; None = all.
        with_attacks: also read the table of attacks, which is most of a board.

    Raises:
        NotFound: no such folder, or no board in it.
        BenchError: a file in it is not a table of a board.
    """
    names = [name for name in data_sets(folder) if only is None or name in only]
    return [read_board(folder, name, whose, with_attacks) for name in names]


def data_sets(folder: Path) -> list[str]:
    """List the data sets with a board in a folder, sorted. Raises NotFound for no such folder, or no board in it."""
    found = sorted(path.stem for path in (folder / RELEASES).glob("*.csv"))
    if found:
        return found
    inside, advice = folder / "leaderboards", "run from the project's directory, or give a folder of boards"
    if (inside / RELEASES).is_dir():
        advice = f"give {inside}"
    elif any(folder.glob("*.csv")):
        advice = (
            f"its tables are of an older version: rebuild them with `bench leaderboard --publish --boards {folder}`"
        )
    raise NotFound(f"no board in {folder}; {advice}")


def read_board(folder: Path, name: str, whose: str = "", with_attacks: bool = True) -> Board:
    """Read the board of one data set. Raises BenchError as `read_boards`."""
    releases = read_table(ReleaseRow, folder / RELEASES / f"{name}.csv")
    attacks = read_table(AttackRow, folder / ATTACKS / f"{name}.csv") if with_attacks else []
    return Board(name, releases, attacks, read_table(RunRow, folder / RUNS / f"{name}.csv"), whose)


def read_releases(path: str | Path) -> pd.DataFrame:
    """Read the table of releases with pandas: `path` is a file, or a folder of boards, whose data sets are joined.

    Raises:
        NotFound: no board in the folder.
        BenchError: no such file, or not a table of releases.
    """
    return _frame(ReleaseRow, RELEASES, Path(path))


def read_attacks(path: str | Path) -> pd.DataFrame:
    """Read the table of attacks with pandas, as `read_releases`; the column `release` joins both tables."""
    return _frame(AttackRow, ATTACKS, Path(path))


def _frame(kind: type[Row], table: str, path: Path) -> pd.DataFrame:
    import pandas as pd

    paths = [path / table / f"{name}.csv" for name in data_sets(path)] if path.is_dir() else [path]
    rows = [row for each in paths for row in read_table(kind, each)]
    frame = pd.DataFrame([vars(row) for row in rows], columns=[each.name for each in fields(kind)])
    frame.insert(0, "dataset", frame.pop("dataset"))
    numbers = [each.name for each in fields(kind) if each.type == "float | None"]
    return frame.astype(dict.fromkeys(numbers, float))


def to_csv(kind: type[Row], rows: Iterable[Row]) -> str:
    """Return the CSV text of a table: numbers as Python prints them, empty cells for None."""
    texts: list[str] = []
    writer = csv.writer(SimpleNamespace(write=texts.append), lineterminator="\n")
    heads = columns(kind)
    writer.writerow(heads)
    cells = attrgetter(*heads)
    # The same few words are in most cells, so that escaping is cached
    safe = cache(csv_cell)
    writer.writerows([safe(cell) if type(cell) is str else cell for cell in cells(row)] for row in rows)
    return "".join(texts)


def columns(kind: type[Any]) -> tuple[str, ...]:
    """Return the columns of a table, in order."""
    return tuple(each.name for each in fields(kind) if each.name != "dataset")


def read_table(kind: type[Row], path: Path) -> list[Row]:
    """Read the rows of a table's file; the file's name is the data set of each row.

    Raises:
        BenchError: it is not a CSV file, has other columns, has a word where a number belongs, an epsilon below 0, or
            an unknown tier; the message names line and column.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            heads, *lines = list(csv.reader(stream))
    except OSError as error:
        raise BenchError(f"{path}: cannot be read ({error.strerror}); rebuild the boards") from None
    except (csv.Error, ValueError) as error:  # empty, or not UTF-8 text
        raise BenchError(f"{path}: not a CSV file: {error}") from None
    wanted = columns(kind)
    if tuple(heads) != wanted:
        missing = next((name for name in wanted if name not in heads), "")
        why = f"it has no column {missing}" if missing else f"expected the columns {', '.join(wanted)}"
        raise BenchError(f"{path}: not a board of this version: {why}")
    by_type: dict[str, Reader] = {"str": _text, "int": int, "float | None": _number}
    by_type["int | None"] = lambda cell: int(cell) if cell else None
    by_column = {each.name: by_type[str(each.type)] for each in fields(kind)}
    by_column |= {name: _epsilon for name in by_column if name.startswith("epsilon")}
    by_column |= {"tier": _tier} if "tier" in by_column else {}
    if "flags" in by_column:
        by_column["flags"] = lambda cell: " ".join(RENAMED_FLAGS.get(flag, flag) for flag in _text(cell).split())
    readers = tuple(by_column[name] for name in wanted)
    found = []
    for number, line in enumerate(lines, 2):
        try:
            cells = [read(cell) for read, cell in zip(readers, line, strict=True)]
        except ValueError:
            raise BenchError(f"{path}: line {number}: {_damage(wanted, readers, line)}") from None
        found.append(kind(*cells, dataset=path.stem))
    return found


Reader = Callable[[str], Any]
"""The parser of a cell; it raises ValueError for a damaged cell."""
RENAMED_FLAGS = {
    "account-mended": "account-corrected",
    "relation-mended": "relation-corrected",
    "knows-nothing": "at-chance-level",
}
"""Flags in boards of older versions, and their present names."""


def _text(cell: str) -> str:
    return csv_value(cell) if cell[:1] == "'" else cell


def _number(cell: str) -> float | None:
    if not cell:
        return None
    try:
        found = float(cell)
    except ValueError:
        found = math.nan
    if math.isnan(found):
        raise ValueError("not a number")
    return found


def _epsilon(cell: str) -> float | None:
    found = _number(cell)
    if found is not None and found < 0:
        raise ValueError("which is below 0")
    return found


def _tier(cell: str) -> str:
    if cell not in TIERS:
        raise ValueError(f"none of {', '.join(TIERS)}")
    return cell


def _damage(heads: Sequence[str], readers: Sequence[Reader], line: Sequence[str]) -> str:
    """Describe the first damaged cell of a line."""
    if len(line) != len(heads):
        return f"{len(line)} cells, expected {len(heads)}"
    for head, read, cell in zip(heads, readers, line, strict=True):
        try:
            read(cell)
        except ValueError as error:
            return f"{head} is '{cell}', {error if read in (_epsilon, _tier) else 'not a number'}"
    return "damaged"


def joined(words: Iterable[str]) -> str:
    """Join words in one cell: sorted, without duplicates."""
    return " ".join(sorted(set(words)))


@lru_cache
def read_options(cell: str) -> Changed:
    """Parse a cell of the column `options`: group to option to value, renamed options by their present names.

    Raises BenchError for a damaged cell.

    >>> read_options('{"attack": {"steps": 3}, "method": {"mode": "label"}}')["method"]
    {'mode': 'label'}
    """
    none: Changed = {group: {} for group in GROUPS}
    try:
        found = none | (json.loads(cell) if cell else {})
    except (ValueError, TypeError):
        found = {"": None}
    if all(isinstance(group, dict) for group in found.values()):
        return {name: present_names(group) for name, group in found.items()}
    raise BenchError(
        f"a board's cell of options is damaged: {cell[:60]!r}; expected a JSON object: rebuild the board with "
        "`bench leaderboard --publish --boards DIR`"
    )
