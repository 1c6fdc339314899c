"""Who does the runs of a sweep: processes on this machine (`local.py`), or tasks of a Ray cluster (`cluster.py`).

Either way a run is `bench run ...` in a process of its own, and an audit `bench audit release ...`, so that one that
crashes takes no other with it. All write into one directory, where every step is made once (`bench.storage`). What
several share, such as a teacher, is made before them by `bench prepare ...`, so that no run waits for a lock; what does
not need it begins meanwhile.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Main = Callable[[Sequence[str]], int]
"""The command `bench`, given its arguments; a module's function, which other processes import."""

TAIL = 4000
"""Characters kept of what a task says on stderr."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Task:
    """A command of `bench` to be run.

    Attributes:
        index: the caller's.
        after: the tasks that must have ended before it.
        seconds: that it may take; 0 where nothing like it has run.
    """

    index: int
    arguments: tuple[str, ...]
    after: frozenset[int] = frozenset()
    seconds: float = 0.0


@dataclass(frozen=True)
class TaskResult:
    """What came of a task: the exit status, the end of its stderr, seconds."""

    index: int
    status: int
    tail: str
    seconds: float


def may_begin(waiting: Sequence[Task], unended: Collection[int], left: float = math.inf) -> Task | None:
    """The first task that waits for none of those that have not ended, and fits into the seconds that are left.

    >>> tasks = [Task(1, ("run",), after=frozenset({0})), Task(2, ("run",), seconds=60)]
    >>> may_begin(tasks, {0, 1, 2}).index, may_begin(tasks, {1, 2}).index, may_begin(tasks[:1], {0, 1})
    (2, 1, None)
    >>> may_begin(tasks, {0, 1, 2}, left=59), may_begin(tasks, {1, 2}, left=0)
    (None, None)
    """
    fits = (task for task in waiting if 0 < left >= task.seconds)
    return next((task for task in fits if task.after.isdisjoint(unended)), None)


def left(until: float | None) -> float:
    """Seconds to a moment of `time.monotonic`; infinity to None."""
    return math.inf if until is None else until - time.monotonic()


class Executor(Protocol):
    """Runs tasks, and yields each as it ends: in any order, but for what a task is after."""

    def run(self, tasks: Sequence[Task], until: float | None = None) -> Iterator[TaskResult]:
        """Begins them, and yields what came of each as it ends.

        Args:
            until: a moment of `time.monotonic`. No task is begun that may take longer, and what still runs then is
                interrupted; neither is yielded.

        Raises:
            KeyboardInterrupt: after having stopped whatever was running.
        """
        ...


def environment(threads: int) -> dict[str, str]:
    """Variables by which a process uses so many threads and finds this very `bench`."""
    return dict.fromkeys(THREADS, str(threads)) | {"PYTHONPATH": python_path()}


def python_path() -> str:
    """PYTHONPATH with the directory of this very `bench` before all others."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    return os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
