"""a small teacher for a few hundred images: two strided convolutions"""

from __future__ import annotations

from torch import nn

from bench.nets.initialise import xavier
from bench.nets.small_net import SmallNet, at_least


class ShardNet(SmallNet):
    """A teacher for a few hundred images that trains on a CPU: two strided 5x5 convolutions of 16 and 32 channels.

    Stride 2, padding 2, ReLU after each; one linear layer. Xavier's uniform weights. A tenth of the multiplications of
    `dgd-cnn`.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        at_least("shard-cnn", 4, height, width)
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * ((height + 3) // 4) * ((width + 3) // 4), classes)
        xavier(self)
