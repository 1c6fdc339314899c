"""Targets, generators and images that the tests of inversion attacks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Quadrants(nn.Module):
    """Four classes: the brightest quadrant."""

    def __init__(self, slope: float = 8.0) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * nn.functional.avg_pool2d(x, x.shape[-1] // 2).flatten(1)


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
