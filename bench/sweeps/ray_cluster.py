"""Run a sweep as tasks of a Ray cluster."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.errors import BenchError, RunFailed
from bench.sweeps.executors import POLL_SECONDS, Executor, Main, Task, TaskResult, environment, run_on_cluster

EXACT = 1e-9
"""Tolerance for rounding when dividing resources."""


class Ray(Executor[Any]):
    """Tasks of a Ray cluster whose workers share the directories. A task whose worker dies is restarted.

    Args:
        main: the command.
        address: address of a running cluster; "auto" finds it; "" starts one on this machine.
        cpus, gpus: requested for each task; with more than one GPU, teachers and DP-SGD are trained on all of them.
        retries: number of restarts after a worker has died.
        jobs: number of parallel tasks on a cluster that is started here; 0 = limited by the cores.
    """

    def __init__(
        self, main: Main, address: str = "", cpus: float = 1, gpus: float = 0, retries: int = 3, jobs: int = 0
    ) -> None:
        self.main, self.address, self.cpus, self.gpus = main, address, cpus, gpus
        self.retries, self.jobs = retries, jobs
        self._lost, self._head = False, ""
        self._ray: Any = None
        self._task: Any = None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Connect to a cluster. Raises BenchError without ray, or without a cluster at the address."""
        self._ray = ray = _ray()
        starts = not ray.is_initialized()
        if starts:
            os.environ.setdefault("RAY_worker_niceness", "0")  # the default of 15 stalls runs on a busy machine
            address = self.address or None
            cpus = self.jobs * self.cpus if self.jobs and address is None else None
            try:
                ray.init(address=address, num_cpus=cpus, logging_level="ERROR", log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                line = str(error).splitlines()[0]
                raise BenchError(
                    f"--address {self.address}: no Ray cluster there ({line}); start one or leave --address out"
                ) from None
        self._task = ray.remote(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            max_retries=self.retries,
            max_calls=1,
            runtime_env={"env_vars": environment(self._threads)},
        )(run_on_cluster)
        self._head = ray.get_runtime_context().gcs_address
        try:
            yield
        finally:
            if starts and not self._lost:
                ray.shutdown()

    @property
    def _threads(self) -> int:
        return max(1, int(self.cpus))

    def has_room(self, running: int, until: float | None) -> bool:
        """Whether one more task may be submitted, as `Executor`. Without a time limit all tasks are submitted at once.

        With a limit, tasks are submitted only if the cluster has room: a waiting task could otherwise start when no
        time is left. The first task is always submitted: a node with room may still be starting.
        """
        if until is None or not running:
            return True
        requested = {"CPU": self.cpus, "GPU": self.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return running < sum(tasks_per_node(requested, node) for node in nodes)

    def start(self, task: Task) -> Any:
        """Start a task, as `Executor`."""
        return self._task.remote(self.main, task, Path.cwd(), self.gpus, self._threads)

    def wait(self, running: dict[Any, Task], seconds: float) -> dict[Any, TaskResult]:
        """Wait for results, as `Executor`. Raises RunFailed if the cluster's head is lost."""
        ended, _ = self._ray.wait(list(running), num_returns=1, timeout=min(POLL_SECONDS, seconds))
        if not ended and not is_listening(self._head):
            self._lost = True
            raise RunFailed(
                f"the head of the Ray cluster at {self._head} is lost; ended cells are kept: start it again, and "
                "run the same command to go on"
            )
        results: dict[Any, TaskResult] = {}
        for reference in ended:
            try:
                results[reference] = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:  # the worker died in every attempt
                line = str(error).strip().splitlines()[0]
                failed = TaskResult(running[reference].index, 1, f"the Ray worker was lost: {line}", 0.0)
                results[reference] = failed
        return results

    def stop(self, running: dict[Any, Task]) -> None:
        """Stop all tasks, as `Executor`."""
        for reference in () if self._lost else running:
            self._ray.cancel(reference, force=True)


def tasks_per_node(requested: Mapping[str, float], node: Mapping[str, float]) -> float:
    """Return how many tasks fit on a cluster's node at once, from the request of each and the node's resources.

    >>> tasks_per_node({"CPU": 2, "GPU": 0.5}, {"CPU": 16, "GPU": 2}), tasks_per_node({"CPU": 1, "GPU": 1}, {"CPU": 16})
    (4, 0)
    """
    return min(
        (_fit(node.get(name, 0), each, name == "GPU") for name, each in requested.items() if each), default=math.inf
    )


def _fit(available: float, each: float, of_one: bool) -> int:
    """Return how often `each` fits into what is available; a share `of_one` GPU must come from a single GPU."""
    if of_one and each < 1:
        return int(available) * math.floor(1 / each + EXACT)
    return math.floor(available / each + EXACT)


def is_listening(head: str) -> bool:
    """Whether a server listens at an address: Ray itself would end the process a minute later without a message."""
    host, _, port = head.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=POLL_SECONDS):
            return True
    except OSError:
        return False


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise BenchError("--backend ray needs ray: pip install 'dp-distill-bench[ray]'") from None
    return ray
