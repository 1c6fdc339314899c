"""The runs of a sweep on CPUs, as processes of this machine.

A process that imports torch and timm has used seconds before it begins. So one process imports them, once, and every
run is a fork of it (`multiprocessing`'s fork server, which has no threads and has done nothing else).
CUDA does not outlive a fork: runs on a GPU are `staying.py`'s.

One thread begins the processes and waits for them. `Process.start` also asks every other process how it ended, and the
fork server tells that once: of two threads that ask, one is told and the other makes it exit status 255.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from bench.sweeps.executors import Main, Task, TaskResult, left, may_begin
from bench.sweeps.processes import (
    apart,
    end,
    not_begun,
    of_a_sweep,
    over,
    said_last,
    stopping,
    threads_each,
    undisturbed,
)
from bench.validate import present

IMPORTED = ["bench.boards", "bench.pipeline.inversion", "bench.pipeline.membership", "timm"]
"""What the process to be forked imports; with these, all that every run needs."""


@dataclass(frozen=True)
class Running:
    """A task that has been begun: its process, the file of its stderr, and when."""

    task: Task
    process: BaseProcess
    said: Path
    start: float

    def ended(self) -> TaskResult:
        """How it ended; waits until it has. Its stderr is removed."""
        self.process.join()
        seconds, status = time.monotonic() - self.start, present(self.process.exitcode, "exit status after the join")
        tail = said_last(self.said)
        self.said.unlink(missing_ok=True)
        return TaskResult(self.task.index, status, tail, seconds)


@dataclass(frozen=True)
class Local:
    """Processes side by side, each with a run of its own; the machine's cores are shared out evenly.

    Attributes:
        main: the command.
        jobs: how many at once.
    """

    main: Main
    jobs: int

    def run(self, tasks: Sequence[Task], until: float | None = None) -> Iterator[TaskResult]:
        """As `Executor`; to be used from one thread."""
        waiting, running, ended = list(tasks), dict[int, Running](), list[TaskResult]()
        unended = {task.index for task in tasks}
        threads = threads_each(self.jobs)
        with of_a_sweep(threads), tempfile.TemporaryDirectory(prefix="bench-sweep-") as folder, stopping(running):
            while waiting or running or ended:
                while len(running) < self.jobs and (task := may_begin(waiting, unended, left(until))):
                    waiting.remove(task)
                    try:
                        self._begin(task, Path(folder), running)
                    except (OSError, EOFError) as error:
                        ended.append(not_begun(task, error))
                        unended.discard(task.index)
                yield from ended
                if until is not None and not running and not ended:
                    return  # nothing else fits
                found = over(running, None if until is None else max(0.0, left(until)))
                if not found and left(until) <= 0:
                    return end(running)
                ended = [one.ended() for one in found]
                unended -= {one.task.index for one in found}

    def _begin(self, task: Task, folder: Path, running: dict[int, Running]) -> None:
        """Begin a task, as a process in `running`. Raises OSError or EOFError if the system has no process to give."""
        start, said = time.monotonic(), folder / f"{time.monotonic_ns()}"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        process = context.Process(target=_begun, args=(self.main, [*task.arguments, "--device", "cpu"], said))
        with undisturbed():
            process.start()
            running[process.sentinel] = Running(task, process, said, start)


def _begun(main: Main, arguments: Sequence[str], said: Path) -> None:
    """Runs the command in a session of its own, so that it can be ended with everything it starts."""
    apart(said)
    sys.exit(main(arguments))
