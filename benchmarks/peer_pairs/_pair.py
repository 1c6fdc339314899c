"""Two ways to the same result, timed in turn; the ratio of their times, and what makes a pair no comparison."""

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
    """The peer is not installed; the message says how it would be."""


@dataclass(frozen=True)
class Pair:
    """Our way and a peer's.

    Attributes:
        name: what is done.
        peer: who else does it.
        ours, theirs: do it, and return what came of it; called again and again, so they leave nothing behind.
        check: takes both results; raises Different.
        bar: the largest ratio that is good enough.
        first: done before every measurement of ours, untimed.
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
    """Processor seconds of a pair, one of each kind a repeat."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, of every repeat: above 1 ours is slower."""
        return [mine / other for mine, other in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)


def measure(pair: Pair, repeats: int) -> Times:
    """Both once, to check and to warm up, then in turn, who is first changing every time.

    Raises:
        Different: they do not compute the same thing.
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
    """Processor time, of the kernel's work too: other programs on the machine do not count."""
    gc.collect()
    start = time.process_time()
    do()
    return time.process_time() - start


def near(name: str, ours: float, theirs: float, relative: float, absolute: float = 0.0) -> None:
    """Raises Different unless two numbers agree."""
    if not abs(ours - theirs) <= absolute + relative * abs(theirs):
        raise Different(
            f"{name}: ours is {ours!r}, the peer's {theirs!r}; expected them within {relative:g} of each other"
        )


@contextmanager
def untracked(stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """A context's `track` without a progress bar: the peers show none."""
    yield lambda steps: None
