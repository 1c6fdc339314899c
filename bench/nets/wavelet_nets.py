"""Classifiers of one linear layer on fixed wavelet features, for heads that are trained privately.

Per image, `FineScattering` of every channel, then group normalisation over three maps at a time, without weights. An
image's features depend only on that image and on public constants, so that only the training of the linear layer has a
privacy cost.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.errors import Incompatible
from bench.nets.fine_scattering import MAPS, FineScattering
from bench.nets.small_net import SmallNet

VERSION = 1
"""Version of the features, which are cached: increase it whenever their values change."""
SMALLEST, LARGEST = 8, 64
GROUP = 3
"""Number of maps normalised together (Tramer and Boneh, ICLR 2021: 27 groups of 81 maps, 81 of 243)."""
COLOUR_MEAN, COLOUR_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's mean and standard deviation, by which colour channels are normalised; public constants."""


class WaveletNet(SmallNet):
    """A linear layer on normalised scattering maps, 81 per channel, flattened.

    3,969 features for 1x28x28, 15,552 for 3x32x32. Their mean square is 1 for any image; for an image without
    structure, rounding errors are scaled up to it.

    Args:
        shape: (c, h, w), sides of 8 to 64, c 1 or 3.
        classes: number of classes.

    Raises:
        BenchError: image shapes it cannot take.
    """

    mirrored: ClassVar[bool] = False
    """Whether features are averaged over the image and its mirror image: for photographs, not for digits."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        check_shape("wavelet-linear", shape)
        features, (maps, height, width) = feature_maps(shape, type(self).mirrored)
        self.trunk = nn.Sequential(features, nn.Flatten(), EqualRows())
        self.head = nn.Linear(maps * height * width, classes)


def check_shape(name: str, shape: tuple[int, int, int]) -> None:
    """Refuse image shapes that the features cannot take. Raises BenchError naming the networks."""
    channels, height, width = shape
    if channels not in (1, 3) or min(height, width) < SMALLEST or max(height, width) > LARGEST:
        raise Incompatible(
            f"the {name} networks take images of 1 or 3 channels and {SMALLEST} to {LARGEST} pixels, not "
            f"{channels}x{height}x{width}: use another one"
        )


def feature_maps(shape: tuple[int, int, int], mirrored: bool = False) -> tuple[WaveletFeatures, tuple[int, int, int]]:
    """Return the feature extractor of images (c, h, w), and the features' shape (81 c, h // 4, w // 4)."""
    channels, height, width = shape
    return WaveletFeatures(shape, mirrored), (MAPS * channels, height // 4, width // 4)


class WaveletFeatures(nn.Module):
    """Maps (n, c, h, w) images, normalised to [-1, 1] by a `Classifier`, to (n, 81 c, h // 4, w // 4) features."""

    mean: Tensor
    std: Tensor

    def __init__(self, shape: tuple[int, int, int], mirrored: bool) -> None:
        super().__init__()
        channels, height, width = shape
        self.scattering, self.mirrored = FineScattering(height, width), mirrored
        mean, std = (COLOUR_MEAN, COLOUR_STD) if channels == 3 else ((0.0,), (1.0,))
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the features; the mirror image is transformed separately, as its maps are not the mirrored maps."""
        images = ((x + 1) / 2 - self.mean) / self.std
        if not self.mirrored:
            return self._normalised(images)
        return (self._normalised(images) + self._normalised(images.flip(-1))) / 2

    def _normalised(self, images: Tensor) -> Tensor:
        maps = self.scattering(images)
        return F.group_norm(maps, maps.shape[1] // GROUP)


class EqualRows(nn.Module):
    """Scales rows of d numbers, (n, d) or (n, c, h, w), to norm sqrt(d), which bounds a linear layer's gradient."""

    def forward(self, rows: Tensor) -> Tensor:
        """Scale the rows; rows of zeros stay zero."""
        flat = rows.flatten(1)
        return (F.normalize(flat) * math.sqrt(flat.shape[1])).view_as(rows)
