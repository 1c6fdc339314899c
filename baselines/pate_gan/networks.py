"""The networks of `pate_gan`: discriminators side by side, and a generator that is told the label."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.nets.generators import Shape


class Perceptrons(nn.Module):
    """k discriminators side by side, each a hidden layer of ReLU; nothing is shared.

    Args:
        count: k.
        inputs: d + classes.
        width: hidden units of each.
    """

    def __init__(self, count: int, inputs: int, width: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(count, inputs, width) * math.sqrt(2 / inputs))
        self.bias = nn.Parameter(torch.zeros(count, 1, width))
        self.last = nn.Parameter(torch.randn(count, width, 1) / math.sqrt(width))
        self.offset = nn.Parameter(torch.zeros(count, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(k, m, inputs), or (m, inputs) shared by all, to (k, m) logits of being real."""
        return ((x @ self.first + self.bias).relu() @ self.last + self.offset).squeeze(2)

    @torch.no_grad()
    def votes(self, x: Tensor) -> Tensor:
        """(m, inputs) to (m, 2) counts n_0, n_1; rows sum to k."""
        real = (self(x) > 0).sum(0)
        return torch.stack([len(self.first) - real, real], 1)


class LabelledPerceptron(nn.Module):
    """The generator: two hidden layers of tanh, sigmoid pixels, of z and a one-hot label."""

    def __init__(self, shape: Shape, classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.body = nn.Sequential(
            nn.Linear(latent + classes, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, math.prod(shape)), nn.Sigmoid(), nn.Unflatten(1, shape),
        )  # fmt: skip

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """(n, latent) and (n,) int64 to (n, c, h, w) in [0, 1]."""
        return self.body(torch.cat([z, F.one_hot(labels, self.classes).to(z.dtype)], 1))
