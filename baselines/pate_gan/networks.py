"""The networks of `pate_gan`: discriminators side by side, and a generator that is told the label."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.nets.generators import Shape


class Perceptrons(nn.Module):
    """k discriminators side by side, each a hidden layer of ReLU, then a number for each label; nothing is shared.

    The label chooses the number that is read. Beside thousands of pixels, a label that is one input more of the hidden
    layer goes unheard: the gradient at an image is the same whatever its label, and no generator learns classes of it.

    Args:
        count: k.
        inputs: d, pixels of an image.
        classes: number of labels.
        width: hidden units of each.
    """

    def __init__(self, count: int, inputs: int, classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.first = nn.Parameter(torch.randn(count, inputs, width) * math.sqrt(2 / inputs))
        self.bias = nn.Parameter(torch.zeros(count, 1, width))
        self.last = nn.Parameter(torch.randn(count, width, classes) / math.sqrt(width))
        self.offset = nn.Parameter(torch.zeros(count, 1, classes))

    def forward(self, x: Tensor) -> Tensor:
        """(k, m, d + classes), or (m, d + classes) shared by all: images and one-hot labels, to (k, m) logits."""
        pixels, y = x[..., : -self.classes], x[..., -self.classes :]
        return (((pixels @ self.first + self.bias).relu() @ self.last + self.offset) * y).sum(2)

    @torch.no_grad()
    def votes(self, x: Tensor) -> Tensor:
        """(m, d + classes) to (m, 2) counts n_0, n_1; rows sum to k."""
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
