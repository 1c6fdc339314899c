"""Who does the runs of a sweep: processes on this machine, or tasks of a Ray cluster.

Either way a run is `bench run ...` in a process of its own, so that one that crashes takes no other with it. All write
into one directory, where every step is made once (`bench.store`). What several runs share, teacher and evaluator, is
made before them by `bench prepare ...`, so that nobody waits for a lock.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.errors import BenchError

Main = Callable[[Sequence[str]], int]

TAIL = 4000
GRACE = 10.0
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Task:
    """A command of `bench` to be run; `index` is the caller's."""

    index: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """What came of a task: the exit status, the end of its stderr, seconds."""

    index: int
    status: int
    tail: str
    seconds: float


class Executor(Protocol):
    """Runs tasks, and yields each as it ends, in any order."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Done]:
        """Raises KeyboardInterrupt after having stopped whatever was running."""
        ...


@dataclass(frozen=True)
class Local:
    """Processes side by side; devices are given out in turn, and the machine's cores shared out evenly.

    Attributes:
        jobs: how many at once.
        devices: names for --device; a process has one to itself as long as there are as many as jobs.
    """

    jobs: int
    devices: tuple[str, ...]

    def run(self, tasks: Sequence[Task]) -> Iterator[Done]:
        """As `Executor`."""
        free = [self.devices[i % len(self.devices)] for i in range(self.jobs)]
        lock, stopped, running = threading.Lock(), threading.Event(), dict[int, subprocess.Popen[str]]()
        threads = max(1, cores() // self.jobs)

        def work(task: Task) -> Done:
            with lock:
                device = free.pop()
            try:
                return _process(task, device, threads, running, stopped)
            finally:
                with lock:
                    free.append(device)

        with ThreadPoolExecutor(self.jobs) as pool, _stopping(running, stopped):
            waiting: set[Future[Done]] = {pool.submit(work, task) for task in tasks}
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ended)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def command(arguments: Sequence[str]) -> list[str]:
    """The command line of `bench` with the running Python."""
    return [sys.executable, "-m", "bench", *arguments]


def environment(threads: int) -> dict[str, str]:
    """This process's environment with the number of threads set, and this very `bench` to be found."""
    return os.environ | dict.fromkeys(THREADS, str(threads)) | {"PYTHONPATH": python_path()}


def python_path() -> str:
    """PYTHONPATH with the directory of this very `bench` before all others."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    return os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)


def _process(
    task: Task, device: str, threads: int, running: dict[int, subprocess.Popen[str]], stopped: threading.Event
) -> Done:
    if stopped.is_set():
        return Done(task.index, 130, "not begun", 0.0)
    start = time.monotonic()
    given = [*command(task.arguments), "--device", device]
    process = subprocess.Popen(
        given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment(threads),
        start_new_session=True,
    )
    running[task.index] = process
    _, said = process.communicate()
    del running[task.index]
    return Done(task.index, process.returncode, said[-TAIL:], time.monotonic() - start)


@contextmanager
def _stopping(running: dict[int, subprocess.Popen[str]], stopped: threading.Event) -> Iterator[None]:
    """On any way out but the ordinary one: begin nothing more, and end what is running, with everything it started."""
    try:
        yield
    except BaseException:
        stopped.set()
        for kind, patience in ((signal.SIGINT, GRACE), (signal.SIGKILL, 0.0)):
            for process in list(running.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, kind)
            until = time.monotonic() + patience
            while running and time.monotonic() < until:
                time.sleep(0.1)
        raise


@dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster, whose workers see the same directories. A task whose worker dies is begun again.

    Attributes:
        address: of a running cluster; "auto" finds it; "" starts one on this machine.
        cpus, gpus: what a task asks for.
        retries: how often a task is begun again after its worker has died.
        jobs: how many at once on a cluster of one's own; 0 = as the cores allow.
        main: the command `bench`, given its arguments; a module's function, which workers import.
    """

    main: Main
    address: str = ""
    cpus: float = 1
    gpus: float = 0
    retries: int = 3
    jobs: int = 0

    def run(self, tasks: Sequence[Task]) -> Iterator[Done]:
        """As `Executor`. Raises BenchError without ray, or without a cluster at `address`."""
        ray = _ray()
        begun = not ray.is_initialized()
        if begun:
            self._connect(ray)
        threads = max(1, int(self.cpus))
        remote = ray.remote(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            max_retries=self.retries,
            max_calls=1,
            runtime_env={"env_vars": dict.fromkeys(THREADS, str(threads)) | {"PYTHONPATH": python_path()}},
        )(_on_worker)
        here, gpu = Path.cwd(), self.gpus > 0
        where = {remote.remote(self.main, task, here, gpu, threads): task for task in tasks}
        try:
            while where:
                ended, _ = ray.wait(list(where), num_returns=1)
                for reference in ended:
                    task = where.pop(reference)
                    yield self._result(ray, reference, task)
        finally:
            for reference in where:
                ray.cancel(reference, force=True)
            if begun:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        os.environ.setdefault("RAY_worker_niceness", "0")  # else 15: on a busy machine its runs would stand still
        own: dict[str, Any] = {"num_cpus": self.jobs * self.cpus} if self.jobs else {}
        given: dict[str, Any] = {"address": self.address} if self.address else own
        try:
            ray.init(**given, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            line = str(error).splitlines()[0]
            raise BenchError(
                f"--address {self.address}: no Ray cluster there ({line}); start one or leave it"
            ) from None

    @staticmethod
    def _result(ray: Any, reference: Any, task: Task) -> Done:
        """A task's end, or that its worker died as often as it was begun."""
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            line = str(error).strip().splitlines()[0]
            return Done(task.index, 1, f"the Ray worker was lost: {line}", 0.0)


def _on_worker(main: Main, task: Task, folder: Path, gpu: bool, threads: int) -> Done:
    """Runs the command inside of a worker of its own, in the directory the sweep was started in; ends with the worker.

    No process is started from here: forking a worker, with the threads Ray has in it, may hang.
    """
    import torch

    torch.set_num_threads(threads)
    os.chdir(folder)
    start, said = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            status = main([*task.arguments, "--device", "cuda" if gpu else "cpu"])
        except Exception as error:  # whatever it is, it is this cell's end alone, and its reason goes into the summary
            status = 1
            said.write(f"{type(error).__name__}: {error}")
    return Done(task.index, status, said.getvalue()[-TAIL:], time.monotonic() - start)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise BenchError("--executor ray needs ray: pip install 'dp-distill-bench[ray]'") from None
    return ray
