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
"""Batch size of decoding."""


class Decoder(nn.Module):
    """Transposed convolutions from a vector to an image; batch normalisation and tanh between, a sigmoid at the end.

    The first one makes a small map of the vector; `doublings(h)` more, 4x4 of stride 2, double it to the image:

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
        BenchError: the image size is not supported.
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
        """Map (n, classes) to (n, c, h, w) in [0, 1]."""
        return self.layers(vectors[:, :, None, None])


def _double(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1)


def build_decoder(classes: int, shape: tuple[int, int, int], width: int, seed: int) -> Decoder:
    """Build a decoder on the CPU; its weights depend only on `seed`, and torch's global random state is unchanged."""
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
    """Train a decoder in place by Adam with AMSGrad on the mean squared error of pixels; leave it in eval mode.

    Args:
        decoder: on the device of the pairs.
        pairs: (n, classes) vectors and their (n, c, h, w) images, n >= 1.
        held_out: m more pairs. The weights of the epoch with the smallest error on them are kept (m = 0: last).
        batch: pairs per step; the last batch of an epoch may be smaller.
        lr: learning rate; betas are 0.5 and 0.999.
        rng: on the pairs' device; shuffles them in each epoch.
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
    """Decode (n, classes) vectors to (n, c, h, w) float32 in [0, 1], by a decoder in eval mode."""
    return torch.cat([decoder(part) for part in vectors.split(CHUNK)])
