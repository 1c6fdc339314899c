"""A linear layer on fixed scattering features, solved in closed form: hundreds of teachers are trained in seconds."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from bench.nets.scattering import Scattering
from bench.nets.small_net import SmallNet, check_image_size
from bench.nets.stroke_generator import StrokeGenerator

REFERENCE_IMAGES, REFERENCE_SEED, REFERENCE_POINTS = 2000, 99, (3, 4, 5, 6, 8)
"""Random pen strokes that the standardisation is computed from: number, seed, and numbers of control points."""


class ScatterLinear(SmallNet):
    """A linear layer on square roots of scattering coefficients, standardised by constants from random pen strokes.

    It has 1,225 features for 28x28 images. Only the linear layer is trained; `bench.teachers.fit_ensemble` solves it in
    closed form. The standardisation is a public constant, computed from drawings of `StrokeGenerator`, never from data.

    Args:
        shape: (c, h, w), sides of 8 to 64; channels are averaged.
        classes: number of classes.

    Raises:
        BenchError: images that are too small or too large.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        check_image_size("scatter-linear", shape, 8, 64)
        self.trunk = nn.Sequential(_StandardisedScattering(max(shape[1:])), nn.Flatten())
        with torch.no_grad():
            features = self.trunk(torch.zeros(1, *shape)).shape[1]
        self.head = nn.Linear(features, classes)


class _StandardisedScattering(nn.Module):
    """Maps images to (sqrt(scattering coefficients) - mean) / std, channel by channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scattering = Scattering()
        mean, std = stroke_statistics(size)
        self.register_buffer("mean", mean.clone(), persistent=False)
        self.register_buffer("std", std.clone(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, c, h, w), normalised to [-1, 1] by a `Classifier`, to (n, 25, ., .)."""
        return (self.scattering((x + 1) / 2).clamp_min(0).sqrt() - self.mean) / self.std


@cache
def stroke_statistics(size: int) -> tuple[Tensor, Tensor]:
    """Return the (1, 25, 1, 1) mean and standard deviation of the root coefficients of random strokes of this size."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(REFERENCE_SEED)
        drawn = []
        for points in REFERENCE_POINTS:
            pen = StrokeGenerator((1, size, size), points)
            drawn.append(pen(torch.randn(REFERENCE_IMAGES // len(REFERENCE_POINTS), pen.latent)))
        roots = torch.cat([Scattering()(part).clamp_min(0).sqrt() for part in drawn])
    return roots.mean((0, 2, 3), keepdim=True), roots.std((0, 2, 3), keepdim=True)
