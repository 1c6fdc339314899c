"""The leader's side: helpers begun when they are first needed, orders to them, and what happens when one is lost."""

from __future__ import annotations

import copy
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.errors import BenchError, RunFailed
from bench.ranks import exchange
from bench.ranks.helper import FAILED, Service, help_out, packed

BEGINNING = 300.0
"""Seconds within which a helper must have imported torch."""
GRACE = 5.0
"""Seconds within which a lost helper is told by itself: by its pipe, its exit status, or the call that waits for it."""


@dataclass(frozen=True)
class _Helper:
    """A helper's process, and the pipe to it."""

    rank: int
    device: torch.device
    process: BaseProcess
    pipe: Connection

    def heard(self) -> Any:
        """What it says next. Raises _Failed if that is why it has failed, EOFError if it has gone without a word."""
        found = self.pipe.recv()
        if isinstance(found, tuple) and found[0] == FAILED:
            raise _Failed(found[1])
        return found

    def said(self) -> str | None:
        """Why it has failed, where it could say so; else how it ended; None of one that runs."""
        try:
            while self.pipe.poll():
                self.heard()
        except _Failed as why:
            return str(why)
        except (EOFError, OSError):
            pass  # how it ended is told by its process
        status = self.process.exitcode
        if status is None:
            return None
        return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


class _Failed(RuntimeError):
    """A helper has said that it failed."""


