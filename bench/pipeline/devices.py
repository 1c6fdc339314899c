"""The devices that a user names: whether they are there."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from bench.errors import BadOption


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pick_device(name: str) -> torch.device:
    """The torch device called `name`: auto, cpu, cuda or cuda:N. Raises BenchError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise BadOption(f"--device {name}: expected auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise BadOption(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu or auto"
        )
    return torch.device(name)


def pick_devices(name: str, count: int) -> tuple[torch.device, ...]:
    """So many devices, the one called `name` the first: CUDA devices from 0 on, or a process a core on a CPU.

    Raises:
        BenchError: they are not there, or this torch cannot make them work together.
    """
    if count < 1:
        raise BadOption(f"--devices {count}: expected a number of at least 1")
    first = pick_device(name)
    if count == 1:
        return (first,)
    if first.index is not None:
        raise BadOption(f"--device {name} --devices {count}: one device is named; use --device cuda, or --devices 1")
    there, what = (cores(), "CPU cores") if first.type == "cpu" else (torch.cuda.device_count(), "CUDA devices")
    if count > there:
        raise BadOption(f"--devices {count}: there are {there} {what} here; use --devices {there}, or fewer")
    if not dist.is_available() or not (dist.is_gloo_available() if first.type == "cpu" else dist.is_nccl_available()):
        library = "gloo" if first.type == "cpu" else "NCCL"
        raise BadOption(f"--devices {count}: this build of torch has no torch.distributed with {library}; use one")
    if first.type == "cpu":
        return (first,) * count
    return tuple(torch.device("cuda", index) for index in range(count))
