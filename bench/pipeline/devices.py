"""The devices that a user names, and the precision in which networks are trained on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from bench import nets
from bench.errors import BadOption
from bench.workers import cores

Precision = Literal["fp32", "bf16"]
LARGEST_RATIO = 0.8
"""Largest ratio of bfloat16 time to float32 time at which bfloat16 is used: it must save at least a fifth."""
EMULATED = 2.0
"""Ratio for a small convolution above which bfloat16 counts as emulated; the slow test of a network is then skipped."""
SECONDS = 1.0


def pick_device(name: str) -> torch.device:
    """Return the torch device called `name`: auto, cpu, cuda or cuda:N. Raises BadOption if it does not exist."""
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
    """Return `count` devices, beginning with `name`: CUDA devices from 0 on, or one process per core on a CPU.

    Raises:
        BadOption: they do not exist, or this build of torch cannot train on several of them.
    """
    if count < 1:
        raise BadOption(f"--devices {count}: expected a number of at least 1")
    first = pick_device(name)
    if count == 1:
        return (first,)
    if first.index is not None:
        raise BadOption(f"--device {name} --devices {count}: one device is named; use --device cuda, or --devices 1")
    is_cpu = first.type == "cpu"
    available, unit = (cores(), "CPU cores") if is_cpu else (torch.cuda.device_count(), "CUDA devices")
    if count > available:
        raise BadOption(f"--devices {count}: this machine has {available} {unit}; use --devices {available}, or fewer")
    if not dist.is_available() or not (dist.is_gloo_available() if is_cpu else dist.is_nccl_available()):
        library = "gloo" if is_cpu else "NCCL"
        raise BadOption(
            f"--devices {count}: this build of torch has no torch.distributed with {library}; use --devices 1"
        )
    if is_cpu:
        return (first,) * count
    return tuple(torch.device("cuda", index) for index in range(count))


@dataclass(frozen=True)
class Training:
    """A training: the name of the network, and `batch` images of `shape` (c, h, w) per step."""

    arch: str
    shape: tuple[int, int, int]
    classes: int
    batch: int


def choose_precision(precision: Literal["fp32", "bf16", "auto"], device: torch.device, training: Training) -> Precision:
    """Return the precision; "auto" times one training step in both, once per process.

    The faster one depends on the network and the images: on one CPU with AMX, bfloat16 takes half of float32's time for
    `face-net` on 64 pixels, but more than float32's time for `resnet18` on 28.
    """
    return faster_precision(device, training) if precision == "auto" else precision


@cache
def faster_precision(device: torch.device, training: Training) -> Precision:
    """Return the faster precision of one training step on the device."""
    if ratio(partial(convolve, device), SECONDS / 10) >= EMULATED:
        return "fp32"
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        network = nets.build(training.arch, training.shape, training.classes).to(device).train()
        images = torch.rand(training.batch, *training.shape).to(device)
        return "bf16" if ratio(partial(training_step, network, images)) <= LARGEST_RATIO else "fp32"


def ratio(
    step: Callable[[bool], None], seconds: float = SECONDS, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the median time of `step(True)` over that of `step(False)`, alternating for `seconds` after one warm-up
    each."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for autocast in times:
        step(autocast)
    end = clock() + seconds
    while not times[False] or clock() < end:
        for autocast, found in times.items():
            start = clock()
            step(autocast)
            found.append(clock() - start)
    return median(times[True]) / median(times[False])


def convolve(device: torch.device, autocast: bool) -> None:
    """Run a small convolution forward and backward, and wait for the device."""
    images, kernels = torch.ones(16, 16, 28, 28, device=device), torch.ones(16, 16, 3, 3, device=device)
    kernels.requires_grad_()
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        cost = F.relu(F.conv2d(images, kernels, padding=1)).float().mean()
    (gradient,) = torch.autograd.grad(cost, kernels)
    gradient.sum().item()


def training_step(network: nn.Module, images: torch.Tensor, autocast: bool) -> None:
    """Compute gradients of a network's weights and wait for them; the optimiser costs the same in either precision."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=autocast):
        cost = network(images).float().square().mean()
    gradients = torch.autograd.grad(cost, [weight for weight in network.parameters() if weight.requires_grad])
    gradients[0].sum().item()
