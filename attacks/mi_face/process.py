"""Process of MI-Face: what is done to an image after each step, a clip or filters of 3x3 pixels."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

SIGMA = 0.5
"""Standard deviation of the Gaussian filter, in pixels."""

Process = Literal["identity", "clip", "gaussian", "median", "median-sharpen"]


def process(x: Tensor, how: Process) -> Tensor:
    """(n, c, h, w) images after the step called Process, in [0, 1] unless `how` is "identity"."""
    if how == "identity":
        return x
    x = x.clamp(0, 1)
    if how == "gaussian":
        x = gaussian(x)
    elif how in ("median", "median-sharpen"):
        x = median(x)
        if how == "median-sharpen":
            x = 2 * x - gaussian(x)
    return x.clamp(0, 1)


def gaussian(x: Tensor) -> Tensor:
    """3x3 Gaussian filter of each channel; borders are repeated."""
    side = math.exp(-1 / (2 * SIGMA**2))
    line = torch.tensor([side, 1, side], device=x.device) / (1 + 2 * side)
    return (_neighbours(x) * torch.outer(line, line).view(1, 9, 1)).sum(1).view_as(x)


def median(x: Tensor) -> Tensor:
    """3x3 median filter of each channel; borders are repeated."""
    return _neighbours(x).median(1).values.view_as(x)


def _neighbours(x: Tensor) -> Tensor:
    """(n c, 9, h w), the 3x3 pixels around each pixel, row by row."""
    maps = functional.pad(x.flatten(0, 1).unsqueeze(1), (1, 1, 1, 1), mode="replicate")
    return functional.unfold(maps, 3)
