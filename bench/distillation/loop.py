"""What DPSD, DPDFD and FedDPSD share: student and generator, how they are updated, and the options of both.

Nothing in here asks a teacher, except a generator's loss where a teacher is handed in as the judge (DPSD-T).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from bench import nets
from bench.api import Advance, Context, Teacher
from bench.data.affine import random_affine
from bench.distillation.generator_training import make_generator
from bench.distillation.losses import (
    activation_loss,
    balance_loss,
    confidence_loss,
    dkd_loss,
    gradient_at_output,
    kd_loss,
)
from bench.distillation.replay import Answers, balanced
from bench.nets.initialise import xavier
from bench.privacy.mechanisms import clip_rows, normalise_rows

SHARPEST = 0.15


@dataclass
class Players:
    """Student, generator, the vectors z, their optimisers, and the answers so far; `ask` is the student as called."""

    student: nn.Module
    ask: Callable[[Tensor], Tensor]
    generator: nn.Module
    z: Tensor
    step_student: torch.optim.Optimizer
    schedule: LRScheduler
    step_generator: torch.optim.Optimizer
    rng: torch.Generator
    answers: Answers


@dataclass(frozen=True)
class Transcription:
    """Options of student and generator, with the defaults that the papers print."""

    iterations: int = 200
    """T, answered batches."""
    batch: int = 256
    """b, synthetic images per answered batch."""
    sigma: float = 100.0
    """Noise scale sigma, over the bound; solved from the budget unless --solve steps or --epsilon none."""
    loss: Literal["dkd", "kd"] = "dkd"
    """Distillation loss: decoupled (Zhao et al., 2022) or plain."""
    non_target_weight: float = 8.0
    """lambda, weight of the non-target part of the decoupled loss."""
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising or by clipping."""
    stability: float = 1e-4
    """h (DPDFD: e), added to the norm a gradient is divided by."""
    ce_weight: float = 1.0
    """Weight of the generator loss's first term (CE); 0 switches it off."""
    ie_weight: float = 1.0
    """Weight of the generator loss's second term (IE); 0 switches it off."""
    norm_weight: float = 1.0
    """Weight of the generator loss's third term (NORM); 0 switches it off."""
    entropy: Literal["batch", "sample"] = "batch"
    """Second term of the batch mean (class balance) or per sample (as printed)."""
    activation: Literal["up", "down"] = "up"
    """Third term rewards large activations (the text), or small ones (the printed sign)."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Adam, or the plain steps that the algorithms print."""
    gamma_s: float = 0.1
    """Learning rate of the student."""
    gamma_g: float = 0.01
    """Learning rate of the generator."""
    latent: int = 100
    """Length of a vector z."""
    width: int = 32
    """Channels of the generator's last hidden map."""
    images: Literal["upsample", "strokes", "auto"] = "upsample"
    """Generator: upsampling convolutions, pen strokes (a prior for glyphs), or strokes on digits and mnist alone."""
    choose: int = 1
    """Images generated per image asked for; the student's classes are balanced among those kept (post-processing)."""
    reading: Literal["step", "posterior"] = "step"
    """Target from an answer: as printed, or the mean of the teacher's class given the answer (Bayes)."""
    student_steps: int = 1
    """Student steps per update: 1 on the batch just answered, or more on stored answers drawn at random."""
    replay_batch: int = 128
    """Stored answers per replaying step."""
    augment: bool = False
    """Replayed images are turned, scaled, sheared and moved a little at random."""
    decay: bool = False
    """The student's learning rate falls to 0 along a cosine."""
    generator_steps: int = 1
    """Generator steps per update."""

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "latent", "width", "student_steps", "replay_batch", "choose"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("gamma_s", "gamma_g", "stability"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        for name in ("sigma", "non_target_weight", "generator_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")

    @property
    def targets_move_output(self) -> bool:
        """Whether targets are the student's own outputs after a step, rather than classes or probabilities of them."""
        return self.reading == "step"

    def gradient(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """(n, c): of the distillation loss with respect to the student's logits `ours`, a row each."""
        loss = kd_loss if self.loss == "kd" else partial(dkd_loss, weight=self.non_target_weight)
        return gradient_at_output(loss, ours, theirs)

    def bounded(self, gradient: Tensor, beta: float) -> Tensor:
        """(n, c) rows of norm at most beta."""
        if self.bound == "clip":
            return clip_rows(gradient, beta)
        return normalise_rows(gradient, beta, self.stability)

    def players(self, teacher: Teacher, student: str, updates: int, ctx: Context, trained_z: bool = False) -> Players:
        """Student and generator with Xavier's initialisation, and a batch of random vectors z.

        Args:
            updates: calls of `update_student` there will be, for the learning rate's schedule.
            trained_z: whether z is trained with the generator.
        """
        phi_s = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))
        phi_g = ctx.prepared(make_generator(self.images, teacher.dataset, teacher.shape, self.latent, self.width))
        rng = ctx.generator("transcription")
        z = torch.randn(self.batch, phi_g.latent, generator=rng, device=ctx.device).requires_grad_(trained_z)
        make = torch.optim.Adam if self.optimizer == "adam" else torch.optim.SGD
        step_s = make(phi_s.parameters(), lr=self.gamma_s)
        total = updates * self.student_steps
        schedule = CosineAnnealingLR(step_s, total) if self.decay else LambdaLR(step_s, lambda _: 1.0)
        step_g = make([*phi_g.parameters(), *([z] if trained_z else [])], lr=self.gamma_g)
        return Players(
            phi_s, ctx.compiled(phi_s), phi_g, z, step_s, schedule, step_g, rng, Answers(self.student_steps > 1)
        )

    def fresh(self, players: Players, ctx: Context) -> Tensor:
        """(b, c, h, w) images of new random vectors, chosen for balance among `choose` times as many."""
        with torch.no_grad(), ctx.precision():
            z = torch.randn(
                self.choose * self.batch, players.generator.latent, generator=players.rng, device=players.z.device
            )
            images = torch.cat([players.generator(part) for part in z.split(self.batch)]).float()
        return images if self.choose == 1 else balanced(images, players.student, self.batch, players.rng)

    def update_student(self, players: Players, images: Tensor, targets: Tensor, ctx: Context, advance: Advance) -> None:
        """Cross-entropy to the targets: one step on this batch, or `student_steps` on stored answers.

        Where a target is the student's own output moved by a small step, there is no dropout: it would move the output
        much further than the step does.
        """
        players.student.train()
        if self.targets_move_output:
            for layer in players.student.modules():
                layer.train(not isinstance(layer, nn.Dropout) and layer.training)
        for _ in range(self.student_steps):
            if self.student_steps > 1:
                images, targets = players.answers.sample(self.replay_batch, players.rng)
                images = random_affine(images, players.rng) if self.augment else images
            with ctx.precision():
                loss = F.cross_entropy(players.ask(images).float(), targets)
            players.step_student.zero_grad(set_to_none=True)
            loss.backward()
            players.step_student.step()
            players.schedule.step()
            advance(1)

    def update_generator(self, players: Players, ctx: Context, judge: nn.Module, targets: Tensor | None = None) -> None:
        """Generator steps on L_G, as `judge` sees fresh images; the networks that judge stay as they are.

        Args:
            targets: (b, c) answers to the images of the trained vectors z, which are used then, with L_S beside L_G.
        """
        players.student.eval().requires_grad_(False)
        for _ in range(self.generator_steps):
            if targets is None:
                z = torch.randn(self.batch, players.generator.latent, generator=players.rng, device=players.z.device)
            else:
                z = players.z
            with ctx.precision():
                images = players.generator(z)
                loss = self.generator_loss(judge, images)
                if targets is not None:
                    loss = loss + F.cross_entropy(players.ask(images).float(), targets)
            players.step_generator.zero_grad(set_to_none=True)
            loss.backward()
            players.step_generator.step()
        players.student.requires_grad_(True)

    def generator_loss(self, judge: Any, images: Tensor) -> Tensor:
        """L_G: confidence, class balance, activations of the judge (DPSD Eq. 8; DPDFD Eq. 5)."""
        logits = judge(images).float()
        loss = self.ce_weight * confidence_loss(logits)
        loss = loss + self.ie_weight * balance_loss(logits, self.entropy == "sample")
        if self.norm_weight:
            loss = loss + self.norm_weight * activation_loss(judge.features(images).float(), self.activation == "up")
        return loss

    def posterior_of_gradients(
        self, answers: Tensor, ours: Tensor, expected: Callable[[Tensor, Tensor], Tensor], beta: float, sigma: float
    ) -> Tensor:
        """(n, c): teachers sure of each class r, weighted by the Gaussian likelihood of the answer expected of them.

        Args:
            answers: (n, c) noisy gradients.
            ours: (n, c) the student's logits.
            expected: (n, c) student's and teacher's logits to the (n, c) answer without noise.
            beta: norm of an answer without noise.
            sigma: noise over beta.
        """
        n, classes = ours.shape
        sure = torch.full((classes, classes), 0.1 / (classes - 1), device=ours.device).fill_diagonal_(0.9)
        std = max(sigma, SHARPEST) * beta
        likely = [
            -(answers - expected(ours, sure[r].log().expand(n, -1))).square().sum(1) / (2 * std**2)
            for r in range(classes)
        ]
        return torch.stack(likely, 1).softmax(1) @ sure


def updates(iterations: int, batches: int) -> int:
    """How often student and generator learn, if they do after every so many answered batches and at the end."""
    return math.ceil(iterations / batches)
