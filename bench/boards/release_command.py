"""The command that makes the release of a board's row again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.storage.options import BUDGET, Changed


def command(
    *, method: str, variant: str, tier: str, teacher: str, options: Changed, dataset: str, budget: Mapping[str, Any]
) -> str:
    """Return `bench run ...` with the options of a row; of the budget's options only the unit is kept.

    Args:
        options: the options of the row, by group.
        dataset: the data set as it is typed.
        budget: options of the budget to use.

    >>> options = {"budget": {"epsilon": 1.0}, "method": {"mode": "label"}, "teacher": {}}
    >>> row = {"method": "dpsd", "variant": "working", "tier": "paper", "teacher": "resnet34", "options": options}
    >>> command(**row, dataset="mnist", budget={"epsilon": "inf"}).removeprefix("bench run --method dpsd ")
    '--variant working --dataset mnist --teacher resnet34 --tier paper --epsilon inf --method.mode label'
    """
    limits = {"unit": options["budget"].get("unit", "example"), **budget}
    usual = {"teacher": "resnet18", "tier": "quick", "unit": "example", "solve": "none"}
    named = {"teacher": teacher, "tier": tier} | {name: limits[name] for name in BUDGET if name in limits}
    words = [f"bench run --method {method} --variant {variant} --dataset {dataset}"]
    given = {name: write_option(value) for name, value in named.items()}
    words += [f"--{name} {value}" for name, value in given.items() if value not in ("", "nan", usual.get(name))]
    for group in ("method", "teacher"):
        words += [f"--{group}.{name} {write_option(value)}" for name, value in options[group].items()]
    return " ".join(words)


def write_option(value: Any) -> str:
    """Format an option's value as the command takes it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")
