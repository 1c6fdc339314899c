"""The contents of a board's cells: numbers, options, or empty."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bench.errors import BenchError
from bench.storage.options import GROUPS, Changed

Row = Mapping[str, Any]


@lru_cache
def options(cell: str) -> Changed:
    """Parse a cell of the column `options`: group to option to value. Raises BenchError for a damaged cell.

    >>> options('{"attack": {"steps": 3}, "method": {"mode": "label"}}')["method"]
    {'mode': 'label'}
    """
    none: Changed = {group: {} for group in GROUPS}
    try:
        found = none | (json.loads(cell) if cell else {})
        if all(isinstance(group, dict) for group in found.values()):
            return found
        raise TypeError("options that stand in no group")
    except (ValueError, TypeError):
        raise BenchError(
            f"a board's cell of options is damaged: {cell[:60]!r}; expected a JSON object: rebuild the board with "
            "`bench leaderboard --publish --boards DIR`"
        ) from None


def blank(value: Any) -> Any:
    """Return a cell's value; "" for None and NaN."""
    return "" if value is None or value != value else value


def number(value: Any) -> float | None:
    """Read a cell as a number; None if it is empty."""
    return None if blank(value) == "" else float(value)
