"""Small networks of the literature: DataLens' downstream classifier and its scorer, and teachers for small shards."""

from __future__ import annotations

from torch import Tensor, nn

from bench.errors import BenchError

EVALUATOR_GRID = 16


class SmallNet(nn.Module):
    """A classifier that ends in one linear layer: `forward(x) == head(features(x))`.

    Attributes:
        trunk: (n, c, h, w) to (n, d).
        head: (n, d) to (n, classes).
    """

    trunk: nn.Sequential
    head: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """(n, d), the input of the last linear layer."""
        return self.trunk(x)

    def forward(self, x: Tensor) -> Tensor:
        """(n, classes) logits."""
        return self.head(self.features(x))


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
        _at_least("datalens", 12, height, width)
        flat = 64 * ((height - 2) // 2 - 2) * ((width - 2) // 2 - 2)
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(flat, 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, classes)
        _xavier(self)


class EvaluatorNet(SmallNet):
    """The classifier that DataLens computes its data-set-specific inception score with.

    5x5 convolution 32, BatchNorm, ReLU, 2x2 max-pooling; 5x5 convolution 64, 2x2 max-pooling; dense 1024, BatchNorm,
    ReLU, dropout 0.3; dense. Convolutions are padded by 2, so that small images keep their borders. Above 64x64 the
    map is average-pooled to 16x16 before the dense layer, which otherwise would grow with the image.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        _at_least("evaluator-cnn", 4, height, width)
        grid = (min(height // 4, EVALUATOR_GRID), min(width // 4, EVALUATOR_GRID))
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
            nn.Dropout(0.3),
        )
        self.head = nn.Linear(1024, classes)


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
        _at_least("dgd-cnn", 4, height, width)
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
        _xavier(self)


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
        _at_least("shard-cnn", 4, height, width)
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * ((height + 3) // 4) * ((width + 3) // 4), classes)
        _xavier(self)


def _at_least(name: str, side: int, height: int, width: int) -> None:
    if min(height, width) < side:
        raise BenchError(
            f"the network {name} takes images of at least {side}x{side}, not {height}x{width}: use another one"
        )


def _xavier(net: nn.Module) -> None:
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
