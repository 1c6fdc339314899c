"""Rows and columns of the boards, as plain data for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bench.boards.columns import ALL
from bench.privacy.budget import INFINITE


def rows(table: Iterable[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a board: column to value, without empty cells and with infinity as "inf"."""
    return [_row(row) for row in table]


def _row(row: Mapping[Any, Any]) -> dict[str, Any]:
    filled = {str(key): value for key, value in row.items() if not _empty(value) and key != "dataset"}
    found = {key: INFINITE if value == math.inf else value for key, value in filled.items()}
    for key in ("runs", "flags", "seeds"):
        found[key] = str(found[key]).split() if key in found else []
    return found


def _empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def columns(found: list[dict[str, Any]]) -> list[str]:
    """Return the keys of the columns with a value in at least one row, in order."""
    return [each.key for each in ALL if not each.beside and any(row.get(each.key) not in (None, []) for row in found)]
