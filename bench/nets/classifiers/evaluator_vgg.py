"""a judge for photographs: plain 3x3 convolutions after VGG, for teachers that the usual judge cannot follow"""

from __future__ import annotations

from torch import nn

from bench.nets.dropout import Dropout
from bench.nets.small_net import SmallNet, at_least

WIDTHS = (64, 128, 128, 256, 256)
POOLED = (0, 2)
"""Indices of the convolutions that are followed by max-pooling."""
DROPOUT = 0.2


class EvaluatorVgg(SmallNet):
    """Five 3x3 convolutions with BatchNorm and ReLU, of 64 to 256 channels, without residual connections.

    2x2 max-pooling after the first and the third, global average pooling, dropout; 1.1 million weights. It is thus of
    another family than residual teachers (Simonyan and Zisserman, ICLR 2015, without their dense layers).

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        at_least("evaluator-vgg", 4, height, width)
        layers: list[nn.Module] = []
        for place, wide in enumerate(WIDTHS):
            layers += [nn.Conv2d(channels, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
            if place in POOLED:
                layers.append(nn.MaxPool2d(2))
            channels = wide
        self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), Dropout(DROPOUT))
        self.head = nn.Linear(channels, classes)
