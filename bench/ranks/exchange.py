"""What is handed between ranks: whose share is what, and tensors through torch.distributed. Rank 0 leads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

LEADER = 0
PATIENCE = timedelta(minutes=10)
"""For a rank that is alive and does not answer, once in a step; one that has died is noticed at once."""
Header = list[tuple[tuple[int, ...], torch.dtype]]
"""The shape and type of every tensor that is handed over."""


def owned(records: Tensor, rank: int, count: int) -> Tensor:
    """Of some records' numbers, (m,) int64, those that one of `count` ranks processes.

    A record belongs to the same rank whoever else is in the batch, so that a record that leaves moves no other one to
    another device, whose kernels may round otherwise.

    >>> [owned(torch.tensor([2, 3, 5, 8]), rank, 2).tolist() for rank in range(2)]
    [[2, 8], [3, 5]]
    """
    return records[records % count == rank]


def shares(images: int, count: int) -> list[int]:
    """How many images of a batch each of `count` ranks takes; a batch with fewer images than ranks is the leader's.

    >>> shares(7, 3), shares(2, 3)
    ([3, 2, 2], [2, 0, 0])
    """
    if images < count:
        return [images] + [0] * (count - 1)
    return [images // count + (rank < images % count) for rank in range(count)]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of some tensors of one dtype and device, one after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflat(numbers: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """What `flat` was made of, in the shapes of `like`."""
    parts = numbers.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def join(device: torch.device, rank: int, count: int, meeting: Path) -> None:
    """Enter the process group of a training; returns when this rank has met all others.

    It is torch's default group, which other code of this process (torchmetrics) would take for its own and wait in: so
    there is one only while helpers serve.

    Args:
        meeting: a file that does not exist yet, in a directory that all ranks see.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=PATIENCE,
        device_id=device if backend == "nccl" else None,
    )  # fmt: skip


def leave() -> None:
    """Leave the process group, if this process is in one."""
    if dist.is_initialized():
        with suppress(RuntimeError):  # of a group in which a peer is gone already
            dist.destroy_process_group()


def send(pipe: Connection, tensors: Sequence[Tensor], rank: int) -> None:
    """Hand tensors to another rank: their shapes through the pipe, their numbers through the process group."""
    pipe.send([(tuple(tensor.shape), tensor.dtype) for tensor in tensors])
    for tensor in tensors:
        if tensor.numel():
            dist.send(tensor.contiguous(), rank)


def receive(header: Header, device: torch.device, rank: int) -> list[Tensor]:
    """What another rank hands over, of which the pipe has told the header."""
    found = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in header]
    for tensor in found:
        if tensor.numel():
            dist.recv(tensor, rank)
    return found
