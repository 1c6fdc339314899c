"""Conversion of dp_accounting events to and from plain data; the input may be untrusted, so everything is checked."""

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


def event_to_json(event: DpEvent, depth: int = 1) -> dict[str, Any]:
    """Convert an event to plain data.

    Raises:
        ValueError: events nested more than `DEEPEST` deep, a number that is NaN or infinite, or a whole number of more
            than `WIDEST_INT` bits.
        TypeError: a parameter that is not a plain Python value.
    """
    if depth > DEEPEST:
        raise ValueError(f"events are nested more than {DEEPEST} deep")
    fields = [field.name for field in getattr(type(event), "__attrs_attrs__", ())]
    return {"name": type(event).__name__, **{name: _plain(getattr(event, name), depth) for name in fields}}


def _plain(value: Any, depth: int) -> Any:
    from dp_accounting import DpEvent

    if isinstance(value, DpEvent):
        return event_to_json(value, depth + 1)
    if isinstance(value, list | tuple) and not any(isinstance(item, list | tuple) for item in value):
        return [_plain(item, depth) for item in value]
    if isinstance(value, int | float) and not _finite(value):
        raise ValueError(f"a parameter of the event is {shown(value)}; expected a finite number")
    if value is None or isinstance(value, int | float | str):
        return value
    raise TypeError(f"a parameter of the event is of type {type(value).__name__}; expected a plain number")


def event_from_json(item: Any, depth: int = 1) -> DpEvent:
    """Rebuild the event that `event_to_json` wrote.

    Raises:
        BenchError: not an object with a name, a name that dp_accounting has no event for, a missing, additional or
            wrongly typed parameter, or events nested more than `DEEPEST` deep.
    """
    from dp_accounting import dp_event

    if depth > DEEPEST:
        raise BenchError(f"the ledger nests events more than {DEEPEST} deep; expected a few; mend or remove the record")
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise BenchError(f"{shown(item)} in the ledger is no event; expected an object with a name and its parameters")
    name = item["name"]
    kind = getattr(dp_event, name, None)
    if not (isinstance(kind, type) and issubclass(kind, dp_event.DpEvent)):
        raise BenchError(
            f"this dp-accounting has no event '{shown(name)}', which the ledger names; update dp-accounting"
        )
    fields = {field.name: field for field in getattr(kind, "__attrs_attrs__", ())}
    given = {key: value for key, value in item.items() if key != "name"}
    required = {key for key, field in fields.items() if not _optional(field)}
    if not required <= set(given) <= set(fields):
        has, expected = shown(", ".join(map(str, given)) or "none"), ", ".join(fields) or "none"
        raise BenchError(f"the ledger's {name} has the parameters {has}; expected {expected}; mend the record")
    revived = {key: _revived(name, key, fields[key].type, value, depth) for key, value in given.items()}
    return kind(**revived)


def _optional(field: Any) -> bool:
    import attr

    return field.default is not attr.NOTHING


def _revived(event: str, name: str, kind: Any, value: Any, depth: int) -> Any:
    """Convert a parameter to the type that dp_accounting's class declares."""
    from dp_accounting import DpEvent

    if kind is DpEvent:
        return event_from_json(value, depth + 1)
    within = get_args(kind)
    if isinstance(value, list) and within:
        if DpEvent in within:
            return [event_from_json(each, depth + 1) for each in value]
        return [_number(event, name, float, each) for each in value]
    if within and int not in within:
        raise BenchError(f"{name} of the ledger's {event} is {shown(value)}; expected a list; mend the record")
    return _number(event, name, int if within else kind, value)


def _number(event: str, name: str, kind: Any, value: Any) -> int | float:
    allowed = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not _finite(value):
        wanted = "a whole number" if kind is int else "a finite number"
        raise BenchError(f"{name} of the ledger's {event} is {shown(value)}; expected {wanted}; mend the record")
    return value


def _finite(value: int | float) -> bool:
    return value.bit_length() <= WIDEST_INT if isinstance(value, int) else math.isfinite(value)


def shown(value: Any, most: int = 80) -> str:
    """Return any value from a file as one short line, however large or nested it is.

    >>> shown("a" * 100, 10), shown([[1]]), shown(10**5000)
    ('aaaaaaa...', 'a list of 1', 'a whole number of 16,610 bits')
    """
    if isinstance(value, dict | list):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    if isinstance(value, int) and value.bit_length() > WIDEST_INT:
        return f"a whole number of {value.bit_length():,} bits"
    start = value[: 2 * most] if isinstance(value, str) else str(value)
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in start).split())
    return text if len(text) <= most else text[: most - 3] + "..."
