"""Run a function on several devices at once, one process each, with a torch process group if needed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.errors import BenchError, RunFailed
from bench.workers import Worker

GRACE = 5.0
"""Seconds in which further processes may fail after the first: the first failure need not be the cause."""

_reported: Synchronized[int] | None = None
"""In a rank's process: the number of steps that rank 0 has reported."""


@dataclass(frozen=True)
class Rank:
    """One of `count` processes, with its number from 0 on and its device."""

    index: int
    count: int
    device: torch.device

    def advance(self, steps: int) -> None:
        """Report finished steps; only those of rank 0 count."""
        if self.index == 0 and _reported is not None:
            _reported.value += steps


class Ranks(AbstractContextManager["Ranks"]):
    """The devices of one run, with one process each, started at the first call. For one thread."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices, self.count = tuple(devices), len(devices)
        self.workers: list[Worker] = []
        self._steps: Synchronized[int] = multiprocessing.get_context("spawn").Value("q", 0)

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        function: Callable[[Rank, Any], Any],
        given: Sequence[Any],
        advance: Callable[[int], object] = lambda _steps: None,
        grouped: bool = False,
    ) -> list[Any]:
        """Return the results of `function(rank, given[rank.index])` of all processes, which compute in parallel.

        Args:
            function: a module-level function.
            given: one value per rank; tensors on the CPU.
            advance: called with the steps that rank 0 has reported since the last call.
            grouped: the processes are torch's default process group during the call (NCCL, or gloo on CPUs).

        Raises:
            BenchError: a value cannot be sent to another process; or the function raised it.
            RunFailed: a process died, or the function raised another exception. All processes have then ended.
        """
        try:
            calls = [pickle.dumps((function, each)) for each in given]
        except Exception as error:  # pickle raises many types of errors
            why = str(error).splitlines()[0]
            raise BenchError(f"--devices {self.count}: cannot be sent to other processes ({why}); use one") from error
        backend = "nccl" if self.devices[0].type == "cuda" else "gloo"
        threads = torch.get_num_threads() // (self.count if self.devices[0].type == "cpu" else 1)
        self.workers = self.workers or [Worker(_prepare, max(1, threads), self._steps) for _ in self.devices]
        try:
            with tempfile.TemporaryDirectory(prefix="bench-ranks-") as folder:
                meeting = Path(folder) / "meeting" if grouped else None
                self._steps.value = 0
                futures = [
                    worker.submit(_call, call, Rank(index, self.count, device), meeting, backend)
                    for index, (worker, call, device) in enumerate(zip(self.workers, calls, self.devices, strict=True))
                ]
                self._wait(futures, advance)
                return [pickle.loads(each.result()) for each in futures]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all processes, even during a call."""
        for worker in self.workers:
            worker.kill()
        self.workers = []

    def _wait(self, futures: Sequence[Future[bytes]], advance: Callable[[int], object]) -> None:
        """Wait for all calls. Raises the most likely cause of a failure: a death, then a typed error."""
        running, reported = set(futures), 0
        while running:
            ended, running = wait(futures, 0.1, FIRST_EXCEPTION)
            if (now := self._steps.value) > reported:
                advance(now - reported)
                reported = now
            if any(each.exception() for each in ended):
                break
        else:
            return
        wait(futures, GRACE)
        found = {rank: error for rank, each in enumerate(futures) if each.done() and (error := each.exception())}
        order = (BrokenProcessPool, BenchError, RunFailed, Exception)
        rank, error = min(found.items(), key=lambda item: [isinstance(item[1], kind) for kind in order].index(True))
        if isinstance(error, BenchError | RunFailed):
            raise error
        died = isinstance(error, BrokenProcessPool)
        why = self.workers[rank].end_of() if died else f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunFailed(f"rank {rank} of {self.count}, on {self.devices[rank]}, was lost: {why}")


def _prepare(threads: int, steps: Synchronized[int]) -> None:
    global _reported
    _reported = steps
    torch.set_num_threads(threads)
    # Sums of private gradients stay on this machine: gloo connects through the loopback interface only
    for _, name in socket.if_nameindex():
        if name.startswith("lo"):
            os.environ["GLOO_SOCKET_IFNAME"] = name


def _call(call: bytes, rank: Rank, meeting: Path | None, backend: str) -> bytes:
    """Run a call that was pickled here: tensors would otherwise use shared memory, which containers have little of."""
    function, given = pickle.loads(call)
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    if meeting is not None:
        dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank.index, world_size=rank.count)
    try:
        return pickle.dumps(function(rank, given))
    finally:
        if meeting is not None:
            with suppress(RuntimeError):  # a peer has already ended
                dist.destroy_process_group()
