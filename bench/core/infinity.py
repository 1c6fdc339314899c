"""Infinity in files: JSON has none, so that it is written as "inf". In Python it is always `math.inf`."""

from __future__ import annotations

import math
from typing import Final

INFINITE: Final = "inf"


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
