"""Sources of query images for a teacher: a data-free prior, or a generator trained on the student's outputs."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from bench import priors
from bench.api import Context, Teacher
from bench.distillation.generator_training import fixed
from bench.distillation.losses import activation_loss, balance_loss, confidence_loss
from bench.distillation.training import descend
from bench.nets.generators import UpsampleGenerator
from bench.nets.small_net import xavier

GENERATOR = "generator"
"""Name of the source `StudentTrainedGenerator`."""
LATENT, WIDTH = 100, 32
"""Length of its latents, and channels of its last hidden map."""
STEPS, BATCH, RATE = 30, 256, 1e-3
"""Generator steps between two rounds, their batch size and learning rate."""
IE_WEIGHT, NORM_WEIGHT = 5.0, 0.02
"""Weights of class balance and of activations in the generator's loss. The papers use 1, with which the unbounded
activations dominate the other two terms."""


class Source(Protocol):
    """A source of new query images; it has no access to private data."""

    def draw(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        """Draw (count, c, h, w) images in [0, 1]."""

    def learn(self, student: nn.Module) -> None:
        """Update the source with the student; called after each round of responses."""


def image_source(name: str, teacher: Teacher, ctx: Context) -> Source:
    """Return the source called `name`: a prior (`bench list priors`), "auto" for the data set's own, or "generator".

    Raises:
        BenchError: no such prior.
    """
    if name == GENERATOR:
        return StudentTrainedGenerator(teacher.shape, ctx)
    return PriorSource(priors.for_dataset(name, teacher.dataset))


def check_source(name: str, dataset: str) -> None:
    """Raise BenchError for an unknown source name."""
    if name != GENERATOR:
        priors.for_dataset(name, dataset)


class PriorSource:
    """A source that draws from a fixed prior."""

    def __init__(self, prior: priors.Prior) -> None:
        self._prior = prior

    def draw(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        """Draw images from the prior."""
        return self._prior.draw(count, shape, rng)

    def learn(self, student: nn.Module) -> None:
        """Do nothing, as the prior is fixed."""


class HalfAndHalf:
    """A mixture of two sources, whose images alternate."""

    def __init__(self, first: Source, second: Source) -> None:
        self._sources = first, second

    def draw(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        """Draw alternately from both sources; the first draws one more if the count is odd."""
        images = torch.empty(count, *shape, device=rng.device)
        for first, source in enumerate(self._sources[:count]):  # never request zero images from a source
            images[first::2] = source.draw(len(images[first::2]), shape, rng)
        return images

    def learn(self, student: nn.Module) -> None:
        """Update both sources."""
        for source in self._sources:
            source.learn(student)


class StudentTrainedGenerator:
    """An upsampling generator trained on the student's outputs for images of new latents (DPSD Eq. 8, DPDFD Eq. 5)."""

    def __init__(self, shape: tuple[int, int, int], ctx: Context) -> None:
        self._ctx, self._rng = ctx, ctx.generator("generator")
        self._phi_g = ctx.prepared(xavier(UpsampleGenerator(shape, LATENT, WIDTH)))
        self._optimizer = torch.optim.Adam(self._phi_g.parameters(), lr=RATE)

    @torch.no_grad()
    def draw(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        """Generate images from new latents."""
        z = torch.randn(count, LATENT, generator=rng, device=rng.device)
        return torch.cat([self._phi_g(part).float() for part in z.split(BATCH)])

    def learn(self, student: nn.Module) -> None:
        """Train the generator on L_g; the student does not change."""
        with fixed(student):
            for _ in range(STEPS):
                z = torch.randn(BATCH, LATENT, generator=self._rng, device=self._rng.device)
                with self._ctx.precision():
                    loss = generator_loss(student, self._phi_g(z))
                descend(self._optimizer, loss)


def generator_loss(student: nn.Module, images: Tensor) -> Tensor:
    """Return the generator's loss L_g = L_CE + 5 L_IE + 0.02 L_NORM (DPSD Eq. 8; DPDFD Eq. 5, with other weights).

    L_CE rewards confident outputs, L_IE equally frequent classes, L_NORM large features.
    """
    logits, features = student(images).float(), student.features(images).float()  # type: ignore[operator]
    loss = confidence_loss(logits) + IE_WEIGHT * balance_loss(logits, per_sample=False)
    return loss + NORM_WEIGHT * activation_loss(features, up=True)
