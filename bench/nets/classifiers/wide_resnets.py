"""Wide residual networks for DP-SGD: group normalisation and weight standardisation, as De et al. (2022) train them.

De, Berrada, Hayes, Smith and Balle, "Unlocking High-Accuracy Differentially Private Image Classification through
Scale", arXiv 2204.13650. Both normalisations use one image, or the weights only, so every record has its own gradient.
The structure follows the paper's released code, with the names WRN-depth-width of Zagoruyko and Komodakis (BMVC 2016).

Differs from the released code: a convolution of stride 2 is padded by 1 on every side instead of at the end only; the
weights of the layers start normal instead of truncated normal.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.nets.small_net import SmallNet, check_image_size

NETWORKS = {"wrn-10-1": "Wrn10x1", "wrn-16-1": "Wrn16x1", "wrn-16-4": "Wrn16x4", "wrn-40-4": "Wrn40x4"}
"""Network name -> class."""
GROUPS = 16
"""Number of groups of every group normalisation, and channels of the first convolution."""
SMALLEST = 8
"""Smallest side of an image, in pixels: two convolutions have stride 2."""
LEAST_SPREAD = 1e-4
"""Lower limit of fan-in times the variance of a filter, which a standardised filter is divided by."""


class StandardisedConv(nn.Conv2d):
    """Convolution with scaled weight standardisation (Qiao et al. 2019; Brock et al., ICLR 2021).

    Filter o is gain_o (w_o - mean(w_o)) / sqrt(n var(w_o)), with n its number of weights, and a bias is added. The mean
    and the variance are those of the filter's own weights, no statistics of data.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2)
        self.gain = nn.Parameter(torch.ones(outputs))
        _draw_by_fan_in(self)

    def standardised(self) -> Tensor:
        """Return the (outputs, inputs, k, k) filters that are applied."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        spread = (variance * self.weight[0].numel()).clamp_min(LEAST_SPREAD)
        return (self.weight - mean) * (spread.rsqrt() * self.gain.view(-1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (n, inputs, h, w) with the standardised filters."""
        return F.conv2d(x, self.standardised(), self.bias, self.stride, self.padding)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, each after ReLU and group normalisation, added to the block's input.

    Args:
        inputs: number of channels of the input.
        outputs: number of channels of the output.
        stride: stride of the first convolution.
        projects: True = the input passes through ReLU, group normalisation and a 1x1 convolution before the addition.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, projects: bool) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.ReLU(),
            nn.GroupNorm(GROUPS, inputs),
            StandardisedConv(inputs, outputs, 3, stride),
            nn.ReLU(),
            nn.GroupNorm(GROUPS, outputs),
            StandardisedConv(outputs, outputs, 3),
        )
        self.skip = nn.Sequential()
        if projects:
            self.skip = nn.Sequential(
                nn.ReLU(), nn.GroupNorm(GROUPS, inputs), StandardisedConv(inputs, outputs, 1, stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        return self.skip(x) + self.residual(x)


class Wrn16x4(SmallNet):
    """WRN-16-4: three stages of two residual blocks, 64, 128 and 256 channels; 2.75 million parameters for CIFAR-10.

    A 3x3 convolution of 16 channels; the stages, of which the second and third halve the image; ReLU, group
    normalisation, mean over the pixels; a linear layer.

    Args:
        shape: (c, h, w), sides of at least 8.
        classes: number of classes.

    Raises:
        BenchError: images that are too small.
    """

    depth: ClassVar[int] = 16
    """Number of layers: 4 plus 6 for every block of a stage."""
    width: ClassVar[int] = 4
    """Factor of the channels: the stages have 16, 32 and 64 times as many."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        check_image_size(f"wrn-{self.depth}-{self.width}", shape, SMALLEST)
        layers: list[nn.Module] = [StandardisedConv(shape[0], GROUPS, 3)]
        channels = GROUPS
        for stage in range(3):
            outputs = 16 * 2**stage * self.width
            for block in range((self.depth - 4) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(ResidualBlock(channels, outputs, stride, projects=block == 0))
                channels = outputs
        layers += [nn.ReLU(), nn.GroupNorm(GROUPS, channels), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)
        _draw_by_fan_in(self.head)


class Wrn40x4(Wrn16x4):
    """WRN-40-4: as `wrn-16-4`, with six blocks a stage; 8.96 million parameters for CIFAR-10."""

    depth = 40


class Wrn16x1(Wrn16x4):
    """WRN-16-1: as `wrn-16-4`, with 16, 32 and 64 channels, for a CPU."""

    width = 1


class Wrn10x1(Wrn16x1):
    """WRN-10-1: as `wrn-16-1`, with one block a stage, for a CPU."""

    depth = 10


def _draw_by_fan_in(layer: nn.Conv2d | nn.Linear) -> None:
    """Draw the layer's weights from N(0, 1 / fan-in), and set its bias to zero."""
    nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.weight[0].numel()))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
