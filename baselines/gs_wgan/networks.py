"""The networks of `gs_wgan`, after Chen, Orekondy and Fritz (NeurIPS 2020): spectrally normalised, label-conditional.

The generator's residual blocks double a 4x4 square until it covers the image, then it is cropped: 4, 8, 16, 32 for 28
pixels. The critic has three 5x5 convolutions of stride 2 and a projection on the label's embedding (Miyato and Koyama,
2018). The images of a batch do not influence each other.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import remove_parametrizations

from bench.nets.generators import Shape

START, BORDER = 4, 2


def pixel_norm(x: Tensor) -> Tensor:
    """Divide every pixel's channels by their root mean square."""
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-8)


class Block(nn.Module):
    """Residual block from (n, d, h, w) to (n, d, 2h, 2w): upsampling, two 3x3 convolutions, and a 1x1 shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = spectral_norm(nn.Conv2d(channels, channels, 3, padding=1))
        self.second = spectral_norm(nn.Conv2d(channels, channels, 3, padding=1))
        self.around = spectral_norm(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, d, h, w) to (n, d, 2h, 2w)."""
        inner = self.first(F.interpolate(pixel_norm(x), scale_factor=2))
        inner = self.second(F.relu(pixel_norm(inner)))
        return inner + self.around(F.interpolate(x, scale_factor=2))


class ResnetGenerator(nn.Module):
    """Generator G(z, y) of images in [0, 1] of any size.

    Args:
        shape: (c, h, w) of the images.
        classes: number of labels.
        latent: length of z.
        width: m; all maps have 4m channels.
    """

    def __init__(self, shape: Shape, classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.classes, self.size, self.channels = classes, shape[1:], 4 * width
        blocks, covered = 0, START
        while covered - BORDER < max(self.size):
            blocks, covered = blocks + 1, 2 * covered
        self.start = spectral_norm(nn.Linear(latent + classes, self.channels * START * START))
        self.blocks = nn.Sequential(*[Block(self.channels) for _ in range(blocks)])
        self.last = spectral_norm(nn.Conv2d(self.channels, shape[0], 3))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Map (n, latent) latents and (n,) int64 labels to (n, c, h, w) images in [0, 1]."""
        seen = torch.cat([z, F.one_hot(y, self.classes).to(z.dtype)], 1)
        x = pixel_norm(F.relu(self.start(seen).view(-1, self.channels, START, START)))
        return torch.sigmoid(self.last(self.blocks(x)))[:, :, : self.size[0], : self.size[1]]


class ProjectionCritic(nn.Module):
    """f(x, y) = w h(x) + <embedding of y, h(x)>, h of three convolutions with d, 2d and 4d channels."""

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        c, h, w = shape
        sizes = [c, width, 2 * width, 4 * width]
        self.layers = nn.ModuleList(spectral_norm(nn.Conv2d(a, b, 5, stride=2, padding=2)) for a, b in pairwise(sizes))
        length = sizes[-1] * -(-h // 8) * -(-w // 8)
        self.plain = spectral_norm(nn.Linear(length, 1))
        self.of_label = spectral_norm(nn.Embedding(classes, length))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Map (n, c, h, w) images and (n,) int64 labels to (n,) scores; higher means more real."""
        for layer in self.layers:
            x = F.relu(layer(x))
        x = x.flatten(1)
        return self.plain(x).flatten() + (self.of_label(y) * x).sum(1)


def frozen(network: nn.Module) -> nn.Module:
    """Set the network to eval mode and replace its spectrally normalised weights by plain ones, in place."""
    network.eval()
    for module in network.modules():
        if hasattr(module, "parametrizations"):
            remove_parametrizations(module, "weight")
    return network
