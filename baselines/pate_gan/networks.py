"""The networks of `pate_gan`: a stack of independent discriminators, and a generator conditioned on the label."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.nets.generators import Shape


class Perceptrons(nn.Module):
    """k independent discriminators, each with one hidden ReLU layer and one output logit per label.

    The label selects the logit. As a further input of the hidden layer, next to thousands of pixels, it would have no
    effect: the gradient with respect to an image would hardly depend on its label, and the generator could not learn
    classes.

    Args:
        count: k.
        inputs: d, number of pixels of an image.
        classes: number of labels.
        width: hidden units of each discriminator.
    """

    def __init__(self, count: int, inputs: int, classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.first = nn.Parameter(torch.randn(count, inputs, width) * math.sqrt(2 / inputs))
        self.bias = nn.Parameter(torch.zeros(count, 1, width))
        self.last = nn.Parameter(torch.randn(count, width, classes) / math.sqrt(width))
        self.offset = nn.Parameter(torch.zeros(count, 1, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return (k, m) logits of images with one-hot labels, (k, m, d + classes), or (m, d + classes) for all."""
        pixels, y = x[..., : -self.classes], x[..., -self.classes :]
        return (((pixels @ self.first + self.bias).relu() @ self.last + self.offset) * y).sum(2)

    @torch.no_grad()
    def votes(self, x: Tensor) -> Tensor:
        """Count the votes for generated, n_0, and real, n_1: (m, d + classes) to (m, 2); rows sum to k."""
        real = (self(x) > 0).sum(0)
        return torch.stack([len(self.first) - real, real], 1)


class LabelledPerceptron(nn.Module):
    """Generator of z and a one-hot label: two hidden tanh layers and sigmoid pixels."""

    def __init__(self, shape: Shape, classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.body = nn.Sequential(
            nn.Linear(latent + classes, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, math.prod(shape)), nn.Sigmoid(), nn.Unflatten(1, shape),
        )  # fmt: skip

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Map (n, latent) latents and (n,) int64 labels to (n, c, h, w) images in [0, 1]."""
        return self.body(torch.cat([z, F.one_hot(labels, self.classes).to(z.dtype)], 1))
