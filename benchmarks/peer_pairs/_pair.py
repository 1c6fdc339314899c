"""Two ways to the same result, timed alternately; the ratio of their times, and errors for incomparable pairs."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class Different(Exception):
    """Ours and the peer's results differ by more than rounding: their times are not comparable."""


class Absent(Exception):
    """The peer is not installed; the message says how to install it."""


@dataclass(frozen=True)
class Pair:
    """Our implementation and a peer's.

    Attributes:
        name: the task.
        peer: the other implementation.
        ours, theirs: run the task and return its result; called repeatedly, so they must not leave state behind.
        check: takes both results; raises Different.
        bar: the largest acceptable ratio.
        first: untimed preparation before every measurement of ours.
    """

    name: str
    peer: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    check: Callable[[Any, Any], None]
    bar: float
    first: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class Times:
    """Processor seconds of a pair, one of each per repeat."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, for every repeat: above 1 ours is slower."""
        return [mine / other for mine, other in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)


def measure(pair: Pair, repeats: int) -> Times:
    """Run both once, to check and to warm up, then time them alternately, with changing order.

    Raises:
        Different: the results differ.
    """
    pair.first()
    pair.check(pair.ours(), pair.theirs())
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for repeat in range(repeats):
        for who in ("ours", "theirs") if repeat % 2 else ("theirs", "ours"):
            pair.first()
            taken[who].append(_seconds(getattr(pair, who)))
    return Times(tuple(taken["ours"]), tuple(taken["theirs"]))


def _seconds(do: Callable[[], Any]) -> float:
    """Return processor time, including the kernel's: other programs on the machine do not count."""
    gc.collect()
    start = time.process_time()
    do()
    return time.process_time() - start


def near(name: str, ours: float, theirs: float, relative: float, absolute: float = 0.0) -> None:
    """Raise Different unless two numbers agree."""
    if not abs(ours - theirs) <= absolute + relative * abs(theirs):
        raise Different(
            f"{name}: ours is {ours!r}, the peer's {theirs!r}; expected them within {relative:g} of each other"
        )


@contextmanager
def untracked(stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """Track without a progress bar: the peers show none."""
    yield lambda steps: None
