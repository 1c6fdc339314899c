"""The number of cores, and a worker process: a `ProcessPoolExecutor` of one process that can be killed.

Each process has its own executor, because a process that dies breaks its whole executor.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

GRACE = 10.0
"""Seconds that a process has to end after an interrupt."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """One process that is kept between calls. The first call starts it; after its death the next call starts another.

    It ends with `close` or `kill`, and with its parent process in any case. Ctrl-C does not reach it.

    Args:
        prepare: a module-level function that a new process calls first with the arguments `given`.
    """

    def __init__(self, prepare: Callable[..., None], *given: Any) -> None:
        self._prepare, self._given = prepare, given
        self._pool: ProcessPoolExecutor | None = None
        self.process: BaseProcess | None = None

    def submit(self, function: Callable[..., Any], *given: Any) -> Future[Any]:
        """Start a call; one at a time. Raises OSError if the system cannot start a process."""
        try:
            return self._running().submit(function, *given)
        except BrokenProcessPool:  # the idle process died
            self.kill()
            return self._running().submit(function, *given)

    def end_of(self) -> str:
        """Return how the process ended, after a call has raised BrokenProcessPool."""
        status = self.exit_status()
        return f"killed by signal {-status}" if status < 0 else f"exit status {status}"

    def exit_status(self) -> int:
        """Return the exit status of a process that has died; negative for a signal."""
        until = time.monotonic() + GRACE
        # The executor's own thread waits for the process too: the second waiter gets the status a moment later
        while self.process is not None and self.process.exitcode is None and time.monotonic() < until:
            time.sleep(0.01)
        status = None if self.process is None else self.process.exitcode
        return 1 if status is None else status

    def interrupt(self) -> None:
        """Send SIGINT to the process, and to its children if it leads a process group."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the process now, with its children if it leads a process group."""
        self._signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Wait until the process has ended; a running call is finished first."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = self.process = None

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            before = set(multiprocessing.active_children())
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(self._prepare, self._given))
            pool.submit(int)  # starts the process
            self._pool, self.process = pool, (set(multiprocessing.active_children()) - before).pop()
        return self._pool

    def _signal(self, kind: signal.Signals) -> None:
        if self.process is None or self.process.pid is None or self.process.exitcode is not None:
            return
        try:
            os.killpg(self.process.pid, kind)
        except ProcessLookupError:  # it does not lead a group, or not yet
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, kind)


def _begin(prepare: Callable[..., None], given: tuple[Any, ...]) -> None:
    def end_with_parent() -> None:
        # The executor's pipe does not close when the parent ends, as this process holds both of its ends
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    threading.Thread(target=end_with_parent, daemon=True).start()
    prepare(*given)
