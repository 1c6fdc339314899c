"""The generator of `dp_sinkhorn`, after the released code of Cao et al. (NeurIPS 2021)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.nets.generators import Shape, check_square, doublings


class SinkhornGenerator(nn.Module):
    """A transposed convolution to a small map, one for each doubling, a convolution; batch normalisation, leaky ReLU.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64. 28x28: maps of 7, 14 and 28 pixels.
        classes: number of labels.
        latent: length of z.
        embedding: length of a label's embedding.
        width: channels of the largest map; each smaller map has twice as many.

    Raises:
        BenchError: a size it cannot make.
    """

    def __init__(self, shape: Shape, classes: int, latent: int, embedding: int, width: int) -> None:
        check_square(shape)
        super().__init__()
        self.embed = nn.Embedding(classes, embedding)
        stages = doublings(shape[1])
        channels = width << stages
        layers: list[nn.Module] = [nn.ConvTranspose2d(latent + embedding, channels, shape[1] >> stages, bias=False)]
        for _ in range(stages):
            layers += [nn.BatchNorm2d(channels), nn.LeakyReLU(0.2)]
            layers.append(nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1, bias=False))
            channels //= 2
        self.grow = nn.Sequential(
            *layers, nn.BatchNorm2d(channels), nn.LeakyReLU(0.2), nn.Conv2d(channels, shape[0], 3, padding=1), nn.Tanh()
        )

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """(n, latent) and (n,) int64 to (n, c, h, w) in [0, 1]."""
        return (self.grow(torch.cat([z, self.embed(labels)], 1)[:, :, None, None]) + 1) / 2


def uniform_latents(length: int) -> Callable[[int, torch.Generator], Tensor]:
    """z uniform in [0, 1]^length."""
    return lambda count, rng: torch.rand(count, length, generator=rng, device=rng.device)
