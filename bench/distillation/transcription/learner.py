"""Student training on readings (log-likelihoods of responses) by Adam with a one-cycle learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bench.api import Advance, Context
from bench.data import to_float
from bench.data.affine import random_affine
from bench.distillation.training import descend
from bench.distillation.transcription.queries import AnnotatedImages

Loss = Callable[[Tensor, Tensor], Tensor]
"""Loss: (n, classes) logits of the student and (n, classes) readings -> scalar."""
Regulariser = Callable[[nn.Module, torch.Generator], Tensor]
"""Additional loss term per step, such as DGD's unsupervised energy E_u: (student in training, generator) -> scalar."""

LARGEST_WEIGHT = 5
"""Upper limit of the sampling weight of a rare class's reading, relative to the median."""


@dataclass(frozen=True)
class Schedule:
    """Training schedule of a student.

    Attributes:
        steps: total number of steps.
        gamma_s: largest learning rate of Adam; one cycle, a tenth of it rising.
        batch: readings per step.
        jitter: True = randomly rotate, scale, shear and shift stored images whenever they are reused.
        balanced: True = draw readings so that their most likely classes are equally frequent; False = pass over all
            readings before repeating any.
        flips: True = mirror half of the images, chosen again whenever they are reused.
    """

    steps: int
    gamma_s: float
    batch: int
    jitter: bool
    balanced: bool = False
    flips: bool = False


class StudentTrainer:
    """A student in training: one optimiser and one learning-rate schedule over all of its steps."""

    def __init__(
        self,
        schedule: Schedule,
        phi_s: nn.Module,
        ctx: Context,
        loss: Loss,
        rng: torch.Generator,
        regulariser: Regulariser | None = None,
    ) -> None:
        self._schedule, self._phi_s, self._ctx, self._rng = schedule, phi_s, ctx, rng
        self._loss, self._regulariser = loss, regulariser
        self._call = ctx.compiled(phi_s)
        self._optimizer = torch.optim.Adam(phi_s.parameters(), lr=schedule.gamma_s, betas=(0.9, 0.99))
        factor = partial(one_cycle, steps=schedule.steps)
        self._rate = torch.optim.lr_scheduler.LambdaLR(self._optimizer, factor)
        self._done = 0

    def train(self, annotated: AnnotatedImages, until: int, advance: Advance) -> None:
        """Train on stored readings until `until` steps have been taken in total."""
        self._phi_s.train()
        order = torch.empty(0, dtype=torch.int64, device=self._rng.device)
        while self._done < until:
            if len(order) == 0:  # the next pass, as long as the number of readings
                if self._schedule.balanced:
                    weights = class_balanced_weights(annotated.readings)
                    order = torch.multinomial(weights, len(annotated), replacement=True, generator=self._rng)
                else:
                    order = torch.randperm(len(annotated), generator=self._rng, device=self._rng.device)
            rows, order = order[: self._schedule.batch], order[self._schedule.batch :]
            images = to_float(annotated.images[rows])
            if self._schedule.jitter:
                images = random_affine(images, self._rng)
            if self._schedule.flips:
                images = flip_some(images, self._rng)
            with self._ctx.precision():
                loss = self._loss(self._call(images).float(), annotated.readings[rows])
                if self._regulariser is not None:
                    loss = loss + self._regulariser(self._phi_s, self._rng)
            descend(self._optimizer, loss)
            self._rate.step()
            self._done += 1
            advance(1)


def flip_some(images: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror each of (n, c, h, w) images with probability 1/2."""
    chosen = torch.rand(len(images), 1, 1, 1, generator=rng, device=images.device) < 0.5
    return torch.where(chosen, images.flip(3), images)


def class_balanced_weights(readings: Tensor) -> Tensor:
    """Return (n,) sampling weights for (n, classes) readings that make the most likely classes equally frequent.

    The weight is one over the number of the class's readings, limited to `LARGEST_WEIGHT` times the median weight, so
    that a few readings are not memorised.
    """
    likely = readings.argmax(1)
    weight = 1 / torch.bincount(likely, minlength=readings.shape[1])[likely].float()
    return weight.clamp_max(LARGEST_WEIGHT * float(weight.median()))


def one_cycle(step: int, steps: int) -> float:
    """Return the share of the largest learning rate in a step: linear increase for a tenth, then cosine decrease.

    Args:
        step: 0, 1, ...
        steps: total number of steps.
    """
    rise = max(steps // 10, 1)
    if step < rise:
        return (step + 1) / rise
    return (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1))) / 2
