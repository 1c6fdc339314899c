"""the network of DataLens' inception score, which judges attacks here"""

from __future__ import annotations

from torch import nn

from bench.nets.dropout import Dropout
from bench.nets.small_net import SmallNet, at_least

GRID = 16


class EvaluatorNet(SmallNet):
    """The classifier of DataLens' data-set-specific inception score.

    5x5 convolution 32, BatchNorm, ReLU, 2x2 max-pooling; 5x5 convolution 64, 2x2 max-pooling; dense 1024, BatchNorm,
    ReLU, dropout 0.3; dense. Convolutions are padded by 2, so that small images keep their borders. Above 64x64 the map
    is average-pooled to 16x16 before the dense layer, which would otherwise grow with the image.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        at_least("evaluator-cnn", 4, height, width)
        grid = (min(height // 4, GRID), min(width // 4, GRID))
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.MaxPool2d(2),
            nn.Identity() if grid == (height // 4, width // 4) else nn.AdaptiveAvgPool2d(grid),
            nn.Flatten(),
            nn.Linear(64 * grid[0] * grid[1], 1024),
            nn.BatchNorm1d(1024),
            nn.ReLU(),
            Dropout(0.3),
        )
        self.head = nn.Linear(1024, classes)
