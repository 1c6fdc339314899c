"""Parts of GAN training: an optimiser step, batches, and the losses of a GAN with a logistic discriminator.

The discriminator predicts the probability of a real image, D(x) = sigmoid of a logit (Goodfellow et al., NeurIPS 2014).
All losses are batch means, to be minimised. In a GAN with many private discriminators (PATE-GAN, G-PATE, DataLens) each
teacher draws its batches from its own part of the private records.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bench import data
from bench.data import to_float
from bench.privacy.noise import Noise, Source

DEFAULT_TEACHERS = 1000


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Run one step of `optimiser` on `loss`, with gradients only for the optimiser's own parameters.

    `loss.backward()` would also write gradients into the target and into the other network of a GAN.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimiser.step()


def shuffled_batches(n: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield (size,) indices of shuffled passes over n images, endlessly.

    The incomplete last batch of a pass is dropped.
    """
    while True:
        order = torch.randperm(n, generator=rng, device=rng.device)
        yield from order[: n - n % size].split(size)


def source_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Return the discriminator's loss -mean log D(x) - mean log(1 - D(G(z))).

    Args:
        real, fake: (n,) logits of real and of generated images.
    """
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def minimax_loss(fake: Tensor) -> Tensor:
    """Return the generator's loss in the minimax game, mean log(1 - D(G(z))), from (n,) logits."""
    return -F.softplus(fake).mean()


def non_saturating_loss(fake: Tensor) -> Tensor:
    """Return the generator's usual, non-saturating loss, -mean log D(G(z)), from (n,) logits."""
    return F.softplus(-fake).mean()


def teacher_count(teachers: int, dataset: str) -> int:
    """Return the number of teachers: the option's value or, for 0, the data set's default (48 on digits), else 1000.

    The number is public: it is never computed from the private records.
    """
    return teachers or data.facts(dataset).teachers or DEFAULT_TEACHERS


class TeacherBatches:
    """Private records grouped by teacher; calling it draws a batch for every teacher from that teacher's part only.

    Args:
        images: (n, c, h, w) uint8.
        labels: (n,) int64.
        classes: number of labels.
        parts: k disjoint index arrays, perhaps empty.
    """

    def __init__(self, images: Tensor, labels: Tensor, classes: int, parts: list[NDArray[np.int64]]) -> None:
        self.images, self.labels, self.classes = images, labels, classes
        rows = [torch.from_numpy(part) for part in parts]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True) if max(map(len, rows)) else torch.zeros(len(rows), 1)
        self.rows = padded.long().to(images.device)
        self.sizes = torch.tensor([len(part) for part in parts], device=images.device)

    def draw(self, count: int, source: Source) -> Tensor:
        """Draw (k, count) int64 record indices, row i uniform over part i with replacement.

        The row of an empty part contains arbitrary indices, which must not be used.
        """
        u = Noise.of(source).uniform(len(self.rows), count)
        return self.rows.gather(1, (u * self.sizes[:, None]).long())

    def records(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return (..., c, h, w) pixels in [0, 1] and (..., classes) one-hot labels of (...) int64 records."""
        return to_float(self.images[chosen]), F.one_hot(self.labels[chosen], self.classes).float()

    def __call__(self, count: int, source: Source) -> Tensor:
        """Draw as `draw`; return (k, count, d + classes) pixels with one-hot labels, zeros for an empty part."""
        pixels, labels = self.records(self.draw(count, source))
        rows = torch.cat([pixels.flatten(2), labels], 2)
        return torch.where((self.sizes > 0)[:, None, None], rows, 0.0)
