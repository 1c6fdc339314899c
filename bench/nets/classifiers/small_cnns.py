"""Small convolutional classifiers: teachers, students and evaluators of the papers, and this project's own.

All take (c, h, w) images and a number of classes, and end in one linear layer (`SmallNet`). In a `Classifier` their
inputs are in [-1, 1].
"""

from __future__ import annotations

import math

from torch import nn

from bench.nets.small_net import Dropout, SmallNet, check_image_size, xavier

NETWORKS = {
    "convnet": "ConvNet",
    "datalens": "DataLensNet",
    "dense-cnn": "DenseNet",
    "dgd-cnn": "DgdNet",
    "evaluator-cnn": "EvaluatorNet",
    "evaluator-vgg": "EvaluatorVgg",
    "face-net": "FaceNet",
    "shard-cnn": "ShardNet",
    "strided-cnn": "StridedNet",
}
"""Network name -> class."""

Shape = tuple[int, int, int]

LARGEST_MAP = 16
"""Largest side of the last map; a larger one is average-pooled, so that dense layers do not grow with the image."""


class ConvNet(SmallNet):
    """ConvNet of data-set condensation (Zhao et al., ICLR 2021): convolution, group normalisation, average pooling.

    Chen et al. (PSG, NeurIPS 2022) use it for private sets: 3 blocks of 128 channels. A block is a 3x3 convolution,
    group normalisation of each channel, ReLU and 2x2 average pooling; a linear layer follows. Normalisation of single
    images, not of batches, gives each record its own gradient. The first convolution pads the image so that every
    pooling halves it exactly: 28x28 becomes 32x32 for three blocks. 317,706 parameters for 1x28x28 and 10 classes.

    Args:
        shape: (c, h, w), sides of at least 2^depth.
        classes: number of classes.
        width: channels of every block, at least 1.
        depth: number of blocks, at least 1.
        norm: True = with the normalisation, which has a scale and a shift per channel.

    Raises:
        BenchError: images that are too small.
    """

    def __init__(self, shape: Shape, classes: int, width: int = 128, depth: int = 3, norm: bool = True) -> None:
        super().__init__()
        smallest = 2**depth
        check_image_size("convnet", shape, smallest)
        channels, *sides = shape
        cells = [math.ceil(side / smallest) for side in sides]
        first_padding = [1 + math.ceil((cell * smallest - side) / 2) for cell, side in zip(cells, sides, strict=True)]
        layers: list[nn.Module] = []
        for block in range(depth):
            padding = (first_padding[0], first_padding[1]) if block == 0 else 1
            layers.append(nn.Conv2d(channels, width, 3, padding=padding))
            if norm:
                layers.append(nn.GroupNorm(width, width))
            layers += [nn.ReLU(), nn.AvgPool2d(2)]
            channels = width
        self.trunk = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Linear(width * cells[0] * cells[1], classes)


class DataLensNet(SmallNet):
    """Downstream classifier of DataLens (Wang et al., CCS 2021) and G-PATE: two convolutions, two dense layers.

    3x3 convolution 32, ReLU, 2x2 max-pooling, dropout 0.2; 3x3 convolution 64, ReLU, dropout 0.25; dense 64, ReLU;
    dense. 515,146 parameters for 1x28x28 and 10 classes. Convolutions are unpadded; weights start Glorot-uniform and
    biases at zero, the Keras defaults of the original. The original's inputs are in [0, 1], not [-1, 1].

    Args:
        shape: (c, h, w), sides of at least 12.
        classes: number of classes.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        check_image_size("datalens", shape, 12)
        channels, height, width = shape
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


class DenseNet(SmallNet):
    """Clients and server of DENSE (Zhang et al., NeurIPS 2022) on MNIST: two convolutions with batch normalisation.

    5x5 convolutions of 16 and 32 channels, padding 2, each with batch normalisation, ReLU and 2x2 max-pooling; one
    linear layer: 29,034 parameters for 1x28x28 and 10 classes. L_BN of `dense` and `fedadi` uses its running
    statistics.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        check_image_size("dense-cnn", shape, 4)
        channels, height, width = shape
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


