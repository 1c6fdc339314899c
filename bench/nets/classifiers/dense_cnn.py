"""clients of DENSE on 28x28 images: two convolutions with batch normalisation, one linear layer"""

from __future__ import annotations

from torch import nn

from bench.nets.small_net import SmallNet, at_least


class DenseNet(SmallNet):
    """The clients' and the server's network of DENSE (Zhang et al., NeurIPS 2022) on MNIST and Fashion-MNIST.

    5x5 convolutions of 16 and 32 channels, padding 2, each with batch normalisation, ReLU and 2x2 max-pooling; one
    linear layer: 29,034 parameters for 1x28x28 and 10 classes. L_BN of `dense` and `fedadi` uses its running
    statistics.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        at_least("dense-cnn", 4, height, width)
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 16, 5, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * (height // 4) * (width // 4), classes)
