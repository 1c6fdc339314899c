"""What the processes of a sweep on this machine share: their environment, their end, and no interrupt in between."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bench.pipeline.devices import cores
from bench.sweeps.executors import TAIL, THREADS, Task, TaskResult, environment

GRACE = 10.0
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a sweep: Ctrl-C, a plain kill, a terminal that is closed."""


class Begun(Protocol):
    """What has been begun: its process is the leader of a session of its own."""

    @property
    def process(self) -> BaseProcess:
        """Begun, and perhaps ended."""
        ...


B = TypeVar("B", bound=Begun)


def threads_each(jobs: int) -> int:
    """Threads of each of so many processes: an even share of the cores, or fewer where OMP_NUM_THREADS says so."""
    share, wished = max(1, cores() // jobs), os.environ.get(THREADS[0], "")
    return min(share, int(wished)) if wished.isdecimal() and int(wished) else share


@contextmanager
def of_a_sweep(threads: int) -> Iterator[None]:
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


def apart(said: Path) -> None:
    """Puts this process into a session of its own, so that it can be ended with everything it starts; its stdout goes
    nowhere, and its stderr to a file."""
    os.setsid()
    # What a shell begins in the background ignores this, as all that it begins does; here the sweep sends it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), sys.stderr.fileno())


def said_last(said: Path) -> str:
    """The end of what a process said there."""
    return said.read_text(encoding="utf-8", errors="replace")[-TAIL:] if said.exists() else ""


def not_begun(task: Task, error: Exception) -> TaskResult:
    """Of a task for which the system had no process to give."""
    return TaskResult(task.index, 1, f"could not begin: {type(error).__name__}: {error}", 0.0)


@contextmanager
def as_interrupts() -> Iterator[None]:
    """SIGTERM, and SIGHUP unless it is ignored as under nohup, raise KeyboardInterrupt as Ctrl-C does."""
    before = {kind: signal.getsignal(kind) for kind in INTERRUPTS[1:]}
    for kind, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(kind, signal.default_int_handler)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
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
def stopping(running: dict[int, B]) -> Iterator[None]:
    """On any way out but the ordinary one: end what is running, with everything it started."""
    try:
        yield
    except BaseException:
        end(running)
        raise


def end(running: dict[int, B]) -> None:
    """Interrupt what is running, with everything it started, and kill what does not end of that."""
    groups = [one.process.pid for one in running.values()]
    try:
        _signal(groups, signal.SIGINT)
        _await(running, GRACE)
    finally:
        _signal(groups, signal.SIGKILL)
        _await(running, GRACE)


def _signal(groups: Sequence[int | None], kind: signal.Signals) -> None:
    """To whole groups; to a process that does not lead one yet, as it has only just begun, alone."""
    for group in groups:
        if group is None:
            continue
        try:
            os.killpg(group, kind)
        except ProcessLookupError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(group, kind)


def _await(running: dict[int, B], patience: float) -> None:
    """Take out of `running` what ends within so many seconds."""
    until = time.monotonic() + patience
    while running and (left := until - time.monotonic()) > 0:
        for one in over(running, left):
            one.process.join()


def over(running: dict[int, B], patience: float | None = None) -> list[B]:
    """Those taken out of `running` because they have ended; waits for one, for so many seconds at most."""
    found = set(wait(list(running), patience)) if running else set()
    return [running.pop(sentinel) for sentinel in list(running) if sentinel in found]
