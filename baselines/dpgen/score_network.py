"""The score networks of `dpgen`, and the annealed Langevin dynamics that sample from them."""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class InstanceNormPlus(nn.Module):
    """InstanceNorm++ (Song and Ermon 2019): each channel normalised, plus the deviation of its mean from the others."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, c, h, w) to the same shape."""
        means = x.mean((2, 3))
        spread = (means.var(1, keepdim=True) + 1e-5).sqrt()
        shifted = self.weight * (means - means.mean(1, keepdim=True)) / spread
        normal = F.instance_norm(x) + shifted[..., None, None]
        return self.scale[:, None, None] * normal + self.offset[:, None, None]


class Block(nn.Module):
    """Residual block of two 3x3 convolutions, with InstanceNorm++ and ELU before each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(InstanceNormPlus(width) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, c, h, w) to the same shape."""
        found = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            found = convolution(F.elu(norm(found)))
        return x + found


class RefineScore(nn.Module):
    """s(x, sigma) = f(x) / sigma, where f downsamples to a quarter of the sides and is refined while upsampling.

    Args:
        shape: (c, h, w) of images.
        width: channels at full size; twice as many below.
    """

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(shape[0], width, 3, padding=1)
        self.at_full, self.at_half, self.at_quarter = Block(width), Block(2 * width), Block(2 * width)
        self.widen = nn.Conv2d(width, 2 * width, 1)
        self.refine_half, self.narrow, self.refine_full = Block(2 * width), nn.Conv2d(2 * width, width, 1), Block(width)
        self.norm, self.last = InstanceNormPlus(width), nn.Conv2d(width, shape[0], 3, padding=1)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Map (n, c, h, w) noisy images and (n,) deviations of their noise to scores of the same shape."""
        full = self.at_full(self.first(2 * x - 1))
        half = self.at_half(F.avg_pool2d(self.widen(full), 2, ceil_mode=True))
        quarter = self.at_quarter(F.avg_pool2d(half, 2, ceil_mode=True))
        half = self.refine_half(half + F.interpolate(quarter, size=half.shape[2:], mode="bilinear"))
        full = self.refine_full(full + F.interpolate(self.narrow(half), size=full.shape[2:], mode="bilinear"))
        return self.last(F.elu(self.norm(full))) / sigma[:, None, None, None]


class DenseScore(nn.Module):
    """s(x, sigma) = (d(x / (sigma^2 + 1/4)^(1/2), log sigma) - x) / sigma^2, where three dense layers d denoise x.

    Args:
        shape: (c, h, w) of images.
        width: units of the hidden layers.
    """

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        pixels = math.prod(shape)
        self.first, self.level = nn.Linear(pixels, width), nn.Linear(1, width)
        self.second, self.last = nn.Linear(width, width), nn.Linear(width, pixels)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Map (n, c, h, w) noisy images and (n,) deviations of their noise to scores of the same shape."""
        flat, wide = x.flatten(1), sigma[:, None]
        found = F.elu(self.first(flat / (wide.square() + 0.25).sqrt()) + self.level(wide.log()))
        found = self.last(F.elu(self.second(found))).sigmoid()
        return ((found - flat) / wide.square()).view_as(x)


class Score(Protocol):
    """Interface of a score network: the gradient of the log-density of images with noise of deviation sigma."""

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Map (n, c, h, w) images and (n,) deviations to (n, c, h, w) scores."""
        ...


def noise_levels(most: float, least: float, count: int) -> Tensor:
    """Return sigma_1 > ... > sigma_L, (L,) float32, in geometric steps; a single level is `least`."""
    if count == 1:
        return torch.tensor([least])
    share = torch.arange(count) / (count - 1)
    return most * (least / most) ** share


@torch.no_grad()
def langevin(score: Score, x: Tensor, levels: Tensor, each: int, step: float, rng: torch.Generator) -> Tensor:
    """Sample by annealed Langevin dynamics.

    At each level there are `each` steps x + a s(x) + (2 a)^(1/2) z, a = step sigma^2 / sigma_L^2; then
    x + sigma_L^2 s(x) removes the remaining noise.

    Args:
        score: the score network.
        x: (n, c, h, w) initial images.
        levels: (L,) falling deviations.
        each: steps per level.
        step: the published epsilon, the step at the last level.
        rng: random numbers of z.
    """
    least = float(levels[-1])
    for sigma in levels.tolist():
        at, a = torch.full((len(x),), sigma, device=x.device), step * sigma**2 / least**2
        for _ in range(each):
            z = torch.randn(x.shape, generator=rng, device=x.device)
            x = x + a * score(x, at) + math.sqrt(2 * a) * z
    return x + least**2 * score(x, torch.full((len(x),), least, device=x.device))
