"""Epsilon in files and in words: infinity, the protected units and the neighbouring relations. Imports no library."""

from __future__ import annotations

import math
from typing import Final

INFINITE: Final = "inf"
"""Infinity in JSON files, which have no number for it. In Python it is always `math.inf`."""
PROTECTED = {
    "example": "one private record",
    "label": "the label of one private record",
    "query": "the response to one synthetic image (not a record)",
    "client": "all data of one client",
    "group": "all private records of one group",
    "none": "nothing",
}
"""The data that an epsilon protects, by unit."""
CHANGES = {
    ("example", "add-or-remove"): "adding or removing one private record",
    ("example", "replace"): "replacing one private record",
    ("label", "replace"): "replacing one private record's label",
    ("query", "add-or-remove"): "another response to one synthetic image",
    ("query", "replace"): "another response to one synthetic image",
    ("client", "add-or-remove"): "adding or removing all data of one client",
    ("client", "replace"): "replacing all data of one client",
    ("group", "add-or-remove"): "adding or removing all private records of one group",
    ("group", "replace"): "replacing all private records of one group",
}
"""The difference between neighbouring data sets, by unit and relation."""


def describe_change(unit: str, relation: str) -> str:
    """Return the difference between neighbouring data sets in words.

    >>> describe_change("example", "add-or-remove"), describe_change("site", "replace")
    ('adding or removing one private record', 'the change of one site (replace)')
    """
    return CHANGES.get((unit, relation), f"the change of one {unit} ({relation})")


def format_epsilon(epsilon: float) -> str:
    """Format an epsilon, or nats of information, for display.

    >>> format_epsilon(9.85213), format_epsilon(math.inf)
    ('9.852', 'infinite')
    """
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.4g}"


def epsilon_to_json(epsilon: float) -> float | str:
    """Convert an epsilon for specs, records and bundles: a number, or "inf". Raises ValueError for NaN.

    >>> epsilon_to_json(2.0), epsilon_to_json(math.inf)
    (2.0, 'inf')
    """
    if math.isnan(epsilon):
        raise ValueError("NaN is not an epsilon")
    return INFINITE if math.isinf(epsilon) else float(epsilon)


def epsilon_from_json(given: object) -> float:
    """Convert the epsilon of a file. Raises ValueError for anything but a finite number or "inf".

    >>> epsilon_from_json(2), epsilon_from_json("inf")
    (2.0, inf)
    """
    if given == INFINITE:
        return math.inf
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ValueError(f"{given!r} is not an epsilon; expected a number or {INFINITE!r}")
    return float(given)
