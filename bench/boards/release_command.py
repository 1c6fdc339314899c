"""The command that makes the release of a board's row again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.boards.board_cells import Row, options
from bench.storage.options import BUDGET


def command(row: Row, dataset: str, budget: Mapping[str, Any]) -> str:
    """What makes the release of a row again, on the data set of a paper, with these options of the budget and its unit.

    >>> options = '{"budget": {"epsilon": 1.0}, "method": {"mode": "label"}}'
    >>> row = {"method": "dpsd", "variant": "working", "tier": "paper", "teacher": "resnet34", "options": options}
    >>> command(row, "mnist", {"epsilon": "inf"}).removeprefix("bench run --method dpsd --variant working ")
    '--dataset mnist --teacher resnet34 --tier paper --epsilon inf --method.mode label'
    """
    cell = row.get("options")
    own = options(cell if isinstance(cell, str) else "")
    limits = {"unit": own["budget"].get("unit", "example"), **budget}
    usual = {"teacher": "resnet18", "tier": "quick", "unit": "example", "solve": "none"}
    named = {"teacher": row.get("teacher", ""), "tier": row["tier"]} | {
        name: limits[name] for name in BUDGET if name in limits
    }
    words = [f"bench run --method {row['method']} --variant {row['variant']} --dataset {dataset}"]
    given = {name: typed(value) for name, value in named.items()}
    words += [f"--{name} {value}" for name, value in given.items() if value not in ("", "nan", usual.get(name))]
    for group in ("method", "teacher"):
        words += [f"--{group}.{name} {typed(value)}" for name, value in own[group].items()]
    return " ".join(words)


def typed(value: Any) -> str:
    """An option's value as the command takes it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")
