"""The runs of a sweep as processes of this machine.

A process that imports torch, timm and scikit-learn has used seconds before it begins. So one process imports them,
once, and every run on a CPU is a fork of it (`multiprocessing`'s fork server, which has no threads and has done nothing
else). A run on a GPU begins in a fresh interpreter, as CUDA does not outlive a fork.

One thread begins the processes and waits for them. `Process.start` also asks every other process how it ended, and the
fork server tells that once: of two threads that ask, one is told and the other makes it exit status 255.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bench.pipeline.devices import cores
from bench.sweeps.executors import TAIL, THREADS, Main, Task, TaskResult, environment, left, may_begin

GRACE = 10.0
IMPORTED = ["bench.pipeline.walk", "timm"]
"""What the process to be forked imports; with these, all that every run needs."""
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Running:
    """A task that has been begun: its process, its device, the file of its stderr, and when."""

    task: Task
    process: BaseProcess
    device: str
    said: Path
    start: float

    def ended(self) -> TaskResult:
        """How it ended; waits until it has. Its stderr is removed."""
        self.process.join()
        seconds, status = time.monotonic() - self.start, self.process.exitcode
        assert status is not None  # as it has been joined
        tail = self.said.read_text(encoding="utf-8", errors="replace")[-TAIL:] if self.said.exists() else ""
        self.said.unlink(missing_ok=True)
        return TaskResult(self.task.index, status, tail, seconds)


@dataclass(frozen=True)
class Local:
    """Processes side by side; devices are given out in turn, and the machine's cores shared out evenly.

    Attributes:
        main: the command.
        jobs: how many at once.
        devices: names for --device; a process has one to itself as long as there are as many as jobs.
    """

    main: Main
    jobs: int
    devices: tuple[str, ...]

    def run(self, tasks: Sequence[Task], until: float | None = None) -> Iterator[TaskResult]:
        """As `Executor`; to be used from one thread."""
        free = [self.devices[i % len(self.devices)] for i in range(self.jobs)]
        waiting, running, ended = list(tasks), dict[int, Running](), list[TaskResult]()
        unended = {task.index for task in tasks}
        threads = threads_each(self.jobs)
        with _environment(threads), tempfile.TemporaryDirectory(prefix="bench-sweep-") as folder, _stopping(running):
            while waiting or running or ended:
                while free and (task := may_begin(waiting, unended, left(until))):
                    waiting.remove(task)
                    try:
                        self._begin(task, free[-1], Path(folder), running)
                        free.pop()
                    except (OSError, EOFError) as error:
                        ended.append(
                            TaskResult(task.index, 1, f"could not begin: {type(error).__name__}: {error}", 0.0)
                        )
                        unended.discard(task.index)
                yield from ended
                if until is not None and not running and not ended:
                    return  # nothing else fits
                over = _over(running, None if until is None else max(0.0, left(until)))
                if not over and left(until) <= 0:
                    return _end(running)
                ended = [one.ended() for one in over]
                free += [one.device for one in over]
                unended -= {one.task.index for one in over}

    def _begin(self, task: Task, device: str, folder: Path, running: dict[int, Running]) -> None:
        """Begin a task, as a process in `running`. Raises OSError or EOFError if the system has no process to give."""
        start, said = time.monotonic(), folder / f"{time.monotonic_ns()}"
        process = _process(device, self.main, [*task.arguments, "--device", device], said)
        with _undisturbed():
            process.start()
            running[process.sentinel] = Running(task, process, device, said, start)


def threads_each(jobs: int) -> int:
    """Threads of each of so many processes: an even share of the cores, or fewer where OMP_NUM_THREADS says so."""
    share, wished = max(1, cores() // jobs), os.environ.get(THREADS[0], "")
    return min(share, int(wished)) if wished.isdecimal() and int(wished) else share


def _process(device: str, *given: Any) -> BaseProcess:
    if device != "cpu":
        return multiprocessing.get_context("spawn").Process(target=_begun, args=given)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context.Process(target=_begun, args=given)


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """With the environment that runs are to begin in; the fork server keeps the one that it was begun in."""
    before = {name: os.environ.get(name) for name in environment(threads)}
    os.environ.update(environment(threads))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _begun(main: Main, arguments: Sequence[str], said: Path) -> None:
    """Runs the command in a session of its own, so that it can be ended with everything it starts."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), sys.stderr.fileno())
    sys.exit(main(arguments))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Interrupts wait for the block to end: one in the midst of beginning a process would leave it unknown."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, Any]] = []
    before = {kind: handler for kind in INTERRUPTS if callable(handler := signal.getsignal(kind))}
    for kind in before:
        signal.signal(kind, lambda *given: held.append(given))
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for number, frame in held[:1]:
            before[signal.Signals(number)](number, frame)


@contextmanager
def _stopping(running: dict[int, Running]) -> Iterator[None]:
    """On any way out but the ordinary one: end what is running, with everything it started."""
    try:
        yield
    except BaseException:
        _end(running)
        raise


def _end(running: dict[int, Running]) -> None:
    """Interrupt what is running, with everything it started, and kill what does not end of that."""
    groups = [one.process.pid for one in running.values()]
    try:
        _signal(groups, signal.SIGINT)
        _await(running, GRACE)
    finally:
        _signal(groups, signal.SIGKILL)
        _await(running, GRACE)


def _signal(groups: Sequence[int | None], kind: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            if group is not None:
                os.killpg(group, kind)


def _await(running: dict[int, Running], patience: float) -> None:
    """Take out of `running` what ends within so many seconds."""
    until = time.monotonic() + patience
    while running and (left := until - time.monotonic()) > 0:
        for one in _over(running, left):
            one.process.join()


def _over(running: dict[int, Running], patience: float | None = None) -> list[Running]:
    """Those taken out of `running` because they have ended; waits for one, for so many seconds at most."""
    found = set(wait(list(running), patience)) if running else set()
    return [running.pop(sentinel) for sentinel in list(running) if sentinel in found]
