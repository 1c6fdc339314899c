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
from bench.sweeps.processes import delayed_interrupts, threads_each, with_environment
from bench.workers import GRACE, Worker

LONGEST = 3600.0
"""Seconds of one wait: threads cannot wait infinitely long."""
Call = Future[tuple[int, bool]]


@dataclass
class Slot:
    """A process with its device, its current task, the start time of the task, and the file of its stderr."""

    worker: Worker
    device: str
    task: Task | None = None
    start: float = 0.0
    stderr: Path = Path()

    def finish(self, call: Call) -> TaskResult:
        """Return the result of its task; kill a process that cannot be reused."""
        try:
            status, is_reusable = call.result()
        except BrokenProcessPool:
            status, is_reusable = self.worker.exit_status(), False
        index = -1 if self.task is None else self.task.index
        tail = self.stderr.read_text(encoding="utf-8", errors="replace")[-TAIL:] if self.stderr.exists() else ""
        self.stderr.unlink(missing_ok=True)
        if not is_reusable:
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
        self.slots = [Slot(Worker(prepare_process), devices[i % len(devices)]) for i in range(jobs)]
        self._running: dict[Call, Slot] = {}
        self._folder = Path()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Open the environment of the processes, and a folder for their stderr."""
        with with_environment(threads_each(self.jobs)), tempfile.TemporaryDirectory(prefix="bench-sweep-") as folder:
            self._folder = Path(folder)
            yield

    def has_room(self, running: int, until: float | None) -> bool:
        """Whether one more task may be started, as `Executor`."""
        return running < self.jobs

    def start(self, task: Task) -> Call:
        """Start a task, as `Executor`. An idle process is preferred."""
        free = [slot for slot in self.slots if slot.task is None]
        slot = next((each for each in free if each.worker.process is not None), free[0])
        stderr = self._folder / f"{time.monotonic_ns()}"
        with delayed_interrupts():
            call = slot.worker.submit(run_task, self.main, [*task.arguments, "--device", slot.device], stderr)
            slot.task, slot.start, slot.stderr = task, time.monotonic(), stderr
            self._running[call] = slot
        return call

    def wait(self, running: dict[Call, Task], seconds: float) -> dict[Call, TaskResult]:
        """Wait for results, as `Executor`."""
        done = wait(list(running), min(seconds, LONGEST), FIRST_COMPLETED).done
        return {call: self._running.pop(call).finish(call) for call in done}

    def stop(self, running: dict[Call, Task]) -> None:
        """Stop all tasks, as `Executor`: SIGINT to each task and its children, then SIGKILL."""
        for call in running:
            self._running[call].worker.interrupt()
        try:
            wait(list(running), GRACE)
        finally:
            for slot in self.slots:
                slot.worker.kill()
            self._running.clear()


def prepare_process() -> None:
    """Start a new session, so that a process can be killed with its children; discard stdout."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_task(main: Main, arguments: Sequence[str], stderr: Path) -> tuple[int, bool]:
    """Run a command with its stderr in a file; return its exit status, and whether the process can be reused."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    file = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stderr.fileno())
    os.close(file)
    reset_peak_memory()
    status = exit_status_of(main, arguments)
    signal.signal(signal.SIGINT, before)
    is_reusable = free_memory() and status == 0
    sys.stdout.flush()
    sys.stderr.flush()
    return status, is_reusable


def exit_status_of(main: Main, arguments: Sequence[str]) -> int:
    """Return the exit status that the command would have in a separate process."""
    try:
        return main(arguments)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception:  # any exception fails only this run; its stderr shows it
        traceback.print_exc()
        return 1


def free_memory() -> bool:
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


def reset_peak_memory() -> None:
    """Reset the peak memory of this process, which a record reports, for the next run (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
