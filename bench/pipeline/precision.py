"""The precision that networks train in: what the user asked for, or what a probe of a second finds faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Literal

import torch
import torch.nn.functional as F

Precision = Literal["fp32", "bf16"]
WORTH = 0.8
"""Largest ratio of the times at which bfloat16 is taken: rounding has to buy a fifth of the time at least."""
SECONDS = 1.0


def settled(asked: Literal["fp32", "bf16", "auto"], device: torch.device) -> Precision:
    """The precision that was asked for, "auto" answered by a probe of the device, made once a process."""
    return _faster(device) if asked == "auto" else asked


@cache
def _faster(device: torch.device) -> Precision:
    return "bf16" if ratio(lambda autocast: _step(device, autocast)) <= WORTH else "fp32"


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


def _step(device: torch.device, autocast: bool) -> None:
    """One training step's worth of a small convolution, forward and backward, until it is done on the device."""
    images, kernels = torch.ones(16, 16, 28, 28, device=device), torch.ones(16, 16, 3, 3, device=device)
    kernels.requires_grad_()
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        cost = F.relu(F.conv2d(images, kernels, padding=1)).float().mean()
    (gradient,) = torch.autograd.grad(cost, kernels)
    gradient.sum().item()
