"""Targets, generators and images that the tests of inversion attacks share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.api import Access, Advance, Context, Target

SHAPE = (1, 8, 8)
TINY_GAN: dict[str, Any] = {"gan_steps": 2, "gan_batch": 4, "latent": 6, "width": 2, "draws": 2, "images_per_class": 3}
"""The options that all attacks with a GAN have."""


class Quadrants(nn.Module):
    """Four classes: the brightest quadrant."""

    def __init__(self, slope: float = 8.0, offset: float = 0.0) -> None:
        super().__init__()
        self.slope, self.offset = slope, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * nn.functional.avg_pool2d(x, x.shape[-1] // 2).flatten(1) + self.offset


class LinearQuadrants(nn.Module):
    """`Quadrants` of 16 x 16 images by a linear layer; its features are the four means. One may be unreachable."""

    def __init__(self, slope: float = 8.0, never: int | None = None) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(8)
        self.head = nn.Linear(4, 4).requires_grad_(False)
        self.head.weight.copy_(slope * torch.eye(4))
        self.head.bias.zero_()
        if never is not None:
            self.head.bias[never] = -1000.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(x).flatten(1))


def tracked(ctx: Context, stages: list[str] | None = None) -> Context:
    """Return the context with progress bars that must end complete; `stages` gets their names."""

    @contextmanager
    def track(stage: str, total: int) -> Iterator[Advance]:
        done: list[int] = []
        yield done.append
        assert sum(done) == total, stage
        if stages is not None:
            stages.append(stage)

    return replace(ctx, track=track)


def target(model: nn.Module | None = None, access: Access = "weights", side: int = 8) -> Target:
    return Target((model or Quadrants()).eval(), access, (1, side, side), 4)


class SmoothGenerator(nn.Module):
    """A linear layer and a sigmoid; `largest` stores the largest |z| of every call."""

    def __init__(self, latent: int = 6, side: int = 8, slope: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(latent, side * side).requires_grad_(False)
        self.side, self.slope = side, slope
        self.largest: list[float] = []

    def forward(self, z: Tensor) -> Tensor:
        self.largest.append(float(z.detach().abs().max()))
        return (self.slope * self.body(z)).sigmoid().view(-1, 1, self.side, self.side)


class Brightness(nn.Module):
    """A critic that scores an image by its mean."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).mean(1)


def quadrant_images(n: int) -> Tensor:
    """Return (n, 1, 8, 8) images with noise, the i-th with a bright quadrant i modulo 4."""
    rng = torch.Generator().manual_seed(0)
    corners = nn.functional.one_hot(torch.arange(n) % 4, 4).float().view(n, 1, 2, 2)
    return nn.functional.interpolate(corners, scale_factor=4) * 0.8 + 0.2 * torch.rand(n, 1, 8, 8, generator=rng)
