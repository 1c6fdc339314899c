"""Run a sweep in processes of this machine that are reused for several runs.

Importing torch and timm and setting up CUDA takes as long as a short run. So each process does one run after another.
A run is the command, as in a separate process, and gives the same record except for its seconds. After an exit status
other than 0 the process is replaced, since CUDA may be unusable after an error; a process that the system kills
affects no other run.
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
"""Seconds of one wait: threads cannot wait infinitely long."""
Call = Future[tuple[int, bool]]


@dataclass
class Place:
    """A process with its device, and its task with its start time and the file of its stderr."""

    worker: Worker
    device: str
    task: Task | None = None
    start: float = 0.0
    said: Path = Path()

    def ended(self, call: Call) -> TaskResult:
        """Return the result of its task; kill a process that cannot be reused."""
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
    """Runs processes in parallel; devices are assigned in rotation, and the machine's cores are divided evenly.

    Args:
        main: the command.
        jobs: the number of processes.
        devices: names for --device; with at least as many devices as jobs, each process has its own.
    """

    def __init__(self, main: Main, jobs: int, devices: Sequence[str] = ("cpu",)) -> None:
        self.main, self.jobs = main, jobs
        self.places = [Place(Worker(_prepare), devices[i % len(devices)]) for i in range(jobs)]
        self._of: dict[Call, Place] = {}
        self._folder = Path()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the environment of the processes, and a folder for their stderr."""
        with with_environment(threads_each(self.jobs)), tempfile.TemporaryDirectory(prefix="bench-sweep-") as folder:
            self._folder = Path(folder)
            yield

    def has_place(self, running: int, until: float | None) -> bool:
        """Whether one more task may be started, as `Executor`."""
        return running < self.jobs

    def start(self, task: Task) -> Call:
        """Start a task, as `Executor`. An idle process is preferred."""
        free = [place for place in self.places if place.task is None]
        place = next((each for each in free if each.worker.process is not None), free[0])
        said = self._folder / f"{time.monotonic_ns()}"
        with undisturbed():
            call = place.worker.submit(_run_task, self.main, [*task.arguments, "--device", place.device], said)
            place.task, place.start, place.said = task, time.monotonic(), said
            self._of[call] = place
        return call

    def wait(self, running: dict[Call, Task], seconds: float) -> dict[Call, TaskResult]:
        """Wait for results, as `Executor`."""
        done = wait(list(running), min(seconds, LONGEST), FIRST_COMPLETED).done
        return {call: self._of.pop(call).ended(call) for call in done}

    def stop(self, running: dict[Call, Task]) -> None:
        """Stop all tasks, as `Executor`: SIGINT to each task and its children, then SIGKILL."""
        for call in running:
            self._of[call].worker.interrupt()
        try:
            wait(list(running), GRACE)
        finally:
            for place in self.places:
                place.worker.kill()
            self._of.clear()


def _prepare() -> None:
    """Start a new session, so that a process can be killed with its children; discard stdout."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_task(main: Main, arguments: Sequence[str], said: Path) -> tuple[int, bool]:
    """Run a command with its stderr in a file; return its exit status, and whether the process can be reused."""
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
    """Return the exit status that the command would have."""
    try:
        return main(arguments)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception:  # any exception fails only this run; its stderr shows it
        traceback.print_exc()
        return 1


def _free_memory() -> bool:
    """Free the memory of a run, also on the device. False if that failed: CUDA errors may arrive late."""
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
    """Reset the peak memory of this process, which a record reports, for the next run (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
