"""the ConvNet of data-set condensation: blocks of convolution, normalisation of each image and pooling

Zhao et al. (ICLR 2021) drew it for gradient matching, Chen et al. (NeurIPS 2022) took it for private sets: 3 blocks of
128 channels. Every image is normalised alone, channel by channel, so that records have gradients of their own.
"""

from __future__ import annotations

import math

from torch import nn

from bench.errors import BenchError
from bench.nets.small_net import SmallNet


class ConvNet(SmallNet):
    """`depth` blocks of 3x3 convolution, per-channel group normalisation, ReLU and average-pooling; one linear layer.

    The first convolution pads the image so that every pooling halves it exactly: 28x28 becomes 32x32 for three blocks.
    317,706 parameters for 1x28x28 and 10 classes.

    Args:
        shape: (c, h, w), sides of at least 2^depth.
        classes: number of classes.
        width: channels of every block, at least 1.
        depth: blocks, at least 1.
        norm: True = with the normalisation, which has a scale and a shift per channel.

    Raises:
        BenchError: image shapes it cannot take.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: int, width: int = 128, depth: int = 3, norm: bool = True
    ) -> None:
        super().__init__()
        channels, height, width_of_image = shape
        smallest = 2**depth
        if min(height, width_of_image) < smallest:
            raise BenchError(
                f"the network convnet takes images of at least {smallest}x{smallest}, not {height}x{width_of_image}: "
                "use another one, or a smaller depth"
            )
        cells = [math.ceil(side / smallest) for side in (height, width_of_image)]
        padding = tuple(
            1 + math.ceil((cell * smallest - side) / 2)
            for cell, side in zip(cells, (height, width_of_image), strict=True)
        )
        layers: list[nn.Module] = []
        for block in range(depth):
            layers.append(nn.Conv2d(channels, width, 3, padding=(padding[0], padding[1]) if block == 0 else 1))
            if norm:
                layers.append(nn.GroupNorm(width, width))
            layers += [nn.ReLU(), nn.AvgPool2d(2)]
            channels = width
        self.trunk = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Linear(width * cells[0] * cells[1], classes)
