"""Options that differ from the defaults of a run: as data in records, and as a line for display."""

from __future__ import annotations

from typing import Any

Changed = dict[str, dict[str, Any]]
"""Group of GROUPS to option to value, as stored in JSON."""
GROUPS = ("method", "attack", "teacher", "evaluator", "budget")
BUDGET = ("epsilon", "delta", "account", "solve", "unit", "noise")
"""The options of the last group, in display order."""


def described(changed: Changed) -> str:
    """Format the options in a line, as they would be typed but without dashes; "" if nothing differs.

    >>> described({"method": {"teachers": 40, "secure": True}, "attack": {"steps": 9}, "budget": {"epsilon": None}})
    'secure=true teachers=40 attack.steps=9 epsilon=none'
    """
    said = []
    for group in GROUPS:
        given = changed.get(group, {})
        prefix = "" if group in ("method", "budget") else f"{group}."
        order = [name for name in BUDGET if name in given] if group == "budget" else sorted(given)
        said += [f"{prefix}{name}={_typed(given[name])}" for name in order]
    return " ".join(said)


def _typed(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