class Ranks:
    """The devices of one run. Helpers are begun by the first `serve`, and end with `close`, or with this process.

    Not for several threads. torch has one process group, which is there while helpers serve; the helpers of other
    `Ranks` of this process end.

    Args:
        devices: a rank's each, the leader's first; one device needs no helper.
    """

    _begun: ClassVar[Ranks | None] = None

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = tuple(devices)
        self._helpers: list[_Helper] = []
        self._serving = False
        self._threads: int | None = None
        """Of the leader while nothing is shared out; None while that is so."""
        self._meetings: tempfile.TemporaryDirectory[str] | None = None
        """Where the files of the process groups are, as long as the helpers: one that leaves still touches its file."""
        self._served = 0

    @property
    def count(self) -> int:
        """Ranks in all."""
        return len(self.devices)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, service: Service, *given: Any) -> None:
        """Have every helper begin `service(link, *given)`; what a training that failed left of one is ended first.

        Raises:
            BenchError: what is given cannot be sent to another process.
            RunFailed: a helper is lost.
        """
        if self._serving:
            self.close()
        if self._meetings is None:
            self._meetings = tempfile.TemporaryDirectory(prefix="bench-ranks-")
        self._served += 1
        place = Path(self._meetings.name) / f"meeting-{self._served}"
        try:
            order = packed(service, [_sendable(each) for each in given], place)
        except Exception as error:  # pickle has no error of its own for what it cannot do
            line = str(error).splitlines()[0]
            raise BenchError(
                f"--devices {self.count}: it cannot be sent to other processes ({line}); use one"
            ) from error
        if not self._helpers:
            self._begin()
        self._serving, self._threads = True, torch.get_num_threads()
        torch.set_num_threads(self._share(self._threads))
        with self.watched():
            for helper in self._helpers:
                helper.pipe.send(order)
            exchange.join(self.devices[0], exchange.LEADER, self.count, place)
            for helper in self._helpers:  # a rank that left now would break off another's joining
                self._heard(helper)

    def dismiss(self) -> None:
        """The service is over."""
        self.order(None)
        self._rest()

    def order(self, order: str | None, to: Sequence[int] | None = None) -> None:
        """Tell the helpers of these ranks, or all, what comes next. Raises RunFailed if one is lost."""
        with self.watched():
            for helper in self._chosen(to):
                helper.pipe.send(order)

    def give(self, rank: int, tensors: Sequence[Tensor]) -> None:
        """Hand tensors on the leader's device to a helper, which takes them. Raises RunFailed."""
        with self.watched():
            exchange.send(self._helpers[rank - 1].pipe, tensors, rank)

    def take(self, rank: int) -> list[Tensor]:
        """What a helper gives, on the leader's device. Raises RunFailed."""
        with self.watched():
            return exchange.receive(self._heard(self._helpers[rank - 1]), self.devices[0], rank)

    def broadcast(self, numbers: Tensor) -> None:
        """Give `numbers` to every helper, each of which copies them. Raises RunFailed."""
        with self.watched():
            dist.broadcast(numbers, exchange.LEADER)

    def gather_sum(self, numbers: Tensor) -> None:
        """Add what every helper adds to `numbers`, in place. Raises RunFailed."""
        with self.watched():
            dist.reduce(numbers, exchange.LEADER)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For what waits for others: the loss of one is told as a RunFailed of one line, and the others are ended."""
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:
            why = str(error) if isinstance(error, _Failed) else self._loss()
            if why is None:
                raise
            self.close()
            raise RunFailed(why) from error

    def close(self) -> None:
        """End the helpers, in whatever they are."""
        for helper in self._helpers:
            helper.process.kill()
        for helper in self._helpers:
            helper.process.join()
            helper.pipe.close()
        self._helpers = []
        self._rest()
        if self._meetings is not None:
            self._meetings.cleanup()
            self._meetings = None
        if Ranks._begun is self:
            Ranks._begun = None

    def _share(self, threads: int) -> int:
        """A rank's threads: on a CPU all ranks have as many as the leader has alone."""
        return max(1, threads // self.count) if self.devices[0].type == "cpu" else threads

    def _rest(self) -> None:
        if self._serving:
            exchange.leave()
        self._serving = False
        if self._threads is not None:
            torch.set_num_threads(self._threads)
            self._threads = None

    def _chosen(self, ranks: Sequence[int] | None) -> list[_Helper]:
        return self._helpers if ranks is None else [self._helpers[rank - 1] for rank in ranks]

    def _begin(self) -> None:
        """Begin all helpers. Raises RunFailed if one does not come."""
        if Ranks._begun is not None:
            Ranks._begun.close()
        Ranks._begun = self
        _stay_on_this_machine()
        threads = self._share(torch.get_num_threads())
        context = multiprocessing.get_context("spawn")
        for rank, device in enumerate(self.devices[1:], 1):
            ours, theirs = context.Pipe()
            given = (theirs, rank, self.count, str(device), threads)
            process = context.Process(target=help_out, args=given, name=f"bench-rank-{rank}", daemon=True)
            process.start()
            theirs.close()
            self._helpers.append(_Helper(rank, device, process, ours))
        with self.watched():
            for helper in self._helpers:
                if not helper.pipe.poll(BEGINNING):
                    raise RuntimeError(f"rank {helper.rank} did not begin within {BEGINNING:.0f} s")
                self._heard(helper)
            if self.devices[0].type == "cuda":
                torch.cuda.set_device(self.devices[0])
        if self.devices[0].type == "cuda":
            threading.Thread(target=_abort_when_lost, args=(list(self._helpers),), daemon=True).start()

    def _heard(self, helper: _Helper) -> Any:
        try:
            return helper.heard()
        except _Failed as why:
            raise _Failed(self._lost(helper, str(why))) from None

    def _lost(self, helper: _Helper, why: str) -> str:
        return f"rank {helper.rank} of {self.count}, on {helper.device}, was lost: {why}"

    def _loss(self) -> str | None:
        """Which helper is lost and why; waits a little, as a broken connection is seen before the end of a process."""
        until = time.monotonic() + GRACE
        while True:
            for helper in self._helpers:
                if (said := helper.said()) is not None:
                    return self._lost(helper, said)
            left = until - time.monotonic()
            if left <= 0:
                return None
            wait([helper.process.sentinel for helper in self._helpers], min(left, 0.1))


def _sendable(given: Any) -> Any:
    """A copy of a network on the CPU, since a helper puts it on a device of its own; anything else as it is."""
    return copy.deepcopy(given).cpu() if isinstance(given, nn.Module) else given


def _stay_on_this_machine() -> None:
    """Sums of private records' gradients are no one else's: gloo connects through the loopback interface alone."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]  # whatever it was: no other machine takes part


def _abort_when_lost(helpers: Sequence[_Helper]) -> None:
    """NCCL does not tell the leader that a peer has died: it waits. So its calls are broken off from here."""
    wait([helper.process.sentinel for helper in helpers])
    time.sleep(GRACE)
    if dist.is_initialized():
        dist.distributed_c10d._abort_process_group()
