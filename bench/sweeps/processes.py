"""Threads and environment of a sweep's processes, and the interrupts of the sweep itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bench.sweeps.executors import THREADS, environment
from bench.workers import cores

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a sweep: Ctrl-C, a plain kill, a closed terminal."""


def threads_each(jobs: int) -> int:
    """Return the threads per process for `jobs` processes: an even share of the cores, at most OMP_NUM_THREADS."""
    share, limit = max(1, cores() // jobs), os.environ.get(THREADS[0], "")
    return min(share, int(limit)) if limit.isdecimal() and int(limit) else share


@contextmanager
def with_environment(threads: int) -> Iterator[None]:
    """Set the environment for child processes, and restore it."""
    before = {name: os.environ.get(name) for name in environment(threads)}
    os.environ.update(environment(threads))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, and on SIGHUP unless it is ignored as under nohup, as Ctrl-C does."""
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
def delayed_interrupts() -> Iterator[None]:
    """Delay interrupts until the block ends: an interrupt while a process starts would lose track of the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    delayed: list[tuple[int, FrameType | None]] = []
    before = {kind: handler for kind in INTERRUPTS if callable(handler := signal.getsignal(kind))}
    for kind in before:
        signal.signal(kind, lambda number, frame: delayed.append((number, frame)))
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for number, frame in delayed[:1]:
            before[signal.Signals(number)](number, frame)
