"""A decoder from confidence vectors to images, and its training.

The network and recipe of AMI (Yang, Zhang, Chang, Liang, CCS 2019).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from bench.api import Advance
from bench.nets.generators import check_square, doublings

CHUNK = 512
"""Vectors decoded at once."""


class Decoder(nn.Module):
    """Transposed convolutions from a vector to an image; batch normalisation and tanh between, a sigmoid at the end.

    The first makes a small map of the vector, `doublings(h)` of 4x4 and stride 2 double it to the image:

    | h      | start | doublings | channels            |
    |--------|-------|-----------|---------------------|
    | 16, 28 | 4, 7  | 2         | 2f, f, c            |
    | 32     | 4     | 3         | 4f, 2f, f, c        |
    | 64     | 4     | 4         | 8f, 4f, 2f, f, c    |

    Args:
        classes: length of a vector.
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        width: f, channels of the last hidden map.

    Raises:
        BenchError: a size it cannot make.
    """

    def __init__(self, classes: int, shape: tuple[int, int, int], width: int) -> None:
        check_square(shape)
        super().__init__()
        stages = doublings(shape[1])
        channels = width << (stages - 1)
        layers: list[nn.Module] = [nn.ConvTranspose2d(classes, channels, shape[1] >> stages)]
        for _ in range(stages - 1):
            layers += [nn.BatchNorm2d(channels), nn.Tanh(), _double(channels, channels // 2)]
            channels //= 2
        layers += [nn.BatchNorm2d(channels), nn.Tanh(), _double(channels, shape[0]), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)

    def forward(self, vectors: Tensor) -> Tensor:
        """(n, classes) to (n, c, h, w) in [0, 1]."""
        return self.layers(vectors[:, :, None, None])


def _double(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1)


def build_decoder(classes: int, shape: tuple[int, int, int], width: int, seed: int) -> Decoder:
    """A decoder, on the CPU, with weights that depend on `seed` alone; torch's own random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Decoder(classes, shape, width)


def train_decoder(
    decoder: nn.Module,
    pairs: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    *,
    epochs: int,
    batch: int,
    lr: float,
    rng: torch.Generator,
    advance: Advance,
) -> None:
    """Minimise the mean squared error over pixels in place, by Adam with AMSGrad; leave it in eval mode.

    Args:
        decoder: on the device of the pairs.
        pairs: (n, classes) vectors and their (n, c, h, w) images, n >= 1.
        held_out: the like, m rows. The epoch of smallest error on them is kept; the last one if m = 0.
        batch: pairs per step; the last step of an epoch has what is left.
        lr: step size; betas are 0.5 and 0.999.
        rng: on the pairs' device; orders them again in each epoch.
        advance: called with 1 after every epoch.
    """
    vectors, images = pairs
    adam = torch.optim.Adam(decoder.parameters(), lr=lr, betas=(0.5, 0.999), amsgrad=True)
    lowest, kept = math.inf, None
    for _ in range(epochs):
        decoder.train()
        for rows in torch.randperm(len(vectors), generator=rng, device=rng.device).split(batch):
            adam.zero_grad(set_to_none=True)
            mse_loss(decoder(vectors[rows]), images[rows]).backward()
            adam.step()
        decoder.eval()
        if len(held_out[0]):
            error = float(mse_loss(decode(decoder, held_out[0]), held_out[1]))
            if error < lowest:
                lowest, kept = error, {name: value.clone() for name, value in decoder.state_dict().items()}
        advance(1)
    if kept is not None:
        decoder.load_state_dict(kept)


@torch.no_grad()
def decode(decoder: nn.Module, vectors: Tensor) -> Tensor:
    """(n, c, h, w) float32 in [0, 1] of (n, classes) vectors, by a decoder in eval mode."""
    return torch.cat([decoder(part) for part in vectors.split(CHUNK)])
