"""Small classifiers for DP-SGD: no batch normalisation, and activations that bound the gradient.

Under clipping and noise a ReLU network's activations grow until most of each gradient is clipped away; a bounded
activation keeps them small (Papernot et al., AAAI 2021). The networks are those of Papernot et al. and of Tramer and
Boneh (ICLR 2021), with tempered sigmoids and, for comparison, with ReLU. No layer mixes the images of a batch, so every
image has its own gradient. All parameters are trained from random values; none are pretrained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from bench.nets.small_net import SmallNet, check_image_size

NETWORKS = {"relu-cnn": "ReluCnn", "relu-vgg": "ReluVgg", "tanh-cnn": "TanhCnn", "tanh-vgg": "TanhVgg"}
"""Network name -> class."""
TEMPERED = ("tanh-cnn", "tanh-vgg")
"""Names of the networks with tempered sigmoids."""
LARGEST = 64
"""Largest side of an image, in pixels."""
HALVED_FROM = 24
"""Side in pixels from which the first convolution of the CNNs has stride 2."""


class TemperedSigmoid(nn.Module):
    """The activation phi(x) = scale * sigmoid(temperature * x) - offset; with the defaults (2, 2, 1) exactly tanh.

    Args:
        scale: s, the width of the range.
        temperature: T, the inverse temperature.
        offset: o, subtracted from the scaled sigmoid.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape to the same shape, with values in (-offset, scale - offset)."""
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        """Return scale, temperature and offset as text, for `repr`."""
        return f"{self.scale:g}, {self.temperature:g}, {self.offset:g}"


class TanhCnn(SmallNet):
    """A CNN for DP-SGD on grey images: two convolutions with tempered sigmoids, by default tanh.

    8x8 convolution 16, stride 2, padding 2; phi; 2x2 max-pooling of stride 1; 4x4 convolution 32, stride 2; phi; the
    same pooling; dense 32; phi; dense. 26,010 parameters for 1x28x28 and 10 classes. Below 24 pixels the first
    convolution has stride 1, with which 16x16 images have the same maps, and as many parameters, as 28x28 ones.

    Args:
        shape: (c, h, w), sides of 12 to 64.
        classes: number of classes.

    Raises:
        BenchError: images that are too small or too large.
    """

    activation: ClassVar[Callable[[], nn.Module]] = TemperedSigmoid

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        check_image_size("tanh-cnn or relu-cnn", shape, 12, LARGEST)
        channels, height, width = shape
        stride, phi = (1 if min(height, width) < HALVED_FROM else 2), type(self).activation
        maps = [((side - 4) // stride - 4) // 2 for side in (height, width)]
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 16, 8, stride, padding=2),
            phi(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2),
            phi(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(32 * maps[0] * maps[1], 32),
            phi(),
        )
        self.head = nn.Linear(32, classes)


class ReluCnn(TanhCnn):
    """A CNN for DP-SGD on grey images: two convolutions with ReLU; otherwise as `tanh-cnn`."""

    activation = nn.ReLU


class TanhVgg(SmallNet):
    """A CNN for DP-SGD on colour images: six convolutions with tempered sigmoids, by default tanh.

    3x3 convolutions, padding 1, each followed by phi: 32, 32, 2x2 max-pooling, 64, 64, pooling, 128, 128, pooling;
    dense 128; phi; dense. 550,570 parameters for 3x32x32 and 10 classes.

    Args:
        shape: (c, h, w), sides of 8 to 64.
        classes: number of classes.

    Raises:
        BenchError: images that are too small or too large.
    """

    activation: ClassVar[Callable[[], nn.Module]] = TemperedSigmoid

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        check_image_size("tanh-vgg or relu-vgg", shape, 8, LARGEST)
        channels, height, width = shape
        phi = type(self).activation
        layers: list[nn.Module] = []
        for outputs in (32, 64, 128):
            for _ in range(2):
                layers += [nn.Conv2d(channels, outputs, 3, padding=1), phi()]
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        flat = channels * (height // 8) * (width // 8)
        self.trunk = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 128), phi())
        self.head = nn.Linear(128, classes)


class ReluVgg(TanhVgg):
    """A CNN for DP-SGD on colour images: six convolutions with ReLU; otherwise as `tanh-vgg`."""

    activation = nn.ReLU
