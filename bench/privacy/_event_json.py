"""Conversion of dp_accounting events to and from JSON; the JSON may come from an untrusted file, so all is checked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, get_args

from bench.errors import BenchError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

DEEPEST = 20
"""Largest nesting depth of events; a ledger of any method has at most three levels."""
WIDEST_INT = 4000
"""Largest number of bits of an integer; Python refuses to print more than about 14,000."""


def event_to_json(event: DpEvent, depth: int = 1) -> dict[str, object]:
    """Convert an event to plain data: its class name and its parameters.

    Raises:
        ValueError: events nested more than `DEEPEST` deep, a number that is NaN or infinite, or a whole number of more
            than `WIDEST_INT` bits.
        TypeError: a parameter that is not a plain Python value.
    """
    if depth > DEEPEST:
        raise ValueError(f"events are nested more than {DEEPEST} deep")
    fields = [field.name for field in getattr(type(event), "__attrs_attrs__", ())]
    return {"name": type(event).__name__, **{name: _encoded(getattr(event, name), depth) for name in fields}}


def _encoded(value: object, depth: int) -> object:
    from dp_accounting import DpEvent

    if isinstance(value, DpEvent):
        return event_to_json(value, depth + 1)
    if isinstance(value, list | tuple) and not any(isinstance(item, list | tuple) for item in value):
        return [_encoded(item, depth) for item in value]
    if isinstance(value, int | float) and not _is_finite(value):
        raise ValueError(f"a parameter of the event is {shorten(value)}; expected a finite number")
    if value is None or isinstance(value, int | float | str):
        return value
    raise TypeError(f"a parameter of the event is of type {type(value).__name__}; expected a plain number")


def event_from_json(item: object, depth: int = 1) -> DpEvent:
    """Rebuild the event that `event_to_json` wrote.

    Raises:
        BenchError: not an object with a name, a name that dp_accounting has no event for, a missing, additional or
            wrongly typed parameter, or events nested more than `DEEPEST` deep.
    """
    import attr
    from dp_accounting import dp_event

    if depth > DEEPEST:
        raise BenchError(f"the ledger nests events more than {DEEPEST} deep; expected a few; fix or remove the record")
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise BenchError(f"{shorten(item)} in the ledger is not an event; expected an object with a name")
    name = item["name"]
    event = getattr(dp_event, name, None)
    if not (isinstance(event, type) and issubclass(event, dp_event.DpEvent)):
        raise BenchError(f"the ledger names the event '{shorten(name)}', unknown to this dp-accounting; update it")
    fields = {field.name: field for field in getattr(event, "__attrs_attrs__", ())}
    given = {key: value for key, value in item.items() if key != "name"}
    required = {key for key, field in fields.items() if field.default is attr.NOTHING}
    if not required <= set(given) <= set(fields):
        has, expected = shorten(", ".join(map(str, given)) or "none"), ", ".join(fields) or "none"
        raise BenchError(f"the ledger's {name} has the parameters {has}; expected {expected}; fix the record")
    return event(
        **{key: _decoded(f"{key} of the ledger's {name}", fields[key].type, given[key], depth) for key in given}
    )


def _decoded(name: str, kind: Any, value: Any, depth: int) -> Any:
    """Convert a parameter to the type that dp_accounting's class declares."""
    from dp_accounting import DpEvent

    if kind is DpEvent:
        return event_from_json(value, depth + 1)
    choices = get_args(kind)
    if isinstance(value, list) and choices:
        is_event = DpEvent in choices
        return [event_from_json(each, depth + 1) if is_event else _decoded(name, float, each, depth) for each in value]
    if choices and int not in choices:
        raise BenchError(f"{name} is {shorten(value)}; expected a list; fix the record")
    is_whole = bool(choices) or kind is int
    allowed = int if is_whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not _is_finite(value):
        expected = "a whole number" if is_whole else "a finite number"
        raise BenchError(f"{name} is {shorten(value)}; expected {expected}; fix the record")
    return value


def _is_finite(value: int | float) -> bool:
    return value.bit_length() <= WIDEST_INT if isinstance(value, int) else math.isfinite(value)


def shorten(value: object, most: int = 80) -> str:
    """Return any value from a file as one short line, however large or nested it is.

    >>> shorten("a" * 100, 10), shorten([[1]]), shorten(10**5000)
    ('aaaaaaa...', 'a list of 1', 'a whole number of 16,610 bits')
    """
    if isinstance(value, dict | list):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    if isinstance(value, int) and value.bit_length() > WIDEST_INT:
        return f"a whole number of {value.bit_length():,} bits"
    start = value[: 2 * most] if isinstance(value, str) else str(value)
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in start).split())
    return text if len(text) <= most else text[: most - 3] + "..."
