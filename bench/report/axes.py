"""Scales of a chart: from numbers to places, and the numbers worth a label."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BAND = 58.0
"""Width of the strip for infinite values, at the far end of a logarithmic scale."""
TICK = 36.0
"""The room that a label of 2 or 5 times a power of ten needs."""


@dataclass(frozen=True)
class Scale:
    """A scale from `low` to `high`, drawn from `start` to `end`; with `band`, infinity has a strip beyond `end`.

    Attributes:
        names: of the places 0, 1, ...; () for a scale of numbers.
        percent: whether labels are shares in percent.
        beyond: the name of the strip.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    band: bool = False
    names: tuple[str, ...] = ()
    percent: bool = True
    beyond: str = "∞"

    @property
    def edge(self) -> float:
        """Where the drawing ends, the strip included."""
        return self.end + (BAND if self.band else 0)

    def at(self, value: float) -> float:
        """The place of a finite value."""
        # What is 0 on a logarithmic axis, such as the claim of a tiny budget, lies at its beginning
        low, high, value = (math.log10(max(v, self.low)) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Values to be labelled: powers of ten, or 1, 2, 5 times them where these are few; or round steps."""
        if self.names:
            return [float(place) for place in range(len(self.names))]
        if not self.log:
            step = _step(self.high - self.low)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [round(step * n, 10) for n in range(first, last + 1)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        powers = [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 7)))]
        inside = [value for value in powers if self.low <= value <= self.high]
        narrow = abs(self.at(2 * self.low) - self.start) < TICK
        if len(inside) > 2 or (len(inside) == 2 and narrow):
            return inside
        return [v for power in powers for v in (power, 2 * power, 5 * power) if self.low <= v <= self.high]


def _step(length: float) -> float:
    """The least of 1, 2, 5 times a power of ten that divides a length into at most six."""
    power = 10.0 ** math.floor(math.log10(length / 6))
    return next(power * times for times in (1, 2, 5, 10, 20) if length / (power * times) <= 6 + 1e-9)


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


def linear(values: Iterable[float], start: float, end: float) -> Scale:
    """A scale of plain numbers that holds all values with some air."""
    values = list(values)
    low, high = min(values), max(values)
    air = 0.08 * (high - low) or max(1.0, 0.1 * abs(high))
    least = 0.0 if 0 <= low < air else low - air  # nothing here is below zero
    return Scale(least, high + air, start, end, percent=False)


def named(names: Sequence[str], start: float, end: float) -> Scale:
    """A scale of names, side by side."""
    return Scale(-0.5, len(names) - 0.5, start, end, names=tuple(names), percent=False)
