"""Small classifiers for private training: no batch normalisation, and activations that bound the gradient.

Under clipping and noise a ReLU network's activations grow until most of each gradient is clipped away; a bounded
activation keeps them small (Papernot et al., AAAI 2021). The networks are those of Papernot et al. and of Tramer and
Boneh (ICLR 2021), with tempered sigmoids and, for comparison, with ReLU. No layer mixes the images of a batch, so every
image has its own gradient. All parameters are trained from random values, none are pretrained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from bench.errors import Incompatible
from bench.nets.small_net import SmallNet

HALVED_FROM = 24
SMALLEST, LARGEST = 12, 64
SMALLEST_VGG = 8
TEMPERED = ("tanh-cnn", "tanh-vgg")
"""Names of this file's networks with tempered sigmoids in the registry."""


class TemperedSigmoid(nn.Module):
    """phi(x) = scale * sigmoid(temperature * x) - offset; with (2, 2, 1), the defaults, exactly tanh.

    Args:
        scale: s, the width of the range.
        temperature: T, the inverse temperature.
        offset: o.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape to the same shape, with values in (-offset, scale - offset)."""
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        """Return the three constants as text."""
        return f"{self.scale:g}, {self.temperature:g}, {self.offset:g}"


class PrivateNet(SmallNet):
    """Two convolutions and two dense layers, the network of DP-SGD on MNIST (Papernot et al.; Tramer and Boneh).

    8x8 convolution 16, stride 2, padding 2; phi; 2x2 max-pooling of stride 1; 4x4 convolution 32, stride 2; phi; the
    same pooling; dense 32; phi; dense. 26,010 parameters for 1x28x28 and 10 classes. Below 24 pixels the first
    convolution has stride 1, with which 16x16 images give the same maps, and as many parameters, as 28x28 ones.

    Args:
        shape: (c, h, w), sides of 12 to 64.
        classes: number of classes.

    Raises:
        BenchError: image shapes it cannot take.
    """

    activation: ClassVar[Callable[[], nn.Module]] = TemperedSigmoid

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < SMALLEST or max(height, width) > LARGEST:
            raise Incompatible(
                f"the networks tanh-cnn and relu-cnn take images of {SMALLEST} to {LARGEST} pixels, not "
                f"{height}x{width}: use another one"
            )
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


class PrivateVgg(SmallNet):
    """Six convolutions and two dense layers, the network of DP-SGD on CIFAR-10 (Papernot et al.; Tramer and Boneh).

    3x3 convolutions, padding 1, each followed by phi: 32, 32, 2x2 max-pooling, 64, 64, pooling, 128, 128, pooling;
    dense 128; phi; dense. 550,570 parameters for 3x32x32 and 10 classes.

    Args:
        shape: (c, h, w), sides of 8 to 64.
        classes: number of classes.

    Raises:
        BenchError: image shapes it cannot take.
    """

    activation: ClassVar[Callable[[], nn.Module]] = TemperedSigmoid

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < SMALLEST_VGG or max(height, width) > LARGEST:
            raise Incompatible(
                f"the networks tanh-vgg and relu-vgg take images of {SMALLEST_VGG} to {LARGEST} pixels, not "
                f"{height}x{width}: use another one"
            )
        layers: list[nn.Module] = []
        for outputs in (32, 64, 128):
            for _ in range(2):
                layers += [nn.Conv2d(channels, outputs, 3, padding=1), type(self).activation()]
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        flat = channels * (height // 8) * (width // 8)
        self.trunk = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 128), type(self).activation())
        self.head = nn.Linear(128, classes)
