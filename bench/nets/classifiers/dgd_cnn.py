"""teacher and student of DGD: two convolutions of 64 and 128 channels"""

from __future__ import annotations

from torch import nn

from bench.nets.initialise import xavier
from bench.nets.small_net import SmallNet, at_least


class DgdNet(SmallNet):
    """Teacher and student of DGD (Ge et al., TIP 2023, section IV): two 3x3 convolutions of 64 and 128 channels.

    Stride 1, padding 1, ReLU and 2x2 max-pooling after each; one linear layer. Xavier's uniform weights.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        at_least("dgd-cnn", 4, height, width)
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(128 * (height // 4) * (width // 4), classes)
        xavier(self)
