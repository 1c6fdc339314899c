"""The loop of the working variants (DPSD, DP-DFD, DPDFD, FedDPSD): ask, read by likelihood, learn, ask better.

    for every round:
        candidates = fresh images of a prior and children of answered images, `choose` for each question
        questions  = those of the candidates that the student chooses: balanced, unsure ones more often
        readings   = what the teacher's noisy answers say, asked once for each question
        the student descends the loss of all readings so far

Nothing in here asks a teacher but `ask`, which the method gives; the prior knows no data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bench import nets
from bench.api import Advance, Context, Teacher
from bench.data.affine import random_affine
from bench.distillation.image_source import Source
from bench.distillation.likelihoods import likelihood_loss
from bench.distillation.questions import Answered, as_bytes, as_floats, chosen, drawn_children, logits_of
from bench.distillation.transcription_options import TranscriptionOptions
from bench.distillation.updates import descend
from bench.nets.initialise import xavier

Ask = Callable[[Tensor, Tensor], Tensor]
"""(n, c, h, w) float images and the student's (n, classes) logits to (n, classes) readings of the answers."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""The student's (n, classes) logits and (n, classes) readings to a scalar."""


FEW = 4096
"""Below so many stored answers a student learns them by heart unless they are jittered; above, jitter harms."""
PER_ROUND, FEWEST_ROUNDS = 5000, 4
FIRST_STEPS, QUESTIONS_PER_STEP = 300, 40
UNSURE = 0.5


@dataclass(frozen=True)
class Transcription:
    """Settings of the loop.

    Attributes:
        questions: N, images asked about, once each.
        rounds: of equal numbers of questions.
        choose: candidates for each question, >= 1; 1 = no choice.
        evolve: share of children among the candidates, in [0, 1); the first round has none.
        unsure: exponent of the student's doubt where it chooses, >= 0.
        steps: of the student, in all.
        gamma_s: largest learning rate of the student's Adam; one cycle, a tenth of it rising.
        jitter: whether stored images are turned, scaled, sheared and moved a little whenever they are seen again.
        replay: whether all answers are learnt from, or the last round's alone.
        batch: stored answers per step.
        early: share of the steps that is taken between rounds; the rest, at a falling rate, follows the last one.
    """

    questions: int
    rounds: int
    choose: float
    evolve: float
    unsure: float
    steps: int
    gamma_s: float
    jitter: bool
    replay: bool = True
    batch: int = 256
    early: float = 0.8

    @classmethod
    def of(cls, options: TranscriptionOptions, questions: int) -> Transcription:
        """The settings of a method's options, where 0 and "auto" depend on the number of questions."""
        return cls(
            questions=questions,
            rounds=options.rounds or max(FEWEST_ROUNDS, questions // PER_ROUND),
            choose=options.choose,
            evolve=options.evolve,
            unsure=UNSURE,
            steps=options.student_steps or FIRST_STEPS + questions // QUESTIONS_PER_STEP,
            gamma_s=options.gamma_s,
            jitter=questions < FEW if options.jitter == "auto" else options.jitter == "on",
            replay=options.replay,
        )

    def train(
        self,
        teacher: Teacher,
        student: str,
        source: Source,
        ask: Ask,
        ctx: Context,
        title: str,
        loss: Loss = likelihood_loss,
    ) -> tuple[nn.Module, Tensor]:
        """The student, in evaluation mode, and (n, c, h, w) images of the last round, in [0, 1].

        Of the teacher, only what is public of its data is used here.

        Args:
            source: of fresh images.
            ask: asked about every question once.
            loss: of a batch of stored readings.
        """
        shape, rng = teacher.shape, ctx.generator("transcription")
        phi_s = ctx.prepared(xavier(nets.build(student, shape, teacher.classes)))
        learner = _Learner(self, phi_s, ctx, loss, rng)
        answered = Answered(shape, teacher.classes, ctx.device)
        with ctx.track(f"{title}: converting", self.steps) as advance:
            for size in self._sizes():
                questions = self._questions(answered, phi_s, source, shape, size, rng)
                logits = logits_of(phi_s, questions)
                parts = zip(questions.split(self.batch), logits.split(self.batch), strict=True)
                answered.add(questions, torch.cat([ask(as_floats(part), ours) for part, ours in parts]))
                until = self.steps
                if len(answered) < self.questions:
                    until = int(self.early * self.steps * len(answered) / self.questions)
                learner.learn(answered if self.replay else answered.newest(size), until, advance)
                source.learn(phi_s)
        return phi_s.eval(), as_floats(answered.images[-size:])

    def _sizes(self) -> list[int]:
        """Questions of each round."""
        rounds = min(self.rounds, self.questions)
        edges = [self.questions * i // rounds for i in range(rounds + 1)]
        return [after - before for before, after in itertools.pairwise(edges)]

    @torch.no_grad()
    def _questions(
        self,
        answered: Answered,
        phi_s: nn.Module,
        source: Source,
        shape: tuple[int, int, int],
        size: int,
        rng: torch.Generator,
    ) -> Tensor:
        """(size, c, h, w) uint8: the round's questions."""
        if not len(answered):
            return as_bytes(source.draw(size, shape, rng))
        candidates = math.ceil(size * self.choose)
        old = int(candidates * self.evolve)
        images = as_bytes(source.draw(candidates - old, shape, rng))
        if old:
            seen = (logits_of(phi_s, answered.images).log_softmax(1) + answered.readings).argmax(1)
            images = torch.cat([images, drawn_children(answered, seen, old, rng)])
        if candidates == size:
            return images
        return images[chosen(images, logits_of(phi_s, images), size, self.unsure, rng)]


def one_cycle(step: int, steps: int) -> float:
    """The share of the largest rate that step 0, 1, ... takes: up in a line for a tenth, then down along a cosine."""
    rise = max(steps // 10, 1)
    if step < rise:
        return (step + 1) / rise
    return (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1))) / 2


class _Learner:
    """The student's steps: one optimiser and one schedule over the whole run."""

    def __init__(
        self, settings: Transcription, phi_s: nn.Module, ctx: Context, loss: Loss, rng: torch.Generator
    ) -> None:
        self._settings, self._phi_s, self._ctx, self._loss, self._rng = settings, phi_s, ctx, loss, rng
        self._call = ctx.compiled(phi_s)
        self._optimizer = torch.optim.Adam(phi_s.parameters(), lr=settings.gamma_s, betas=(0.9, 0.99))
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, partial(one_cycle, steps=settings.steps))
        self._done = 0

    def learn(self, answered: Answered, until: int, advance: Advance) -> None:
        """Steps on stored answers until there have been `until` in all."""
        self._phi_s.train()
        order = torch.empty(0, dtype=torch.int64, device=self._rng.device)
        while self._done < until:
            if len(order) == 0:  # every answer once before any twice
                order = torch.randperm(len(answered), generator=self._rng, device=self._rng.device)
            rows, order = order[: self._settings.batch], order[self._settings.batch :]
            images = as_floats(answered.images[rows])
            if self._settings.jitter:
                images = random_affine(images, self._rng)
            with self._ctx.precision():
                loss = self._loss(self._call(images).float(), answered.readings[rows])
            descend(self._optimizer, loss)
            self._schedule.step()
            self._done += 1
            advance(1)
