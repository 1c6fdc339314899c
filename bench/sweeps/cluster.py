"""The runs of a sweep as tasks of a Ray cluster."""

from __future__ import annotations

import contextlib
import io
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BenchError, RunFailed
from bench.sweeps.executors import TAIL, Main, Task, TaskResult, environment, left, may_begin

EXACT = 1e-9
"""What rounding may take off a quotient of what is asked for."""
BEAT = 5.0
"""Seconds after which it is asked whether the head is still there."""


@dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster, whose workers see the same directories. A task whose worker dies is begun again.

    Attributes:
        address: of a running cluster; "auto" finds it; "" starts one on this machine.
        cpus, gpus: what a task asks for; with more than one GPU, teachers and DP-SGD are trained over all of them.
        retries: how often a task is begun again after its worker has died.
        jobs: how many at once on a cluster of one's own; 0 = as the cores allow.
        main: the command.
    """

    main: Main
    address: str = ""
    cpus: float = 1
    gpus: float = 0
    retries: int = 3
    jobs: int = 0

    def run(self, tasks: Sequence[Task], until: float | None = None) -> Iterator[TaskResult]:
        """As `Executor`.

        Without an end all tasks are handed over at once, as they may. With one, no more than have a place on the
        cluster with nobody else on it: a task that waited there for a place could get it when nothing is left of the
        time.

        Raises:
            BenchError: no ray, or no cluster at `address`.
            RunFailed: the cluster's head is lost. What has ended is kept, and the same sweep goes on where it was.
        """
        ray = _ray()
        begun = not ray.is_initialized()
        if begun:
            self._connect(ray)
        threads = max(1, int(self.cpus))
        devices = _devices(self.gpus)
        remote = ray.remote(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            max_retries=self.retries,
            max_calls=1,
            runtime_env={"env_vars": environment(threads)},
        )(_on_worker)
        here = Path.cwd()
        waiting, where, unended = list(tasks), dict[Any, Task](), {task.index for task in tasks}
        head, lost = ray.get_runtime_context().gcs_address, False
        try:
            while waiting or where:
                while self._has_place(ray, len(where), until) and (task := may_begin(waiting, unended, left(until))):
                    waiting.remove(task)
                    where[remote.remote(self.main, task, here, devices, threads)] = task
                if not where:
                    return
                ended, _ = ray.wait(list(where), num_returns=1, timeout=max(0.0, min(BEAT, left(until))))
                for reference in ended:
                    task = where.pop(reference)
                    unended.discard(task.index)
                    yield self._result(ray, reference, task)
                if not ended and left(until) <= 0:
                    return
                if lost := not ended and not _answers(head):
                    raise RunFailed(
                        f"the head of the Ray cluster at {head} is lost; what has ended is kept: start it again, and "
                        "run the same command to go on"
                    )
        finally:
            for reference in () if lost else where:
                ray.cancel(reference, force=True)
            if begun and not lost:
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

    def _has_place(self, ray: Any, running: int, until: float | None) -> bool:
        """Whether one task more can begin at once; not asked where there is no end, or where nothing runs yet: a node
        that has a place may still be on its way."""
        if until is None or not running:
            return True
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return running < sum(places(asked, node) for node in nodes)

    @staticmethod
    def _result(ray: Any, reference: Any, task: Task) -> TaskResult:
        """A task's end, or that its worker died as often as it was begun."""
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            line = str(error).strip().splitlines()[0]
            return TaskResult(task.index, 1, f"the Ray worker was lost: {line}", 0.0)


def places(asked: Mapping[str, float], node: Mapping[str, float]) -> float:
    """How many tasks a node of a cluster takes at once, of what each asks for and what the node has.

    >>> places({"CPU": 2, "GPU": 0.5}, {"CPU": 16, "GPU": 2}), places({"CPU": 1, "GPU": 1}, {"CPU": 16})
    (4, 0)
    """
    return min((_fit(node.get(name, 0), each, name == "GPU") for name, each in asked.items() if each), default=math.inf)


def _fit(has: float, each: float, of_one: bool) -> int:
    """How often `each` fits into what there is; a share `of_one` GPU is of one, and does not span two."""
    if of_one and each < 1:
        return int(has) * math.floor(1 / each + EXACT)
    return math.floor(has / each + EXACT)


def _answers(head: str) -> bool:
    """Whether someone listens there. Asked since Ray ends the whole process, without a word of ours, a minute later."""
    host, _, port = head.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=BEAT):
            return True
    except OSError:
        return False


def _devices(gpus: float) -> tuple[str, ...]:
    """The options by which a run uses what its task has asked for: a share of a GPU is a GPU to it."""
    if gpus <= 1:
        return ("--device", "cuda" if gpus > 0 else "cpu")
    return ("--device", "cuda", "--devices", str(int(gpus)))


def _on_worker(main: Main, task: Task, folder: Path, devices: tuple[str, ...], threads: int) -> TaskResult:
    """Runs the command inside of a worker of its own, in the directory the sweep was started in; ends with the worker.

    No process is started from here: forking a worker, with the threads Ray has in it, may hang.
    """
    import torch

    torch.set_num_threads(threads)
    os.chdir(folder)
    start, said = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            status = main([*task.arguments, *devices])
        except Exception as error:  # whatever it is, it is this cell's end alone, and its reason goes into the summary
            status = 1
            said.write(f"{type(error).__name__}: {error}")
    return TaskResult(task.index, status, said.getvalue()[-TAIL:], time.monotonic() - start)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise BenchError("--executor ray needs ray: pip install 'dp-distill-bench[ray]'") from None
    return ray
