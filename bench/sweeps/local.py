"""The runs of a sweep as processes of this machine.

A process that imports torch, timm and scikit-learn has used seconds before it begins. So one process imports them,
once, and every run on a CPU is a fork of it (`multiprocessing`'s fork server, which has no threads and has done nothing
else). A run on a GPU begins in a fresh interpreter, as CUDA does not outlive a fork.
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
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bench.sweeps.executors import TAIL, Done, Main, Task, cores, environment

GRACE = 10.0
IMPORTED = ["bench.runner", "timm"]
"""What the process to be forked imports; with these, all that every run needs."""


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

    def run(self, tasks: Sequence[Task]) -> Iterator[Done]:
        """As `Executor`."""
        free = [self.devices[i % len(self.devices)] for i in range(self.jobs)]
        lock, stopped, running = threading.Lock(), threading.Event(), dict[int, BaseProcess]()

        def work(task: Task) -> Done:
            with lock:
                device = free.pop()
            try:
                return self._process(task, device, running, stopped)
            finally:
                with lock:
                    free.append(device)

        threads = max(1, cores() // self.jobs)
        with _environment(threads), ThreadPoolExecutor(self.jobs) as pool, _stopping(running, stopped):
            waiting: set[Future[Done]] = {pool.submit(work, task) for task in tasks}
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ended)

    def _process(self, task: Task, device: str, running: dict[int, BaseProcess], stopped: threading.Event) -> Done:
        if stopped.is_set():
            return Done(task.index, 130, "not begun", 0.0)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bench-sweep-") as folder:
            said = Path(folder) / "stderr"
            process = _begin(device, self.main, [*task.arguments, "--device", device], said)
            running[task.index] = process
            process.join()
            del running[task.index]
            tail = said.read_text(encoding="utf-8", errors="replace")[-TAIL:] if said.exists() else ""
        status = 1 if process.exitcode is None else process.exitcode
        return Done(task.index, status, tail, time.monotonic() - start)


def _begin(device: str, *given: Any) -> BaseProcess:
    if device == "cpu":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        process: BaseProcess = context.Process(target=_begun, args=given)
    else:
        process = multiprocessing.get_context("spawn").Process(target=_begun, args=given)
    process.start()
    return process


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
def _stopping(running: dict[int, BaseProcess], stopped: threading.Event) -> Iterator[None]:
    """On any way out but the ordinary one: begin nothing more, and end what is running, with everything it started."""
    try:
        yield
    except BaseException:
        stopped.set()
        for kind, patience in ((signal.SIGINT, GRACE), (signal.SIGKILL, 0.0)):
            for process in list(running.values()):
                with contextlib.suppress(ProcessLookupError):
                    if process.pid:
                        os.killpg(process.pid, kind)
            until = time.monotonic() + patience
            while running and time.monotonic() < until:
                time.sleep(0.1)
        raise
