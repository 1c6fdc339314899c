"""a linear layer on fixed scattering features, which hundreds of teachers are solved with in closed form"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from bench.errors import BenchError
from bench.nets.scattering import Scattering
from bench.nets.small_net import SmallNet
from bench.nets.stroke_generator import StrokeGenerator

SMALLEST, LARGEST = 8, 64
REFERENCE_IMAGES, REFERENCE_SEED, REFERENCE_POINTS = 2000, 99, (3, 4, 5, 6, 8)


class ScatterNet(SmallNet):
    """A linear layer on square roots of scattering coefficients, standardised by constants from random pen strokes.

    1,225 features for 28x28 images. Only the linear layer is trained; `bench.teachers.fit_ensemble` solves it in closed
    form, so that hundreds of teachers take a second. The standardisation is a public constant, computed from drawings
    of `StrokeGenerator`, never from data.

    Args:
        shape: (c, h, w), sides of 8 to 64; channels are averaged.
        classes: number of classes.

    Raises:
        BenchError: image shapes it cannot take.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        _, height, width = shape
        if min(height, width) < SMALLEST or max(height, width) > LARGEST:
            raise BenchError(
                f"the network scatter-linear takes images of {SMALLEST} to {LARGEST} pixels, not {height}x{width}: "
                "use another one"
            )
        self.trunk = nn.Sequential(_Standardised(*_constants(max(height, width))), nn.Flatten())
        with torch.no_grad():
            features = self.trunk(torch.zeros(1, *shape)).shape[1]
        self.head = nn.Linear(features, classes)


class _Standardised(nn.Module):
    """Map scattering coefficients to (sqrt - mean) / std, channel by channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.scattering = Scattering()
        self.register_buffer("mean", mean.clone(), persistent=False)
        self.register_buffer("std", std.clone(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, c, h, w), normalised to [-1, 1] by a `Classifier`, to (n, 25, ., .)."""
        return (self.scattering((x + 1) / 2).clamp_min(0).sqrt() - self.mean) / self.std


@cache
def _constants(size: int) -> tuple[Tensor, Tensor]:
    """Return the (1, 25, 1, 1) mean and standard deviation of the root coefficients of random strokes of this size."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(REFERENCE_SEED)
        drawn = []
        for points in REFERENCE_POINTS:
            pen = StrokeGenerator((1, size, size), points)
            drawn.append(pen(torch.randn(REFERENCE_IMAGES // len(REFERENCE_POINTS), pen.latent)))
        roots = torch.cat([Scattering()(part).clamp_min(0).sqrt() for part in drawn])
    return roots.mean((0, 2, 3), keepdim=True), roots.std((0, 2, 3), keepdim=True)
