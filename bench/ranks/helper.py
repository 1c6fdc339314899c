"""A helper: a process that serves one training after the other, for as long as its leader lives."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.ranks import exchange

READY, FAILED = "ready", "failed"
"""What a helper says of itself."""


class Link:
    """A helper's side: what its leader orders, and tensors to and from it.

    Attributes:
        rank: 1 and up; the leader's is 0.
        count: ranks in all.
        device: where it computes.
    """

    def __init__(self, pipe: Connection, rank: int, count: int, device: torch.device) -> None:
        self._pipe, self.rank, self.count, self.device = pipe, rank, count, device

    def orders(self) -> Iterator[str]:
        """The leader's orders, until there are no more of this service."""
        while (order := self._pipe.recv()) is not None:
            yield order

    def take(self) -> list[Tensor]:
        """Tensors that the leader hands over, on this helper's device."""
        return exchange.receive(self._pipe.recv(), self.device, exchange.LEADER)

    def give(self, tensors: Sequence[Tensor]) -> None:
        """Hand tensors to the leader."""
        exchange.send(self._pipe, tensors, exchange.LEADER)

    def copy(self, numbers: Tensor) -> None:
        """Overwrite `numbers` with the leader's, which it gives to all."""
        dist.broadcast(numbers, exchange.LEADER)

    def add(self, numbers: Tensor) -> None:
        """Have `numbers` added to the leader's; what is left in them has no meaning."""
        dist.reduce(numbers, exchange.LEADER)


Service = Callable[..., None]
"""A module's function (link, *what the leader gave): carries out orders until there are no more."""


def help_out(pipe: Connection, rank: int, count: int, device: str, threads: int) -> None:
    """The process of a helper: serves one training after the other until the leader has nothing more or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the leader decides
    threading.Thread(target=_end_with_leader, daemon=True).start()
    torch.set_num_threads(threads)
    place = torch.device(device)
    try:
        if place.type == "cuda":
            torch.cuda.set_device(place)
        torch.zeros(1, device=place)  # a device that is of no use says so now, not while others wait for this rank
        pipe.send((READY, ""))
        link = Link(pipe, rank, count, place)
        while (given := pipe.recv()) is not None:
            service, arguments, meeting = pickle.loads(given)
            exchange.join(place, rank, count, meeting)
            pipe.send((READY, ""))
            service(link, *arguments)
            exchange.leave()
    except EOFError:
        os._exit(1)
    except Exception as error:  # whatever it is, the leader is to say it, and this process has nothing left to do
        said = str(error).strip().splitlines()
        pipe.send((FAILED, f"{type(error).__name__}: {said[0] if said else ''}"))
        os._exit(1)
    os._exit(0)  # not by way of the process group's own end, which waits for others


def _end_with_leader() -> None:
    """In a collective nothing else would tell that the leader is gone, however it ended."""
    leader = multiprocessing.parent_process()
    if leader is not None:  # None only in a process that multiprocessing has not started
        leader.join()
    os._exit(1)


def packed(service: Service, given: Sequence[Any], meeting: Path) -> bytes:
    """A service with what it is given, for the pipe. Raises what pickle raises for what has no name in a module."""
    return pickle.dumps((service, tuple(given), meeting))
