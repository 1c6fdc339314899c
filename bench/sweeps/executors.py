"""One interface to run the commands of a sweep: locally (`local.py`), on a Ray cluster or on a Slurm cluster.

A task is `bench run ...` or `bench audit release ...`. All tasks write into one directory, where every step is made
once (`bench.storage`). A step that several tasks share, such as a teacher, is first made by `bench prepare ...`,
so that no task waits for a lock; tasks that do not need it run in the meantime.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from bench.storage.mirror import VARIABLE

Main = Callable[[Sequence[str]], int]
"""The command `bench` as a function of its arguments; module-level, so that other processes can import it."""

TAIL = 4000
"""Number of characters kept of a task's stderr."""
POLL_SECONDS = 5.0
"""Seconds between two queries of a cluster."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Task:
    """A command of `bench` to run.

    Attributes:
        index: the caller's number of the task.
        after: the tasks that must have ended before it.
        seconds: its estimated seconds; 0 if unknown.
    """

    index: int
    arguments: tuple[str, ...]
    after: frozenset[int] = frozenset()
    seconds: float = 0.0


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: exit status (negative for a signal), last part of its stderr, seconds."""

    index: int
    status: int
    tail: str
    seconds: float


def next_task(waiting: Sequence[Task], unfinished: Collection[int], seconds: float = math.inf) -> Task | None:
    """Return the first task that waits for no unfinished task and fits into the remaining `seconds`.

    >>> tasks = [Task(1, ("run",), after=frozenset({0})), Task(2, ("run",), seconds=60)]
    >>> next_task(tasks, {0, 1, 2}).index, next_task(tasks, {1, 2}).index, next_task(tasks[:1], {0, 1})
    (2, 1, None)
    >>> next_task(tasks, {0, 1, 2}, seconds=59), next_task(tasks, {1, 2}, seconds=0)
    (None, None)
    """
    fitting = (task for task in waiting if 0 < seconds >= task.seconds)
    return next((task for task in fitting if task.after.isdisjoint(unfinished)), None)


Handle = TypeVar("Handle")
"""A running task, as a backend identifies it."""


class Executor(ABC, Generic[Handle]):
    """Runs tasks and yields each result when it arrives, in any order that respects `Task.after`."""

    def run(self, tasks: Sequence[Task], until: float | None = None) -> Iterator[TaskResult]:
        """Start the tasks when there is room, and yield their results. For one thread.

        Args:
            until: a moment of `time.monotonic`. A task with a longer estimate is not started; tasks that still run at
                that moment are interrupted; neither kind yields a result.

        Raises:
            KeyboardInterrupt: after all running tasks were stopped.
        """
        waiting, unfinished, running = list(tasks), {task.index for task in tasks}, dict[Handle, Task]()

        def next_waiting() -> Task | None:
            has_room = self.has_room(len(running), until)
            return next_task(waiting, unfinished, seconds_left(until)) if has_room else None

        with self.session():
            try:
                while waiting or running:
                    failed = []
                    while (task := next_waiting()) is not None:
                        waiting.remove(task)
                        try:
                            running[self.start(task)] = task
                        except (OSError, EOFError, BrokenExecutor) as error:
                            reason = f"could not start: {type(error).__name__}: {error}"
                            failed.append(TaskResult(task.index, 1, reason, 0.0))
                            unfinished.discard(task.index)
                    if not running and not failed:
                        return  # no other task fits
                    ended = self.wait(running, 0.0 if failed else max(0.0, seconds_left(until)))
                    for handle, result in ended.items():
                        del running[handle]
                        unfinished.discard(result.index)
                    yield from [*failed, *ended.values()]
                    if not ended and seconds_left(until) <= 0:
                        return
            finally:
                self.stop(running)

    def session(self) -> AbstractContextManager[object]:
        """Return a context that is open from the first task to the last."""
        return nullcontext()

    @abstractmethod
    def has_room(self, running: int, until: float | None) -> bool:
        """Whether one more task may be started."""

    @abstractmethod
    def start(self, task: Task) -> Handle:
        """Start a task. Raises OSError, EOFError or BrokenExecutor if the system refuses."""

    @abstractmethod
    def wait(self, running: dict[Handle, Task], seconds: float) -> dict[Handle, TaskResult]:
        """Return the results of ended tasks; waits for the first, at most that long, and may return none."""

    @abstractmethod
    def stop(self, running: dict[Handle, Task]) -> None:
        """Interrupt running tasks, kill those that do not end, and release all resources."""


def seconds_left(until: float | None) -> float:
    """Return the seconds to a moment of `time.monotonic`; infinity for None."""
    return math.inf if until is None else until - time.monotonic()


def environment(threads: int) -> dict[str, str]:
    """Return the variables of a task's process: its number of threads, the path of this `bench`, and the mirror."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    mirror = {VARIABLE: url} if (url := os.environ.get(VARIABLE)) else {}
    return dict.fromkeys(THREADS, str(threads)) | {"PYTHONPATH": path} | mirror


def devices_of(gpus: float) -> tuple[str, ...]:
    """Return the options by which a cluster's task uses its GPUs; a share of a GPU counts as one GPU."""
    if gpus <= 1:
        return ("--device", "cuda" if gpus > 0 else "cpu")
    return ("--device", "cuda", "--devices", str(int(gpus)))


def run_on_cluster(main: Main, task: Task, folder: Path, gpus: float, threads: int) -> TaskResult:
    """Run the command inside a cluster's worker process, in the directory where the sweep was started.

    No process is started here: forking a worker with Ray's threads may hang.
    """
    import torch

    torch.set_num_threads(threads)
    os.chdir(folder)
    start, stderr = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
        try:
            status = main([*task.arguments, *devices_of(gpus)])
        except Exception as error:  # any exception fails only this cell; the summary gives the reason
            status = 1
            stderr.write(f"{type(error).__name__}: {error}")
    return TaskResult(task.index, status, stderr.getvalue()[-TAIL:], time.monotonic() - start)
