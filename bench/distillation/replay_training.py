"""How the working variants of DPSD, DPDFD and FedDPSD train: every answer is kept and replayed.

Answers are few and cost privacy, steps on stored answers cost none: between answered batches the student takes hundreds
of steps on all answers so far, augmented at random, and the generator some on the student's own view of fresh images.
Nothing in here asks a teacher.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from bench import nets
from bench.api import Advance, Context, Teacher
from bench.data.affine import random_affine
from bench.distillation.generator_training import make_generator
from bench.distillation.losses import activation_loss, balance_loss, confidence_loss
from bench.distillation.replay import Answers, balanced
from bench.distillation.updates import descend
from bench.nets.initialise import xavier

Annotate = Callable[[Tensor, nn.Module, int], Tensor]
"""(b, c, h, w) images, the student and the batch's number from 1 on, to (b, classes) targets."""

IE_WEIGHT, NORM_WEIGHT = 5.0, 0.02
"""Weights of class balance and of activations in the generator's loss. The papers' are 1, with which the activations,
that grow without bound, outweigh the other two terms."""


@dataclass
class TrainState:
    """Student and generator of one conversion, their optimisers, and the answers so far.

    Attributes:
        call: the student as it is called, compiled where that was asked for.
        schedule: of the student's learning rate.
        rng: draws vectors, stored answers and augmentations.
    """

    student: nn.Module
    call: Callable[[Tensor], Tensor]
    generator: nn.Module
    student_optimizer: torch.optim.Optimizer
    schedule: LRScheduler
    generator_optimizer: torch.optim.Optimizer
    rng: torch.Generator
    answers: Answers
    ctx: Context


@dataclass(frozen=True)
class ReplayTraining:
    """Settings of student and generator, and what is done with them.

    Attributes:
        batch: b, images per answered batch.
        batches_before_update: answered batches before student and generator learn.
        student_steps: on stored answers, each time.
        generator_steps: each time.
        gamma_s: first learning rate of the student's Adam; falls to 0 along a cosine.
        generator: "upsample", "strokes" or "auto", for `make_generator`.
        augment: whether replayed images are turned, scaled, sheared and moved a little.
        ce_weight, ie_weight, norm_weight: of the generator's loss.
        gamma_g: learning rate of the generator's Adam.
        oversample: images generated per image kept; those kept are balanced over the student's classes.
        replay_batch: stored answers per student step.
        latent, width: of the upsampling generator.
    """

    batch: int
    batches_before_update: int
    student_steps: int
    generator_steps: int
    gamma_s: float
    generator: Literal["upsample", "strokes", "auto"]
    augment: bool
    ce_weight: float = 1.0
    ie_weight: float = IE_WEIGHT
    norm_weight: float = NORM_WEIGHT
    gamma_g: float = 1e-3
    oversample: int = 4
    replay_batch: int = 128
    latent: int = 100
    width: int = 32

    def start(self, teacher: Teacher, student: str, rounds: int, ctx: Context) -> TrainState:
        """Student and generator with Xavier's initialisation. Of the teacher, only what is public of its data is used.

        Args:
            rounds: times that student and generator will learn, for the schedule of the student's rate.

        Raises:
            BenchError: an image size that the generator cannot make.
        """
        phi_s = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))
        phi_g = ctx.prepared(make_generator(self.generator, teacher.dataset, teacher.shape, self.latent, self.width))
        step_s = torch.optim.Adam(phi_s.parameters(), lr=self.gamma_s)
        step_g = torch.optim.Adam(phi_g.parameters(), lr=self.gamma_g)
        rng = ctx.generator("transcription")
        # The papers' line 1, vectors that nothing here uses: without the draw, results would not be the published ones.
        _vectors(self.batch, phi_g, rng)
        return TrainState(
            student=phi_s,
            call=ctx.compiled(phi_s),
            generator=phi_g,
            student_optimizer=step_s,
            schedule=CosineAnnealingLR(step_s, rounds * self.student_steps),
            generator_optimizer=step_g,
            rng=rng,
            answers=Answers(),
            ctx=ctx,
        )

    def train(
        self, teacher: Teacher, student: str, annotate: Annotate, batches: int, ctx: Context, title: str
    ) -> TrainState:
        """All of a conversion: `annotate` is asked about `batches` batches of fresh images."""
        rounds = math.ceil(batches / self.batches_before_update)
        state = self.start(teacher, student, rounds, ctx)
        with ctx.track(f"{title}: converting", rounds * self.student_steps) as advance:
            for asked in range(1, batches + 1):
                images = self.fresh_images(state)
                state.answers.add(images, annotate(images, state.student.eval(), asked))
                if asked % self.batches_before_update == 0 or asked == batches:
                    self.update_student(state, advance)
                    self.update_generator(state)
        return state

    @torch.no_grad()
    def fresh_images(self, state: TrainState) -> Tensor:
        """(b, c, h, w) images of new random vectors, chosen for balance among `oversample` times as many."""
        with state.ctx.precision():
            z = _vectors(self.oversample * self.batch, state.generator, state.rng)
            images = torch.cat([state.generator(part) for part in z.split(self.batch)]).float()
        return balanced(images, state.student, self.batch, state.rng)

    def update_student(self, state: TrainState, advance: Advance) -> None:
        """`student_steps` steps of cross-entropy on stored answers."""
        state.student.train()
        for _ in range(self.student_steps):
            images, targets = state.answers.sample(self.replay_batch, state.rng)
            if self.augment:
                images = random_affine(images, state.rng)
            with state.ctx.precision():
                loss = F.cross_entropy(state.call(images).float(), targets)
            descend(state.student_optimizer, loss)
            state.schedule.step()
            advance(1)

    def update_generator(self, state: TrainState) -> None:
        """`generator_steps` steps on L_g of fresh images, as the student sees them; the student stays as it is."""
        state.student.eval().requires_grad_(False)
        for _ in range(self.generator_steps):
            z = _vectors(self.batch, state.generator, state.rng)
            with state.ctx.precision():
                loss = self.generator_loss(state.student, state.generator(z))
            descend(state.generator_optimizer, loss)
        state.student.requires_grad_(True)

    def generator_loss(self, student: nn.Module, images: Tensor) -> Tensor:
        """L_g: confidence, class balance, activations (DPSD Eq. 8; DPDFD Eq. 5)."""
        logits = student(images).float()
        loss = self.ce_weight * confidence_loss(logits) + self.ie_weight * balance_loss(logits, per_sample=False)
        if self.norm_weight:
            features = student.features(images).float()  # type: ignore[operator]
            loss = loss + self.norm_weight * activation_loss(features, up=True)
        return loss


def _vectors(count: int, generator: nn.Module, rng: torch.Generator) -> Tensor:
    """(count, latent) normal draws for a generator."""
    return torch.randn(count, generator.latent, generator=rng, device=rng.device)  # type: ignore[call-overload]
