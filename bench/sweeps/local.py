"""The runs of a sweep as processes of this machine that stay from run to run.

A process that imports torch and timm and sets up CUDA has used many seconds before it begins, as long as a short run
takes. So each process does one run after another. A run is the command, as in a separate process, and gives the same
record, except for how long it took. After an exit status other than 0 the process is replaced, since CUDA may be out of
order after an error; one that the system kills takes no other run with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.sweeps.executors import TAIL, Executor, Main, Task, TaskResult
from bench.sweeps.processes import threads_each, undisturbed, with_environment
from bench.workers import GRACE, Worker

LONGEST = 3600.0
"""Seconds of one wait: threads take no infinite one."""
Call = Future[tuple[int, bool]]


@dataclass
class Place:
    """A process with its device, and the task that it has, with when it got it and the file of its stderr."""

    worker: Worker
    device: str
    task: Task | None = None
    start: float = 0.0
    said: Path = Path()

    def ended(self, call: Call) -> TaskResult:
        """The result of its task; a process that is not to stay is killed."""
        try:
            status, stays = call.result()
        except BrokenProcessPool:
            status, stays = self.worker.exit_status(), False
        index = -1 if self.task is None else self.task.index
        tail = self.said.read_text(encoding="utf-8", errors="replace")[-TAIL:] if self.said.exists() else ""
        self.said.unlink(missing_ok=True)
        if not stays:
            self.worker.kill()
        self.task = None
        return TaskResult(index, status, tail, time.monotonic() - self.start)


class Local(Executor[Call]):
    """Processes side by side; devices are given out in turn, and the machine's cores are divided evenly.

    Args:
        main: the command.
        jobs: the number of processes.
        devices: names for --device; a process has one to itself as long as there are as many as jobs.
    """

    def __init__(self, main: Main, jobs: int, devices: Sequence[str] = ("cpu",)) -> None:
        self.main, self.jobs = main, jobs
        self.places = [Place(Worker(_prepare), devices[i % len(devices)]) for i in range(jobs)]
        self._of: dict[Call, Place] = {}
        self._folder = Path()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """With the environment in which processes begin, and a folder for what they write to stderr."""
        with with_environment(threads_each(self.jobs)), tempfile.TemporaryDirectory(prefix="bench-sweep-") as folder:
            self._folder = Path(folder)
            yield

    def has_place(self, running: int, until: float | None) -> bool:
        """As `Executor`."""
        return running < self.jobs

    def start(self, task: Task) -> Call:
        """As `Executor`. A process that waits already is preferred."""
        free = [place for place in self.places if place.task is None]
        place = next((each for each in free if each.worker.process is not None), free[0])
        said = self._folder / f"{time.monotonic_ns()}"
        with undisturbed():
            call = place.worker.submit(_run_task, self.main, [*task.arguments, "--device", place.device], said)
            place.task, place.start, place.said = task, time.monotonic(), said
            self._of[call] = place
        return call

    def wait(self, running: dict[Call, Task], seconds: float) -> dict[Call, TaskResult]:
        """As `Executor`."""
        done = wait(list(running), min(seconds, LONGEST), FIRST_COMPLETED).done
        return {call: self._of.pop(call).ended(call) for call in done}

    def stop(self, running: dict[Call, Task]) -> None:
        """As `Executor`: SIGINT to each task and what it started, then SIGKILL."""
        for call in running:
            self._of[call].worker.interrupt()
        try:
            wait(list(running), GRACE)
        finally:
            for place in self.places:
                place.worker.kill()
            self._of.clear()


def _prepare() -> None:
    """In its own session a process can be ended with everything that it starts; stdout goes nowhere."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_task(main: Main, arguments: Sequence[str], said: Path) -> tuple[int, bool]:
    """The exit status of a command whose stderr goes to a file, and whether the process may be given another."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stderr.fileno())
    os.close(file)
    _reset_peak_memory()
    status = _exit_status(main, arguments)
    signal.signal(signal.SIGINT, before)
    stays = _free_memory() and status == 0
    sys.stdout.flush()
    sys.stderr.flush()
    return status, stays


def _exit_status(main: Main, arguments: Sequence[str]) -> int:
    """The exit status that the command would have."""
    try:
        return main(arguments)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception:  # any exception is this run's end only; its stderr shows it
        traceback.print_exc()
        return 1


def _free_memory() -> bool:
    """Free what a run has left in memory and on the device. False if that failed: an error may come late."""
    gc.collect()
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    except RuntimeError:
        traceback.print_exc()
        return False
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    return True


def _reset_peak_memory() -> None:
    """Let the peak memory of this process, which a record shows, be that of the next run (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
