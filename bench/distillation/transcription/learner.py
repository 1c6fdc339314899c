"""How a student learns from stored answers: Adam in one cycle, every answer once before any twice or classes evenly."""

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
"""The student's (n, classes) logits and (n, classes) readings to a scalar."""
Energy = Callable[[nn.Module, torch.Generator], Tensor]
"""Of a student that is being trained, a scalar that is added to a step's loss."""


RARE = 5
"""How much more often than most an answer of a rare class is seen, at the most."""


@dataclass(frozen=True)
class Schedule:
    """How long, how fast, and from what a student learns.

    Attributes:
        steps: in all.
        gamma_s: largest learning rate of Adam; one cycle, a tenth of it rising.
        batch: stored answers per step.
        jitter: whether stored images are turned, scaled, sheared and moved a little whenever they are seen again.
        balanced: whether answers are drawn so that the classes they name are seen as often as each other, instead of
            every answer once before any twice.
    """

    steps: int
    gamma_s: float
    batch: int
    jitter: bool
    balanced: bool = False


class Learner:
    """A student's steps: one optimiser and one schedule over the whole of them."""

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
        """Steps on stored answers until there have been `until` in all."""
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
        """Rows of the next pass, as many as there are answers."""
        if self._plan.balanced:
            weight = evenly(answered.readings)
            return torch.multinomial(weight, len(answered), replacement=True, generator=self._rng)
        return torch.randperm(len(answered), generator=self._rng, device=self._rng.device)


def evenly(readings: Tensor) -> Tensor:
    """(n,) weights of (n, classes) readings, by which the likeliest classes are drawn as often as each other.

    One over the number of answers of the class, but at most `RARE` times the median weight: few answers are not to be
    learnt by heart.
    """
    named = readings.argmax(1)
    weight = 1 / torch.bincount(named, minlength=readings.shape[1])[named].float()
    return weight.clamp_max(RARE * float(weight.median()))


def one_cycle(step: int, steps: int) -> float:
    """The share of the largest rate that step 0, 1, ... takes: up in a line for a tenth, then down along a cosine."""
    rise = max(steps // 10, 1)
    if step < rise:
        return (step + 1) / rise
    return (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1))) / 2
