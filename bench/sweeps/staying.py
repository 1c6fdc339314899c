"""The runs of a sweep on GPUs, by processes of this machine that stay from run to run.

A process that imports torch and timm and sets up CUDA has used many seconds before it begins, as long as a short run
takes. On a CPU a run is a fork of one that has done it (`local.py`); CUDA does not outlive a fork, so a
process is given one run after the other. Each run is the command, as in a process of its own, and gives the same
record, apart from how long it took; what it said is told apart. One that ends with another status than 0 ends its
process with it, as CUDA may be out of order after an error, and so a crash takes no other run with it.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from bench.sweeps.executors import Main, Task, TaskResult, left, may_begin
from bench.sweeps.processes import (
    GRACE,
    apart,
    end,
    not_begun,
    of_a_sweep,
    said_last,
    stopping,
    threads_each,
    undisturbed,
)
from bench.validate import present


@dataclass
class Worker:
    """A process that stays, with its device, the file of its stderr, the task that it has, with when it got it, and
    whether it takes another."""

    process: BaseProcess
    pipe: Connection
    device: str
    said: Path
    task: Task | None = None
    start: float = 0.0
    stays: bool = True

    def give(self, task: Task) -> None:
        """A task to do."""
        self.task, self.start = task, time.monotonic()
        with contextlib.suppress(OSError):  # it has died, and its end will be told
            self.pipe.send([*task.arguments, "--device", self.device])

    def ended(self) -> TaskResult:
        """What came of its task, which is done or whose process has died."""
        task, self.task = present(self.task, "task of this process"), None
        try:
            status, self.stays = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            status, self.stays = self.process.exitcode or 1, False
        return TaskResult(task.index, status, said_last(self.said), time.monotonic() - self.start)

    def dismiss(self) -> None:
        """Let it end, or make it."""
        self.pipe.close()
        self.process.join(GRACE)
        if self.process.is_alive():
            end({self.process.sentinel: self})


@dataclass
class Staff:
    """The processes of one sweep: those that are there, and devices for others."""

    main: Main
    folder: Path
    free: list[str]
    workers: dict[int, Worker] = field(default_factory=dict)

    def may_take(self) -> bool:
        """Whether a task would find a process."""
        return bool(self.free) or len(self.busy()) < len(self.workers)

    def busy(self) -> list[Worker]:
        """Those with a task."""
        return [worker for worker in self.workers.values() if worker.task]

    def give(self, task: Task) -> None:
        """To an idle process, else to a new one. Raises OSError if the system has none to give."""
        for worker in [one for one in self.workers.values() if not one.task and not one.process.is_alive()]:
            self._replace(worker)  # killed while it had nothing to do, for want of memory say
        idle = next((worker for worker in self.workers.values() if not worker.task), None)
        (idle or self._begin()).give(task)

    def _begin(self) -> Worker:
        said, context = self.folder / f"{time.monotonic_ns()}", multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_stay, args=(self.main, theirs, said))
        with undisturbed():
            process.start()
            worker = self.workers[process.sentinel] = Worker(process, ours, self.free.pop(), said)
        theirs.close()
        return worker

    def over(self, patience: float | None) -> list[TaskResult]:
        """The tasks that have ended; waits for one, for so many seconds at most. A process that takes no
        other is replaced."""
        busy = self.busy()
        found = set(wait([thing for one in busy for thing in (one.pipe, one.process.sentinel)], patience))
        ended = []
        for worker in (one for one in busy if found & {one.pipe, one.process.sentinel}):
            ended.append(worker.ended())
            if not worker.stays:
                self._replace(worker)
        return ended

    def dismiss(self) -> None:
        """Let all end, side by side."""
        for worker in self.workers.values():
            worker.pipe.close()
        for worker in self.workers.values():
            worker.dismiss()

    def _replace(self, worker: Worker) -> None:
        worker.dismiss()
        del self.workers[worker.process.sentinel]
        self.free.append(worker.device)


@dataclass(frozen=True)
class Staying:
    """Processes side by side that stay; devices are given out in turn, and the machine's cores shared out evenly.

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
        waiting, unended, ended = list(tasks), {task.index for task in tasks}, list[TaskResult]()
        with of_a_sweep(threads_each(self.jobs)), tempfile.TemporaryDirectory(prefix="bench-sweep-") as folder:
            staff = Staff(self.main, Path(folder), [self.devices[i % len(self.devices)] for i in range(self.jobs)])
            with stopping(staff.workers):
                while waiting or staff.busy() or ended:
                    while staff.may_take() and (task := may_begin(waiting, unended, left(until))):
                        waiting.remove(task)
                        try:
                            staff.give(task)
                        except OSError as error:
                            ended.append(not_begun(task, error))
                            unended.discard(task.index)
                    yield from ended
                    if not staff.busy() and not ended:
                        break  # nothing else fits
                    ended = staff.over(None if until is None else max(0.0, left(until))) if staff.busy() else []
                    unended -= {done.index for done in ended}
                    if not ended and left(until) <= 0:
                        return end(staff.workers)
                staff.dismiss()


def _stay(main: Main, tasks: Connection, said: Path) -> None:
    """Does one task after the other."""
    apart(said)
    while True:
        try:
            arguments = tasks.recv()
        except EOFError:  # nothing else is asked for
            return
        os.ftruncate(sys.stderr.fileno(), 0)
        _forget_peak()
        status = _status(main, arguments)
        stays = _clear() and status == 0
        sys.stdout.flush()
        sys.stderr.flush()
        tasks.send((status, stays))
        if not stays:
            return


def _status(main: Main, arguments: Sequence[str]) -> int:
    """The exit status that the command would have."""
    try:
        return main(arguments)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except Exception:  # whatever it is, it is this run's end alone, and its stderr tells it
        traceback.print_exc()
        return 1


def _clear() -> bool:
    """Give back what a run has left behind on the device. Whether that went well: an error may come late."""
    gc.collect()
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    except RuntimeError:
        traceback.print_exc()
        return False
    return True


def _forget_peak() -> None:
    """Most memory that this process has had, which a record tells, is from now on that of the next run (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
