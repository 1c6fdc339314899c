"""Rows -> the text of a board, of which several processes can write lines; and a board's file -> rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bench.boards.board_cells import Row
from bench.boards.columns import ALL, COLUMNS, SORT
from bench.config import TIERS
from bench.errors import BenchError
from bench.escape import csv_cell, csv_value

if TYPE_CHECKING:
    import pandas as pd

Line = tuple[tuple[Any, ...], str]
"""A row's place in the board and its text."""
NUMERIC = ("percent", "number", "epsilon", "seconds")
"""Kinds of columns that hold a number or nothing."""


def place(row: Row) -> tuple[Any, ...]:
    """What rows are sorted by: the columns SORT, nothing before something."""
    return tuple([(row.get(column) is not None, row.get(column)) for column in SORT])


def lines(rows: Iterable[Row], heads: Sequence[str] = COLUMNS) -> list[Line]:
    """The rows' lines under `heads`, sorted: numbers as Python writes them, nothing for None."""
    texts: list[str] = []
    writer = _writer(texts)
    places = []
    for row in rows:
        places.append(place(row))
        writer.writerow([csv_cell(row.get(head)) for head in heads])
    return sorted(zip(places, texts, strict=True))


def to_csv(board: Iterable[Line], heads: Sequence[str] = COLUMNS) -> str:
    """The CSV text of a board of lines, in any order, that were written under the same `heads`."""
    texts: list[str] = []
    _writer(texts).writerow(heads)
    return "".join(texts + [text for _, text in sorted(board)])


def _writer(texts: list[str]) -> Any:
    """A CSV writer whose lines are appended to `texts`."""
    return csv.writer(SimpleNamespace(write=texts.append), lineterminator="\n")


def read_board(path: Path) -> list[dict[str, str]]:
    """The rows of a board's file as text, "" for an empty cell, each with the "dataset" that the file is named after.

    Raises:
        BenchError: it is no CSV file, lacks a column that every board has, has a word where a number belongs, an
            epsilon below 0, or a tier that there is not.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' errors are ValueErrors, and so is that of text in no UTF-8
        raise BenchError(f"{path}: not a CSV file: {str(error).splitlines()[0]}") from error
    lacking = [name for name in COLUMNS if name not in frame.columns]
    if lacking:
        raise BenchError(f"{path}: not a board of this version: it has no column {lacking[0]}")
    kinds = {each.key: each.kind for each in ALL if each.kind in NUMERIC and each.key in frame.columns}
    for column, kind in {**kinds, "version": "number"}.items():
        cells = frame[column][frame[column] != ""]
        numbers = pd.to_numeric(cells, errors="coerce")
        _expect_none(path, cells[numbers.isna()], "not a number")
        if kind == "epsilon":
            _expect_none(path, cells[numbers < 0], "which is below 0")
    _expect_none(path, frame["tier"][~frame["tier"].isin(TIERS)], f"none of {', '.join(TIERS)}")
    rows = frame.to_dict("records")
    return [{**{str(k): csv_value(str(v)) for k, v in row.items()}, "dataset": path.stem} for row in rows]


def _expect_none(path: Path, wrong: pd.Series[str], why: str) -> None:
    """Raises BenchError with the first of a column's cells that are wrong."""
    if len(wrong):
        line = int(str(wrong.index[0])) + 2
        raise BenchError(f"{path}: line {line}: {wrong.name} is '{wrong.iloc[0]}', {why}")