class DgdNet(SmallNet):
    """Teacher and student of DGD (Ge et al., TIP 2023, section IV): two 3x3 convolutions of 64 and 128 channels.

    Stride 1, padding 1, ReLU and 2x2 max-pooling after each; one linear layer. Xavier's uniform weights.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        check_image_size("dgd-cnn", shape, 4)
        channels, height, width = shape
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


class ShardNet(SmallNet):
    """A small teacher for a few hundred images that trains on a CPU: two strided 5x5 convolutions.

    16 and 32 channels, stride 2, padding 2, ReLU after each; one linear layer. Xavier's uniform weights. A tenth of the
    multiplications of `dgd-cnn`.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        check_image_size("shard-cnn", shape, 4)
        channels, height, width = shape
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * ((height + 3) // 4) * ((width + 3) // 4), classes)
        xavier(self)


class StridedNet(SmallNet):
    """A student for synthetic drawings: three convolutions, the first of them strided, with batch normalisation.

    5x5 convolution 32 of stride 2, 3x3 convolution 48, 2x2 max-pooling, 3x3 convolution 64; linear. Each convolution
    keeps the side or halves it, and is followed by BatchNorm and ReLU. DP-SGD refuses BatchNorm: the network is for
    students that learn only from synthetic images, such as those of `bench.priors`, where it is more accurate than
    `datalens` at a seventh of the size (docs/true-epsilon.md). 74,074 parameters for 1x28x28 and 10 classes. Above
    64x64 the map is average-pooled to 16x16 before the linear layer.

    Args:
        shape: (c, h, w), sides of at least 8.
        classes: number of classes.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        check_image_size("strided-cnn", shape, 8)
        channels, height, width = shape
        cells = ((height + 1) // 2 // 2, (width + 1) // 2 // 2)
        grid = (min(cells[0], LARGEST_MAP), min(cells[1], LARGEST_MAP))
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 32, 5, stride=2, padding=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(48, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Identity() if grid == cells else nn.AdaptiveAvgPool2d(grid),
            nn.Flatten(),
        )
        self.head = nn.Linear(64 * grid[0] * grid[1], classes)


class EvaluatorNet(SmallNet):
    """The usual evaluator of attacks: the classifier of DataLens' data-set-specific inception score.

    5x5 convolution 32, BatchNorm, ReLU, 2x2 max-pooling; 5x5 convolution 64, 2x2 max-pooling; dense 1024, BatchNorm,
    ReLU, dropout 0.3; dense. Convolutions are padded by 2, so that small images keep their borders. Above 64x64 the map
    is average-pooled to 16x16 before the dense layer.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        check_image_size("evaluator-cnn", shape, 4)
        channels, height, width = shape
        grid = (min(height // 4, LARGEST_MAP), min(width // 4, LARGEST_MAP))
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


class EvaluatorVgg(SmallNet):
    """An evaluator for photographs: 3x3 convolutions after VGG, for teachers more accurate than `evaluator-cnn`.

    Five convolutions of 64 to 256 channels with BatchNorm and ReLU, without residual connections: another family than
    residual teachers (Simonyan and Zisserman, ICLR 2015, without their dense layers). 2x2 max-pooling after the first
    and the third, global average pooling, dropout 0.2; 1.1 million weights.

    Args:
        shape: (c, h, w), sides of at least 4.
        classes: number of classes.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        check_image_size("evaluator-vgg", shape, 4)
        channels = shape[0]
        layers: list[nn.Module] = []
        for number, width in enumerate((64, 128, 128, 256, 256)):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
            layers.append(nn.ReLU(inplace=True))
            if number in (0, 2):
                layers.append(nn.MaxPool2d(2))
            channels = width
        self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), Dropout(0.2))
        self.head = nn.Linear(channels, classes)


class FaceNet(SmallNet):
    """A residual network for faces of 64 pixels: a strided 3x3 convolution, and blocks of 32 to 256 channels.

    Each of the four residual blocks except the first halves the image; then global average pooling and dropout 0.2.
    1.3 million weights at 62 classes.

    Args:
        shape: (c, h, w), sides of at least 16.
        classes: number of classes.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        from torchvision.models.resnet import BasicBlock  # slow to import

        super().__init__()
        check_image_size("face-net", shape, 16)
        layers: list[nn.Module] = [nn.Conv2d(shape[0], 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32)]
        layers += [nn.ReLU(inplace=True), BasicBlock(32, 32)]
        for inputs, outputs in ((32, 64), (64, 128), (128, 256)):
            shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))
            layers.append(BasicBlock(inputs, outputs, stride=2, downsample=shortcut))
        self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), Dropout(0.2))
        self.head = nn.Linear(256, classes)
