"""Rows -> the text of a board; several processes can write lines of the same board."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from bench.leaderboard.columns import COLUMNS, SORT

Row = Mapping[str, Any]
Line = tuple[tuple[Any, ...], str]
"""A row's place in the board and its text."""


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
