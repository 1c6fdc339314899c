"""Scales of a chart: from numbers to places, and the numbers worth a label."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

BAND = 58.0
"""Width of the strip for infinite values, at the far end of a logarithmic scale."""


@dataclass(frozen=True)
class Scale:
    """A scale from `low` to `high`, drawn from `start` to `end`; with `band`, infinity has a strip beyond `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    band: bool = False

    @property
    def edge(self) -> float:
        """Where the drawing ends, the strip included."""
        return self.end + (BAND if self.band else 0)

    def at(self, value: float) -> float:
        """The place of a finite value."""
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Values to be labelled: powers of ten, or 1, 2, 5 times them where these are few; or round steps."""
        if not self.log:
            step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2) if (self.high - self.low) / s <= 6 or s == 0.2)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [round(step * n, 10) for n in range(first, last + 1)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        powers = [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 7)))]
        inside = [value for value in powers if self.low <= value <= self.high]
        if len(inside) > 1:
            return inside
        return [v for power in powers for v in (power, 2 * power, 5 * power) if self.low <= v <= self.high]


def logarithmic(values: Iterable[float], start: float, end: float) -> Scale:
    """A scale that holds all finite positive values with some air; a strip for infinity if there is one."""
    values = list(values)
    finite = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = math.log10(min(finite)), math.log10(max(finite))
    air = max(0.06 * (high - low), (1.2 - (high - low)) / 2)
    band = any(math.isinf(value) for value in values)
    return Scale(10.0 ** (low - air), 10.0 ** (high + air), start, end - BAND if band else end, log=True, band=band)


def share(values: Iterable[float], start: float, end: float) -> Scale:
    """A scale of shares that holds all values with some air, in tenths, within [0, 1] and at least 0.2 long."""
    values = list(values)
    low = max(0.0, math.floor(min(values) * 10 - 0.4) / 10)
    high = min(1.0, math.ceil(max(values) * 10 + 0.2) / 10)
    if high - low < 0.2:
        low, high = (max(0.0, high - 0.2), high) if high > 0.5 else (low, low + 0.2)
    return Scale(low, high, start, end)
