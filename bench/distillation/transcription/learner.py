"""Student training on stored responses: Adam with a one-cycle rate, in passes over all responses or class-balanced."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bench.api import Advance, Context
from bench.data.affine import random_affine
from bench.distillation.transcription.questions import Answered, as_floats
from bench.distillation.updates import descend

Loss = Callable[[Tensor, Tensor], Tensor]
"""Loss: (n, classes) logits of the student and (n, classes) readings -> scalar."""
Energy = Callable[[nn.Module, torch.Generator], Tensor]
"""Additional loss term per step: (student in training, generator) -> scalar."""


RARE = 5
"""Upper limit of the sampling weight of a rare class's response, relative to the median."""


@dataclass(frozen=True)
class Schedule:
    """Training schedule of a student.

    Attributes:
        steps: total number.
        gamma_s: largest learning rate of Adam; one cycle, a tenth of it rising.
        batch: stored answers per step.
        jitter: True = randomly rotate, scale, shear and shift stored images whenever they are reused.
        balanced: True = draw responses so that the classes they name are equally frequent; False = pass over all
            responses before repeating any.
    """

    steps: int
    gamma_s: float
    batch: int
    jitter: bool
    balanced: bool = False


class Learner:
    """A student in training: one optimiser and one learning-rate schedule over all of its steps."""

    def __init__(
        self,
        schedule: Schedule,
        phi_s: nn.Module,
        ctx: Context,
        loss: Loss,
        rng: torch.Generator,
        energy: Energy | None = None,
    ) -> None:
        self._plan, self._phi_s, self._ctx, self._rng = schedule, phi_s, ctx, rng
        self._loss, self._energy = loss, energy
        self._call = ctx.compiled(phi_s)
        self._optimizer = torch.optim.Adam(phi_s.parameters(), lr=schedule.gamma_s, betas=(0.9, 0.99))
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, partial(one_cycle, steps=schedule.steps))
        self._done = 0

    def learn(self, answered: Answered, until: int, advance: Advance) -> None:
        """Train on stored responses until `until` steps have been taken in total."""
        self._phi_s.train()
        order = torch.empty(0, dtype=torch.int64, device=self._rng.device)
        while self._done < until:
            if len(order) == 0:
                order = self._order(answered)
            rows, order = order[: self._plan.batch], order[self._plan.batch :]
            images = as_floats(answered.images[rows])
            if self._plan.jitter:
                images = random_affine(images, self._rng)
            with self._ctx.precision():
                loss = self._loss(self._call(images).float(), answered.readings[rows])
                if self._energy is not None:
                    loss = loss + self._energy(self._phi_s, self._rng)
            descend(self._optimizer, loss)
            self._schedule.step()
            self._done += 1
            advance(1)

    def _order(self, answered: Answered) -> Tensor:
        """Return the row order of the next pass, as long as the number of responses."""
        if self._plan.balanced:
            weight = evenly(answered.readings)
            return torch.multinomial(weight, len(answered), replacement=True, generator=self._rng)
        return torch.randperm(len(answered), generator=self._rng, device=self._rng.device)


def evenly(readings: Tensor) -> Tensor:
    """Return (n,) sampling weights for (n, classes) readings that make the most likely classes equally frequent.

    The weight is one over the number of the class's responses, limited to `RARE` times the median weight, so that a few
    responses are not memorised.
    """
    named = readings.argmax(1)
    weight = 1 / torch.bincount(named, minlength=readings.shape[1])[named].float()
    return weight.clamp_max(RARE * float(weight.median()))


def one_cycle(step: int, steps: int) -> float:
    """Return step 0, 1, ...'s share of the largest learning rate: linear increase for a tenth, then cosine decrease."""
    rise = max(steps // 10, 1)
    if step < rise:
        return (step + 1) / rise
    return (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1))) / 2
