"""Rows -> the text of a board, of which several processes can write lines; and a board's file -> rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.errors import BenchError
from bench.leaderboard.board_cells import Row
from bench.leaderboard.columns import ALL, COLUMNS, SORT

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
        writer.writerow([row.get(head) for head in heads])
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
        BenchError: it is no CSV file, lacks a column that every board has, or has a word where a number belongs.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' errors are ValueErrors, and so is that of text in no UTF-8
        raise BenchError(f"{path}: not a CSV file: {str(error).splitlines()[0]}") from error
    lacking = [name for name in COLUMNS if name not in frame.columns]
    if lacking:
        raise BenchError(f"{path}: not a board of this version: it has no column {lacking[0]}")
    for column in (each.key for each in ALL if each.kind in NUMERIC and each.key in frame.columns):
        cells = frame[column][frame[column] != ""]
        words = cells[pd.to_numeric(cells, errors="coerce").isna()]
        if len(words):
            raise BenchError(f"{path}: line {int(words.index[0]) + 2}: {column} is '{words.iloc[0]}', not a number")
    return [{**{str(k): str(v) for k, v in row.items()}, "dataset": path.stem} for row in frame.to_dict("records")]
