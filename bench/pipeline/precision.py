"""The precision that networks train in: what the user asked for, or what a probe of a second finds faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from bench import nets

Precision = Literal["fp32", "bf16"]
WORTH = 0.8
"""Largest ratio of the times at which bfloat16 is taken: rounding has to buy a fifth of the time at least."""
EMULATED = 2.0
"""Ratio of a small convolution's times from which bfloat16 is emulated: no network is then tried, which takes long."""
SECONDS = 1.0


@dataclass(frozen=True)
class Training:
    """What is trained: a network of this name, on `batch` images of `shape` (c, h, w) at once."""

    arch: str
    shape: tuple[int, int, int]
    classes: int
    batch: int


def settled(asked: Literal["fp32", "bf16", "auto"], device: torch.device, training: Training) -> Precision:
    """The precision that was asked for; "auto" is answered by a probe of what is trained, made once a process.

    Which is faster depends on the network and the images: on one CPU with AMX bfloat16 takes half of float32's time for
    `face-net` on 64 pixels, and more than its time for `resnet18` on 28.
    """
    return _faster(device, training) if asked == "auto" else asked


@cache
def _faster(device: torch.device, training: Training) -> Precision:
    if ratio(partial(_convolve, device), SECONDS / 10) >= EMULATED:
        return "fp32"
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        network = nets.build(training.arch, training.shape, training.classes).to(device).train()
        images = torch.rand(training.batch, *training.shape).to(device)
        return "bf16" if ratio(partial(_step, network, images)) <= WORTH else "fp32"


def ratio(
    step: Callable[[bool], None], seconds: float = SECONDS, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Median time of `step(True)` over that of `step(False)`, in turns for `seconds`, after one untimed turn each."""
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


def _convolve(device: torch.device, autocast: bool) -> None:
    """A small convolution, forward and backward, until it is done on the device."""
    images, kernels = torch.ones(16, 16, 28, 28, device=device), torch.ones(16, 16, 3, 3, device=device)
    kernels.requires_grad_()
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        cost = F.relu(F.conv2d(images, kernels, padding=1)).float().mean()
    (gradient,) = torch.autograd.grad(cost, kernels)
    gradient.sum().item()


def _step(network: nn.Module, images: torch.Tensor, autocast: bool) -> None:
    """Gradients of a network's weights, until they are there; the optimiser's part is the same in either precision."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=autocast):
        cost = network(images).float().square().mean()
    gradients = torch.autograd.grad(cost, [weight for weight in network.parameters() if weight.requires_grad])
    gradients[0].sum().item()
