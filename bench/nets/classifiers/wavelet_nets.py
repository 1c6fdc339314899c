"""Classifiers on fixed wavelet features: only the layers after the features are trained, and only they cost privacy.

Features of an image: `FineScattering` of every channel, then group normalisation over three maps at a time, without
weights. They depend only on that image and on public constants (Tramer and Boneh, ICLR 2021).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.errors import Incompatible
from bench.nets.fine_scattering import MAPS, FineScattering
from bench.nets.small_net import SmallNet, check_image_size

NETWORKS = {
    "wavelet-cnn": "WaveletCnn",
    "wavelet-linear": "WaveletLinear",
    "wavelet-linear-mirrored": "WaveletLinearMirrored",
}
"""Network name -> class."""
VERSION = 1
"""Version of the features, which are cached: increase it whenever their values change."""
SMALLEST, LARGEST = 8, 64
"""Limits of an image's sides, in pixels."""
GROUP = 3
"""Number of maps normalised together (Tramer and Boneh, ICLR 2021: 27 groups of 81 maps, 81 of 243)."""
COLOUR_MEAN, COLOUR_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's mean and standard deviation, by which colour channels are normalised; public constants."""

Shape = tuple[int, int, int]


class WaveletLinear(SmallNet):
    """A linear layer on fine scattering features, 81 maps per channel, normalised for each image.

    3,969 features for 1x28x28, 15,552 for 3x32x32. Their mean square is 1 for any image; for an image without
    structure, rounding errors are scaled up to a mean square of 1.

    Args:
        shape: (c, h, w), sides of 8 to 64, c 1 or 3.
        classes: number of classes.

    Raises:
        BenchError: image shapes it cannot take.
    """

    mirrored: ClassVar[bool] = False
    """Whether features are averaged over the image and its mirror image: for photographs, not for digits."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        features = WaveletFeatures(shape, type(self).mirrored)
        maps, height, width = features.output_shape
        self.trunk = nn.Sequential(features, nn.Flatten(), NormalisedRows())
        self.head = nn.Linear(maps * height * width, classes)


class WaveletLinearMirrored(WaveletLinear):
    """`wavelet-linear` on the mean features of an image and its mirror image, for photographs."""

    mirrored: ClassVar[bool] = True


class WaveletCnn(SmallNet):
    """Two small convolutions on fine scattering features, 81 maps per channel (Tramer and Boneh, ICLR 2021).

    Grey images: 16 maps at stride 2, 32 maps, and a dense layer of 32 units. Colour images: 64 maps, max-pooling, 64
    maps. tanh activations. `trunk[0]` has no weights.

    Args:
        shape: (c, h, w), sides of 8 to 64, c 1 or 3.
        classes: number of classes.

    Raises:
        BenchError: image shapes it cannot take.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        features = WaveletFeatures(shape)
        maps, height, width = features.output_shape
        if shape[0] == 1:
            flat, inputs = 32 * -(-height // 2) * -(-width // 2), 32
            layers = [nn.Conv2d(maps, 16, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(16, 32, 3, padding=1)]
            layers += [nn.Tanh(), nn.Flatten(), nn.Linear(flat, inputs), nn.Tanh()]
        else:
            inputs = 64 * (height // 2) * (width // 2)
            layers = [nn.Conv2d(maps, 64, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
            layers += [nn.Conv2d(64, 64, 3, padding=1), nn.Tanh(), nn.Flatten()]
        self.trunk = nn.Sequential(nn.Sequential(features, NormalisedRows()), *layers)
        self.head = nn.Linear(inputs, classes)


class WaveletFeatures(nn.Module):
    """Maps (n, c, h, w) images, normalised to [-1, 1] by a `Classifier`, to (n, 81 c, h // 4, w // 4) features.

    Args:
        shape: (c, h, w), sides of 8 to 64, c 1 or 3.
        mirrored: whether features are averaged over the image and its mirror image.

    Raises:
        BenchError: image shapes it cannot take.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: Shape, mirrored: bool = False) -> None:
        super().__init__()
        check_image_size("wavelet-linear or wavelet-cnn", shape, SMALLEST, LARGEST)
        channels, height, width = shape
        if channels not in (1, 3):
            raise Incompatible(f"the wavelet networks take images of 1 or 3 channels, not {channels}: use another one")
        self.output_shape = (MAPS * channels, height // 4, width // 4)
        self.scattering, self.mirrored = FineScattering(height, width), mirrored
        mean, std = (COLOUR_MEAN, COLOUR_STD) if channels == 3 else ((0.0,), (1.0,))
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the features; the mirror image is transformed separately, as its maps are not the mirrored maps."""
        images = ((x + 1) / 2 - self.mean) / self.std
        if not self.mirrored:
            return self._normalised_maps(images)
        return (self._normalised_maps(images) + self._normalised_maps(images.flip(-1))) / 2

    def _normalised_maps(self, images: Tensor) -> Tensor:
        maps = self.scattering(images)
        return F.group_norm(maps, maps.shape[1] // GROUP)


class NormalisedRows(nn.Module):
    """Scales rows of d numbers, (n, d) or (n, c, h, w), to norm sqrt(d), which bounds a linear layer's gradient."""

    def forward(self, rows: Tensor) -> Tensor:
        """Scale the rows; rows of zeros stay zero."""
        flat = rows.flatten(1)
        return (F.normalize(flat) * math.sqrt(flat.shape[1])).view_as(rows)
