"""Options that differ from the defaults of a run: as data in records, and as a line for display."""

from __future__ import annotations

from bench.storage.specs import Json, Plain

Changed = dict[str, Plain]
"""Group of GROUPS to option to value, as stored in JSON."""
GROUPS = ("method", "attack", "teacher", "evaluator", "budget")
BUDGET = ("epsilon", "delta", "account", "solve", "unit", "noise")
"""The options of the last group, in display order."""


def described(changed: Changed) -> str:
    """Format the options in a line, as they would be typed but without dashes; "" if nothing differs.

    >>> described({"method": {"teachers": 40, "secure": True}, "attack": {"steps": 9}, "budget": {"epsilon": None}})
    'secure=true teachers=40 attack.steps=9 epsilon=none'
    """
    words = []
    for group in GROUPS:
        values = changed.get(group, {})
        prefix = "" if group in ("method", "budget") else f"{group}."
        order = [name for name in BUDGET if name in values] if group == "budget" else sorted(values)
        words += [f"{prefix}{name}={_typed(values[name])}" for name in order]
    return " ".join(words)


def _typed(value: Json) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
