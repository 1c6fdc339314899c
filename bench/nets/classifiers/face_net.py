"""a residual network for faces at 64 pixels: a stem that halves the image, then blocks of 32 to 256 channels"""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from bench.nets.dropout import Dropout
from bench.nets.small_net import SmallNet, at_least

WIDTHS = (32, 64, 128, 256)
DROPOUT = 0.2


class FaceNet(SmallNet):
    """A residual network: a 3x3 convolution of stride 2 to 32 channels, and four residual blocks.

    Each block except the first halves the image; then global average pooling and dropout; 1.3 million weights at 62
    classes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        c, height, width = shape
        at_least("face-net", 16, height, width)
        first = WIDTHS[0]
        layers: list[nn.Module] = [
            nn.Conv2d(c, first, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU(inplace=True),
        ]  # fmt: skip
        for before, after in zip((first, *WIDTHS[:-1]), WIDTHS, strict=True):
            layers.append(_block(before, after))
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), Dropout(DROPOUT)]
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTHS[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the (n, 256) penultimate features."""
        return self.trunk(x)


def _block(before: int, after: int) -> nn.Module:
    if before == after:
        return BasicBlock(before, after)
    smaller = nn.Sequential(nn.Conv2d(before, after, 1, stride=2, bias=False), nn.BatchNorm2d(after))
    return BasicBlock(before, after, stride=2, downsample=smaller)
