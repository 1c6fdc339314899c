"""Dropout with masks that do not depend on the build of torch, and that is faster on a CPU.

torch draws a Bernoulli number from 64 random bits, one after the other, or in builds with MKL by MKL's own generator.
The same 64 bits, drawn as integers, give exactly the masks of the former, so that training with dropout no longer
depends on the build. `benchmarks/dropout.py` measures the time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

BITS = 53
"""Number of the 64 random bits from which torch makes a double in [0, 1)."""
AT_ONCE = 2**15
"""Numbers drawn at a time, so that their bits fit into a core's cache."""


class Dropout(nn.Dropout):
    """Drop-in replacement of `torch.nn.Dropout`, with the masks that torch draws on a CPU without MKL."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to any shape: in training each number is 0 with probability p, otherwise divided by 1 - p."""
        drawn_here = x.device.type == "cpu" and x.ndim > 0 and not torch.compiler.is_compiling()
        if not (self.training and 0 < self.p < 1 and drawn_here):
            return super().forward(x)
        keep, mask = 1 - self.p, torch.empty_like(x)
        below = math.ceil(keep * 2**BITS)
        for part in mask.split(max(AT_ONCE * len(x) // max(x.numel(), 1), 1)):
            drawn = torch.empty_like(part, dtype=torch.int64).random_().bitwise_and_((1 << BITS) - 1)
            part.copy_(drawn < below)
        return x * mask.div_(keep)
