"""DPDFD as it learns: a noisy gradient for each image of a data-free prior that evolves, read by its likelihood.

What is asked of the teacher, the bound and the theorem are those of `dpdfd.py`; see there for the paper and for what is
proved. Every question is a batch of its own, so that one private record may move all N answers: a Gaussian mechanism of
multiplier sigma / 2, N times (with `shared` B: sigma / (2 B), N / B times). What is asked and how the student learns is
`bench/distillation/transcription/loop.py`: post-processing of the answers.

Differs from the paper: as `dpdfd.py` says, and by the `departures` below. Many teachers (`teachers`) are least squares
on scattering features (`teacher_nets`), where the printed variant's are networks like the run's `--teacher`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.api import Context, Release, Shards, Teacher
from bench.config import Departure, Size, Solved
from bench.distillation.distinguishing_games import ensemble_game, gradient_game
from bench.distillation.image_source import check_source, image_source
from bench.distillation.losses import gradient_at_output, kd_loss
from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters, calibrate, limit_queries
from bench.distillation.transcription.likelihoods import expected_gradients, gradient_log_likelihood, likelihood_loss
from bench.distillation.transcription.loop import Transcription
from bench.distillation.transcription.options import (
    CHILDREN,
    CHOICE,
    COMMITTEE,
    FEW_CLEAR_ANSWERS,
    FLAT_QUESTIONS,
    FROM_A_PRIOR,
    JITTER,
    MANY_STEPS,
    ONE_CYCLE,
    PLAIN_LOSS_WORTH,
    READING_WORTH,
    REPLAY,
    ROUNDS,
    TranscriptionOptions,
)
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import clip_rows, gaussian_rows, gaussian_shared_mean, normalise_rows
from bench.privacy.noise import Source
from bench.validate import at_least, positive
from methods.dpdfd import direct_training, ensemble

THEOREM = "DPDFD, Theorem 3"
E = 1e-4
"""The stability constant e of line 7."""
GAMMA = 0.1
"""gamma, the step of line 10, as printed."""


@dataclass(frozen=True)
class WorkingDpdfd(TranscriptionOptions):
    """Few images with little noise each, asked about once."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Liu et al., DPDFD, IJCAI 2023, Algorithm 1 and section 4.4"
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"questions": 48, "rounds": 3, "student_steps": 6, "batch": 16, "direct_iterations": 3,
                  "teacher_steps": 3},
        "quick": {"questions": 25_600},
    }  # fmt: skip
    departures: ClassVar[tuple[Departure, ...]] = (
        FROM_A_PRIOR,
        CHILDREN,
        CHOICE,
        Departure(
            "an answer is read by its likelihood under every class (`--method.reading printed`: the paper's target)",
            "a step of gamma C from the student's own output is lost in Adam's steps, whose size does not depend on it",
            worth=READING_WORTH,
        ),
        REPLAY,
        ONE_CYCLE,
        ROUNDS,
        MANY_STEPS,
        FLAT_QUESTIONS,
        FEW_CLEAR_ANSWERS,
        Departure(
            "plain distillation instead of the decoupled loss",
            "eight times as much of the bounded gradient speaks of the other classes",
            worth=PLAIN_LOSS_WORTH,
        ),
        JITTER,
        COMMITTEE,
        Departure(
            "a noise draw for each image's own gradient, not one noisy mean for the batch (`--method.shared B`)",
            "line 9 shares one step among all images of a batch, whatever they show; DPSD has a draw each, too",
            without={"shared": 16},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {
        "rounds": "data=synthetic",
        "prior": "data=synthetic",
        "evolve": "data=synthetic",
        "choose": "data=synthetic",
        "reading": "data=synthetic",
        "jitter": "data=synthetic",
        "replay": "data=synthetic",
        "copies": "data=synthetic",
        "committee": "data=synthetic",
        "student_steps": "data=synthetic",
        "questions": "data=synthetic",
        "most_noise": "data=synthetic",
        "asked_at": "data=synthetic",
        "direct_iterations": "data=private",
        "batch": "data=private",
        "teacher_nets": "teachers>0",
        "teacher_steps": "teachers>0",
    }

    questions: Size[int] = 51_200
    """B T, answers, one an image or one a copy; at most so many as the budget allows at `most_noise`."""
    norm_bound: float = 5e-3
    """C of line 7, > 0; 1e-3 is where Fig. 2 says that clipping overtakes normalising."""
    sigma: Solved[float] = 100.0
    """Noise scale sigma of line 9, over C; solved from the budget unless --solve steps or --epsilon none."""
    most_noise: float = 0.5
    """Largest noise over the bound at which questions beyond the 256th are asked, which leaves few of them; 0 = any."""
    shared: int = 1
    """Images that share one noisy mean, B of line 9; 1 = every image has a draw of its own. Of every 256 images, and of
    every round, those that do not make up a B are charged and not answered."""
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising (line 7), or by clipping (Fig. 2)."""
    asked_at: Literal["flat", "student"] = "flat"
    """The output at which the gradient is taken: all classes equally likely, or the student's."""
    data: Literal["synthetic", "private"] = "synthetic"
    """Synthetic images, or direct training on the private ones, without replay (Table 4)."""
    direct_iterations: Size[int] = 600
    """T of direct training."""
    batch: Size[int] = 256
    """B of direct training."""
    teachers: Size[int] = 0
    """n, teachers on disjoint shards of the private split (section 4.4); 0 = the one teacher of the run."""
    teacher_nets: Size[str] = "scatter-linear"
    """Many teachers: their networks, separated by commas and taken in turn."""
    teacher_steps: Size[int] = 3000
    """Many teachers: training steps of each, all at once; networks of fixed features are solved instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "questions", "batch", "direct_iterations", "teacher_steps")
        at_least(self, 0, "sigma", "most_noise", "teachers")
        positive(self, "norm_bound")
        if self.data == "private" and self.teachers:
            raise ValueError("data private trains without teachers; leave out --method.teachers")
        if self.shared > 1 and (self.teachers or self.data == "private"):
            raise ValueError("shared is for one teacher; leave out --method.teachers and --method.data private")
        most = min(Transcription.batch, self.questions)  # images that are shown to the teacher at once
        if not 1 <= self.shared <= most:
            raise ValueError(f"shared is {self.shared}; expected 1 to {most}")
        if self.shared > 1 and (self.asked_at, self.reading) != ("flat", "likelihood"):
            raise ValueError("shared is for gradients at the flat output, read by their likelihood")

    @property
    def needs(self) -> frozenset[str]:
        """A teacher, many of them, or the private images."""
        if self.data == "private":
            return frozenset({"private_data"})
        return frozenset({"teacher_ensemble"} if self.teachers else {"teacher"})

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The teachers of section 4.4."""
        archs = tuple(name.strip() for name in self.teacher_nets.split(","))
        return Shards(self.teachers, archs, steps=self.teacher_steps)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma meets, and an unknown prior, before anything is trained."""
        if self.data == "private":
            direct_training.check(budget)
        parameters = self.parameters(budget, classes)
        if self.data == "synthetic":
            Transcription.of(self, parameters.iterations * self.shared)
        check_source(self.prior, dataset)

    def held_bytes(self, shape: tuple[int, int, int], classes: int, dataset: str, budget: Budget) -> int:
        """Bytes of the images that the loop holds at its peak."""
        if self.data == "private":
            return 0
        return Transcription.of(self, self.parameters(budget, classes).iterations * self.shared).image_bytes(shape)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Rounds of questions and answers. Only `_answers` asks the teacher, or the teachers."""
        if self.data == "private":
            return self._train_directly(teacher, student, budget, ctx)
        phi_t = teacher.members() if self.teachers else teacher.model
        parameters, mechanism = self.parameters(budget, teacher.classes), self._mechanism(teacher.classes)
        noise = ctx.privacy_noise("dpdfd")

        def ask(images: Tensor, ours: Tensor) -> Tensor:
            return self._answers(images, ours, phi_t, parameters, noise)

        training = Transcription.of(self, parameters.iterations * self.shared)
        source = image_source(self.prior, teacher, ctx)
        loss = F.cross_entropy if self.reading == "printed" else likelihood_loss
        phi_s, asked = training.train(teacher, student, source, ask, ctx, "DPDFD", loss)
        return Release(
            student=phi_s,
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            synthetic=asked[:60],
            solved={"norm_bound": parameters.beta, "iterations": parameters.iterations, "sigma": parameters.sigma},
        )

    @torch.no_grad()
    def _answers(
        self, images: Tensor, ours: Tensor, phi_t: nn.Module, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """(n, c) readings of the noisy answers to n questions. All that is ever learnt from the teachers.

        Args:
            ours: (n, c) the student's logits.
        """
        at = torch.zeros_like(ours) if self.asked_at == "flat" else ours
        bounded, sigma = partial(self._bounded_gradient, bound=parameters.beta), parameters.sigma
        if self.teachers:
            g, sigma = ensemble.noisy_mean(at, phi_t(images), bounded, parameters, noise), sigma / self.teachers
        else:
            g, sigma = self._noisy(bounded(at, phi_t(images)), parameters, noise), sigma / self.shared
        if self.reading == "printed":
            return at.softmax(1) - GAMMA * g
        return gradient_log_likelihood(g, expected_gradients(bounded, at), parameters.beta, sigma)

    def _noisy(self, g: Tensor, parameters: AnnotationParameters, noise: Source) -> Tensor:
        """(n, c): every row with noise of its own, or the noisy mean of its B; rows that do not make up a B: zeros."""
        std = parameters.sigma * parameters.beta
        if self.shared == 1:
            return gaussian_rows(g, std, noise)
        means = torch.zeros_like(g)  # at a flat output a zero is as likely under every class: it is no answer
        for start in range(0, len(g) - self.shared + 1, self.shared):
            means[start : start + self.shared] = gaussian_shared_mean(g[start : start + self.shared], std, noise)
        return means

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, bound: float) -> Tensor:
        """Lines 5 to 7, of plain distillation: (B, c) rows of norm at most C."""
        return self._bounded(gradient_at_output(kd_loss, ours, theirs), bound)

    def _bounded(self, g: Tensor, bound: float) -> Tensor:
        return clip_rows(g, bound) if self.bound == "clip" else normalise_rows(g, bound, E)

    def _train_directly(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Section 4.4, direct training: as printed but for the student's rate and the noise, which every row has."""
        parameters, noise = self.parameters(budget, teacher.classes), ctx.privacy_noise("dpdfd")
        return direct_training.train_directly(
            teacher,
            student,
            lambda g: gaussian_rows(self._bounded(g, parameters.beta), parameters.sigma * parameters.beta, noise),
            ctx,
            batch=self.batch,
            gamma=GAMMA,
            gamma_s=self.gamma_s,
            falling=True,
            mechanism=self._mechanism(teacher.classes),
            parameters=parameters,
            delta=budget.delta,
        )

    def parameters(self, budget: Budget, classes: int) -> AnnotationParameters:
        """C, the number of questions (of iterations, in direct training) and, from the budget, sigma."""
        direct, mechanism = self.data == "private", self._mechanism(classes)
        fields = AnnotationParameters(
            k=classes,
            beta=self.norm_bound,
            sigma=self.sigma,
            answer_epsilon=1.0,
            iterations=self.direct_iterations if direct else self.questions // self.shared,
        )
        readable = self.most_noise * max(self.teachers, self.shared)  # of a mean
        return calibrate(mechanism, fields if direct else limit_queries(mechanism, fields, budget, readable), budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        if self.data == "private":
            return AnnotationMechanism("data", self.batch, classes, theorem=THEOREM)
        # Every question is a batch of its own, so that their number may be any; or `shared` are one
        return AnnotationMechanism(
            "data", self.shared, classes, per_row=self.shared == 1, theorem=THEOREM, teachers=self.teachers
        )

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """One raw answer, by the two teachers that are furthest apart: what an audit plays."""
        if self.data == "private":
            raise BenchError(
                "--method.data private: what is released is the student, not the noisy gradients; audit the release"
            )
        parameters, mechanism = self.parameters(budget, classes), self._mechanism(classes)

        def step(images: Tensor, phi_s: nn.Module, phi_t: nn.Module, noise: Source) -> Tensor:
            return self._answers(images, phi_s(images), phi_t, parameters, noise)

        game = ensemble_game if self.teachers else gradient_game
        return game(step, mechanism, parameters, budget.delta, flat=self.asked_at == "flat")
