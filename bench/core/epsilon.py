"""Epsilon in files and in words: infinity, the protected units and the neighbouring relations. Imports no library."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context
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


def format_epsilon(epsilon: float, upward: bool = False) -> str:
    """Format an epsilon, or nats of information, for display: four digits, or a whole number from 1,000 on.

    Args:
        upward: round up, since a guarantee must not shrink when displayed.

    >>> [format_epsilon(epsilon) for epsilon in (9.85213, 3387.98, 40959.2, math.inf)]
    ['9.852', '3,388', '40,959', 'infinite']
    >>> [format_epsilon(epsilon, upward=True) for epsilon in (9.8521, 8.000000000001, 0.98104, 9999.1, 40959.2)]
    ['9.853', '8', '0.9811', '10,000', '40,960']
    """
    if math.isinf(epsilon):
        return "infinite"
    if upward:
        exact = Context(prec=9).create_decimal_from_float(epsilon)
        near = exact.to_integral_value(ROUND_CEILING) if exact >= 10_000 else Context(4, ROUND_CEILING).plus(exact)
        epsilon = float(near)
    return f"{epsilon:,.0f}" if epsilon >= 999.95 else f"{epsilon:.4g}"


def epsilon_to_json(epsilon: float) -> float | str:
    """Convert an epsilon for a JSON file: a number, or "inf". Raises ValueError for NaN and -inf.

    >>> epsilon_to_json(2.0), epsilon_to_json(math.inf)
    (2.0, 'inf')
    """
    if math.isnan(epsilon) or epsilon == -math.inf:
        raise ValueError(f"{epsilon} is not an epsilon")
    return INFINITE if math.isinf(epsilon) else float(epsilon)


def epsilon_from_json(given: object) -> float:
    """Convert the epsilon of a file. Raises ValueError for anything but a finite number or "inf".

    >>> epsilon_from_json(2), epsilon_from_json("inf")
    (2.0, inf)
    """
    if given == INFINITE:
        return math.inf
    try:
        epsilon = float(given) if isinstance(given, int | float) and not isinstance(given, bool) else math.nan
    except OverflowError:  # a whole number of more than 308 digits
        epsilon = math.nan
    if not math.isfinite(epsilon):
        raise ValueError(f"{given!r:.40} is not an epsilon; expected a number or {INFINITE!r}")
    return epsilon
