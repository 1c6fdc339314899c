"""Building blocks of this project's own networks: the base class, dropout, and Xavier initialisation."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from bench.errors import Incompatible

BITS = 53
"""Number of the 64 random bits from which torch makes a double in [0, 1)."""
DRAWN_AT_ONCE = 2**15
"""Number of random integers drawn at once, so that they fit into a core's cache."""

Network = TypeVar("Network", bound=nn.Module)


class SmallNet(nn.Module):
    """A classifier that ends in one linear layer: `forward(x) == head(features(x))`.

    Attributes:
        trunk: maps (n, c, h, w) to (n, d).
        head: maps (n, d) to (n, classes).
    """

    trunk: nn.Sequential
    head: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """Return (n, d), the input of the last linear layer."""
        return self.trunk(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, classes) logits."""
        return self.head(self.features(x))


def check_image_size(name: str, shape: tuple[int, int, int], smallest: int, largest: int | None = None) -> None:
    """Check that both sides of (c, h, w) images are within a network's limits, in pixels.

    Raises:
        BenchError: a side is too small or too large; the message has the network's name.
    """
    _, height, width = shape
    if min(height, width) >= smallest and (largest is None or max(height, width) <= largest):
        return
    expected = f"at least {smallest}x{smallest}" if largest is None else f"{smallest} to {largest} pixels"
    raise Incompatible(f"the network {name} takes images of {expected}, not {height}x{width}: use another one")


class Dropout(nn.Dropout):
    """Drop-in replacement of `torch.nn.Dropout` whose masks on a CPU do not depend on the build of torch.

    torch draws a Bernoulli number from 64 random bits, one after the other, or in builds with MKL by MKL's own
    generator. Here the same 64 bits are drawn as integers, which gives exactly the masks of builds without MKL and is
    faster. `benchmarks/dropout.py` measures the time.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to any shape: in training each number is 0 with probability p, otherwise divided by 1 - p."""
        is_drawn_here = x.device.type == "cpu" and x.ndim > 0 and not torch.compiler.is_compiling()
        if not (self.training and 0 < self.p < 1 and is_drawn_here):
            return super().forward(x)
        keep, mask = 1 - self.p, torch.empty_like(x)
        below = math.ceil(keep * 2**BITS)
        for part in mask.split(max(DRAWN_AT_ONCE * len(x) // max(x.numel(), 1), 1)):
            drawn = torch.empty_like(part, dtype=torch.int64).random_().bitwise_and_((1 << BITS) - 1)
            part.copy_(drawn < below)
        return x * mask.div_(keep)


def xavier(module: Network) -> Network:
    """Set Xavier-uniform weights and zero biases in every linear and convolutional layer; return the module."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module
