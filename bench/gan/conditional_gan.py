"""Class-conditional generator and discriminator of PLG-MI.

Yuan et al., AAAI 2023: residual networks with class-conditional batch normalisation, and with spectral normalisation
and a projection of the class (Miyato and Koyama, ICLR 2018; Miyato et al., ICLR 2018).
"""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, relu
from torch.nn.utils.parametrizations import spectral_norm

from bench.nets.generators import Shape, check_square, doublings

_SMALLEST_MAP = 3
"""The discriminator halves maps until they are at most this wide."""


class ClassBatchNorm(nn.Module):
    """Batch normalisation with a scale and a shift per channel and class, initially 1 and 0."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.scale, self.shift = nn.Embedding(classes, channels), nn.Embedding(classes, channels)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Normalise (n, channels, h, w) maps of classes (n,)."""
        return self.scale(y)[:, :, None, None] * self.norm(x) + self.shift(y)[:, :, None, None]


def _conv(inputs: int, outputs: int, kernel: int, gain: float = math.sqrt(2)) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    nn.init.xavier_uniform_(conv.weight, gain)
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return conv


class _UpBlock(nn.Module):
    """A residual block that doubles the map."""

    def __init__(self, inputs: int, outputs: int, classes: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([ClassBatchNorm(inputs, classes), ClassBatchNorm(outputs, classes)])
        self.first, self.second = _conv(inputs, outputs, 3), _conv(outputs, outputs, 3)
        self.skip = _conv(inputs, outputs, 1, gain=1.0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(interpolate(relu(self.norms[0](x, y)), scale_factor=2))
        h = self.second(relu(self.norms[1](h, y)))
        return h + interpolate(self.skip(x), scale_factor=2)


class ConditionalGenerator(nn.Module):
    """The generator of PLG-MI: latent vectors and classes to images in [0, 1].

    A linear layer makes a small map, `doublings(h)` residual blocks double it, from 2^doublings d channels to d; then
    batch normalisation, ReLU, a 3x3 convolution and a sigmoid. For 64 pixels the channels are 16d, 8d, 4d, 2d, d.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        classes: number of classes.
        latent: length of a latent vector.
        width: d.

    Raises:
        BenchError: the image size is not supported.
    """

    def __init__(self, shape: Shape, classes: int, latent: int, width: int) -> None:
        check_square(shape)
        super().__init__()
        self.latent = latent
        stages = doublings(shape[1])
        size = shape[1] >> stages
        widths = [width << stage for stage in range(stages, -1, -1)]
        start = nn.Linear(latent, widths[0] * size**2)
        nn.init.xavier_uniform_(start.weight)
        self.start = nn.Sequential(start, nn.Unflatten(1, (widths[0], size, size)))
        self.grow = nn.ModuleList(_UpBlock(a, b, classes) for a, b in pairwise(widths))
        self.last = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), _conv(width, shape[0], 3, gain=1.0), nn.Sigmoid())

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Map (n, latent) and classes (n,) to (n, c, h, w) in [0, 1]."""
        x = self.start(z)
        for block in self.grow:
            x = block(x, y)
        return self.last(x)


class _DownBlock(nn.Module):
    """A residual block that halves the map, rounding down; the first one takes images, which have no activation."""

    def __init__(self, inputs: int, outputs: int, first: bool) -> None:
        super().__init__()
        middle = outputs if first else inputs
        self.takes_images = first
        self.first, self.second = spectral_norm(_conv(inputs, middle, 3)), spectral_norm(_conv(middle, outputs, 3))
        self.skip = spectral_norm(_conv(inputs, outputs, 1, gain=1.0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x if self.takes_images else relu(x))
        return avg_pool2d(self.second(relu(h)), 2) + self.skip(avg_pool2d(x, 2))


class ProjectionDiscriminator(nn.Module):
    """The discriminator of PLG-MI: images and classes to one number each; images do not affect each other.

    Residual blocks halve the map until at most 3 pixels are left, with d, 2d, 4d, ... channels; h is the spatial
    sum after a ReLU, and D(x, y) = v . h + b + e_y . h. Every layer, e included, is spectrally normalised.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        classes: number of classes.
        width: d.

    Raises:
        BenchError: the image size is not supported.
    """

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        check_square(shape)
        super().__init__()
        inputs, size, _ = shape
        blocks: list[nn.Module] = []
        outputs = width
        while size > _SMALLEST_MAP:
            blocks.append(_DownBlock(inputs, outputs, first=not blocks))
            inputs, outputs, size = outputs, 2 * outputs, size // 2
        self.body = nn.Sequential(*blocks, nn.ReLU())
        self.score = spectral_norm(nn.Linear(inputs, 1))
        self.embed = spectral_norm(nn.Embedding(classes, inputs))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Map (n, c, h, w) and classes (n,) to (n,) scores; higher means more like a real image of the class."""
        h = self.body(x).sum((2, 3))
        return self.score(h).squeeze(1) + (self.embed(y) * h).sum(1)
