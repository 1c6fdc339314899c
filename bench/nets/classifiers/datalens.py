"""the downstream classifier of DataLens and G-PATE: two convolutions, two dense layers"""

from __future__ import annotations

from torch import nn

from bench.nets.dropout import Dropout
from bench.nets.initialise import xavier
from bench.nets.small_net import SmallNet, at_least


class DataLensNet(SmallNet):
    """The downstream classifier of DataLens (Wang et al., CCS 2021) and G-PATE.

    3x3 convolution 32, ReLU, 2x2 max-pooling, dropout 0.2; 3x3 convolution 64, ReLU, dropout 0.25; dense 64, ReLU;
    dense. 515,146 parameters for 1x28x28 and 10 classes. Convolutions are unpadded; weights start Glorot-uniform and
    biases at zero, the Keras defaults of the original. In a `Classifier` it sees [-1, 1], the original sees [0, 1].

    Args:
        shape: (c, h, w), sides of at least 12.
        classes: number of classes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        at_least("datalens", 12, height, width)
        flat = 64 * ((height - 2) // 2 - 2) * ((width - 2) // 2 - 2)
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            Dropout(0.2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            Dropout(0.25),
            nn.Flatten(),
            nn.Linear(flat, 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, classes)
        xavier(self)
