"""Infinity in files: JSON has none, so that it is written as "inf". Inside it is `math.inf` everywhere."""

from __future__ import annotations

import math
from typing import Final

INFINITE: Final = "inf"


def epsilon_to_json(epsilon: float) -> float | str:
    """An epsilon as specs, records and bundles have it: a number, or "inf". Raises ValueError for NaN.

    >>> epsilon_to_json(2.0), epsilon_to_json(math.inf)
    (2.0, 'inf')
    """
    if math.isnan(epsilon):
        raise ValueError("NaN is not an epsilon")
    return INFINITE if math.isinf(epsilon) else float(epsilon)


def epsilon_from_json(given: object) -> float:
    """The epsilon that a file has. Raises ValueError for anything but a finite number or "inf".

    >>> epsilon_from_json(2), epsilon_from_json("inf")
    (2.0, inf)
    """
    if given == INFINITE:
        return math.inf
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ValueError(f"{given!r} is not an epsilon; expected a number or {INFINITE!r}")
    return float(given)
