"""DPDFD, variant `working`: a student trained on the likelihoods of noisy gradients at images of a data-free prior.

Gradient bound and theorem are those of `dpdfd.py`; see there for the paper and its privacy. Each query is a batch of
one image, and one private record may change all N responses: N Gaussian mechanisms of multiplier sigma / 2 (with
`shared` B: N / B of multiplier sigma / (2 B)). `bench/distillation/transcription/loop.py` chooses the queries and
trains the student: post-processing of the responses. A "reading" is the log-likelihood of a response under every class;
"children" are transformed copies of queried images.

Differs from the paper: as `dpdfd.py`, and by the `departures` below. Many teachers (`teachers`) are least squares on
scattering features (`teacher_nets`); those of the printed variant have the network of the run's `--teacher`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

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
    FLAT_OUTPUT,
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
from methods.dpdfd import direct_training
from methods.dpdfd.dpdfd import N_SYNTHETIC, THEOREM, E, noisy_mean_of_teachers

GAMMA = 0.1
"""gamma, the step of line 10; as in the printed variant."""


@dataclass(frozen=True)
class WorkingDpdfd(TranscriptionOptions):
    """Options of DPDFD's variant `working`: one query per image or copy; few queries, each with little noise."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Liu et al., DPDFD, IJCAI 2023, Algorithm 1 and section 4.4"
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"queries": 48, "rounds": 3, "student_steps": 6, "batch": 16, "direct_iterations": 3,
                  "teacher_steps": 3},
        "quick": {"queries": 25_600},
    }  # fmt: skip
    departures: ClassVar[tuple[Departure, ...]] = (
        FROM_A_PRIOR,
        CHILDREN,
        CHOICE,
        Departure(
            "the student learns from the likelihood of each response under every class (`--method.reading printed`: "
            "the paper's target)",
            "the paper's target is only gamma C away from the student's own output; a step of Adam is larger, and its "
            "size does not depend on that distance",
            worth=READING_WORTH,
        ),
        REPLAY,
        ONE_CYCLE,
        ROUNDS,
        MANY_STEPS,
        FLAT_OUTPUT,
        FEW_CLEAR_ANSWERS,
        Departure(
            "plain distillation loss, not the decoupled loss",
            "the decoupled loss gives the classes other than the target eight times the weight in the bounded gradient",
            worth=PLAIN_LOSS_WORTH,
        ),
        JITTER,
        COMMITTEE,
        Departure(
            "a noise draw per image, not one noisy mean per batch (`--method.shared B`)",
            "line 9 gives all images of a batch the same gradient; with a draw per image, as in DPSD, each has its own",
            without={"shared": 16},
        ),
    )
    recorded_as: ClassVar[dict[str, str]] = {
        "queries": "questions",
        "max_noise": "most_noise",
        "gradient_at": "asked_at",
    }
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
        "queries": "data=synthetic",
        "max_noise": "data=synthetic",
        "gradient_at": "data=synthetic",
        "direct_iterations": "data=private",
        "batch": "data=private",
        "teacher_nets": "teachers>0",
        "teacher_steps": "teachers>0",
    }

    queries: Size[int] = 51_200
    """Number of queries (the paper's B T), one per image or copy; fewer if the budget allows fewer at noise
    `max_noise`."""
    norm_bound: float = 5e-3
    """C, bound on the norm of a gradient in line 7, > 0. In Fig. 2 clipping overtakes normalising at 1e-3."""
    sigma: Solved[float] = 100.0
    """sigma of line 9, the noise's standard deviation divided by C; solved from the budget unless --solve steps or
    --epsilon none."""
    max_noise: float = 0.5
    """Largest noise (standard deviation) on the gradient, or mean gradient, from which the student learns, divided by
    C. If the budget requires more, fewer queries are sent, at least 256; 0 = no limit."""
    shared: int = 1
    """B of line 9, number of images that share one noisy mean gradient; 1 = a noise draw per image. Images that are
    left over in a batch of 256 or at the end of a round, fewer than B, are charged to the budget but get no response.
    """
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising (line 7) or clipping (Fig. 2)."""
    gradient_at: Literal["flat", "student"] = "flat"
    """Student output at which the gradient is evaluated: uniform over the classes (flat), or the student's own."""
    data: Literal["synthetic", "private"] = "synthetic"
    """Training images: synthetic, or private (direct training, Table 4, without replay)."""
    direct_iterations: Size[int] = 600
    """T, number of iterations of direct training."""
    batch: Size[int] = 256
    """B, batch size of direct training."""
    teachers: Size[int] = 0
    """n, number of teachers on disjoint shards of the private data (section 4.4); 0 = the run's single teacher."""
    teacher_nets: Size[str] = "scatter-linear"
    """Networks of the n teachers, separated by commas; with several, they alternate."""
    teacher_steps: Size[int] = 3000
    """Training steps of each of the n teachers; networks on fixed features are solved in closed form instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "queries", "batch", "direct_iterations", "teacher_steps")
        at_least(self, 0, "sigma", "max_noise", "teachers")
        positive(self, "norm_bound")
        if self.data == "private" and self.teachers:
            raise ValueError("data private trains without teachers; expected teachers 0")
        if self.shared > 1 and (self.teachers or self.data == "private"):
            raise ValueError(f"shared is {self.shared}; expected 1, or one teacher and data synthetic")
        most = min(Transcription.batch, self.queries)  # images in one forward pass of the teacher
        if not 1 <= self.shared <= most:
            raise ValueError(f"shared is {self.shared}; expected 1 to {most}")
        if self.shared > 1 and (self.gradient_at, self.reading) != ("flat", "likelihood"):
            raise ValueError(f"shared is {self.shared}; expected 1, or gradient_at flat and reading likelihood")

    @property
    def needs(self) -> frozenset[str]:
        """Return the input: one teacher, many teachers, or the private images."""
        if self.data == "private":
            return frozenset({"private_data"})
        return frozenset({"teacher_ensemble"} if self.teachers else {"teacher"})

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """Describe the teachers of section 4.4."""
        archs = tuple(name.strip() for name in self.teacher_nets.split(","))
        return Shards(self.teachers, archs, steps=self.teacher_steps)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma can meet, or an unknown prior, before anything is trained."""
        if self.data == "private":
            direct_training.check(budget)
        parameters = self.parameters(budget, classes)
        if self.data == "synthetic":
            Transcription.of(self, parameters.iterations * self.shared)
        check_source(self.prior, dataset)

    def held_bytes(self, shape: tuple[int, int, int], classes: int, dataset: str, budget: Budget) -> int:
        """Return the peak memory of the loop's images, in bytes."""
        if self.data == "private":
            return 0
        return Transcription.of(self, self.parameters(budget, classes).iterations * self.shared).image_bytes(shape)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Send rounds of queries and train the student. Only `_query_teacher` queries the teacher or the teachers."""
        if self.data == "private":
            return self._train_directly(teacher, student, budget, ctx)
        phi_t = teacher.members() if self.teachers else teacher.model
        parameters, mechanism = self.parameters(budget, teacher.classes), self._mechanism(teacher.classes)
        noise = ctx.privacy_noise("dpdfd")

        def query(images: Tensor, ours: Tensor) -> Tensor:
            return self._query_teacher(images, ours, phi_t, parameters, noise)

        training = Transcription.of(self, parameters.iterations * self.shared)
        source = image_source(self.prior, teacher, ctx)
        loss = F.cross_entropy if self.reading == "printed" else likelihood_loss
        phi_s, queried = training.train(teacher, student, source, query, ctx, "DPDFD", loss)
        return Release(
            student=phi_s,
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            synthetic=queried[:N_SYNTHETIC],
            solved={"norm_bound": parameters.beta, "iterations": parameters.iterations, "sigma": parameters.sigma},
        )

    @torch.no_grad()
    def _query_teacher(
        self, images: Tensor, ours: Tensor, phi_t: nn.Module, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """Return (n, c) readings of the noisy responses to n images; nothing else of the teachers is used.

        A reading is a response's log-likelihood under every class, or with `reading printed` line 10's outputs.

        Args:
            ours: (n, c) logits of the student.
        """
        at = torch.zeros_like(ours) if self.gradient_at == "flat" else ours
        bounded, sigma = partial(self._bounded_gradient, bound=parameters.beta), parameters.sigma
        if self.teachers:
            g, sigma = noisy_mean_of_teachers(at, phi_t(images), bounded, parameters, noise), sigma / self.teachers
        else:
            g, sigma = self._noisy(bounded(at, phi_t(images)), parameters, noise), sigma / self.shared
        if self.reading == "printed":
            return at.softmax(1) - GAMMA * g
        return gradient_log_likelihood(g, expected_gradients(bounded, at), parameters.beta, sigma)

    def _noisy(self, g: Tensor, parameters: AnnotationParameters, noise: Source) -> Tensor:
        """Add noise to (n, c) bounded gradients, or replace every `shared` of them by their noisy mean.

        Rows left over at the end, fewer than `shared`, become 0.
        """
        std = parameters.sigma * parameters.beta
        if self.shared == 1:
            return gaussian_rows(g, std, noise)
        means = torch.zeros_like(g)  # gradients are at a flat output, where 0 is equally likely under every class
        for start in range(0, len(g) - self.shared + 1, self.shared):
            means[start : start + self.shared] = gaussian_shared_mean(g[start : start + self.shared], std, noise)
        return means

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, bound: float) -> Tensor:
        """Lines 5 to 7 for the plain distillation loss: return (B, c) gradients of norm at most C."""
        return self._bounded(gradient_at_output(kd_loss, ours, theirs), bound)

    def _bounded(self, g: Tensor, bound: float) -> Tensor:
        return clip_rows(g, bound) if self.bound == "clip" else normalise_rows(g, bound, E)

    def _train_directly(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run section 4.4's direct training as printed, except for the student's rate and a noise draw per row."""
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
        """Return C, sigma and the number of responses (of iterations, in direct training), calibrated to the budget."""
        direct, mechanism = self.data == "private", self._mechanism(classes)
        fields = AnnotationParameters(
            k=classes,
            beta=self.norm_bound,
            sigma=self.sigma,
            answer_epsilon=1.0,
            iterations=self.direct_iterations if direct else self.queries // self.shared,
        )
        max_noise = self.max_noise * max(self.teachers, self.shared)  # of the sum's noise; the student uses the mean
        return calibrate(mechanism, fields if direct else limit_queries(mechanism, fields, budget, max_noise), budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        if self.data == "private":
            return AnnotationMechanism("data", self.batch, classes, theorem=THEOREM)
        # A query is a batch of one image, or of `shared`, so any number of responses is possible
        return AnnotationMechanism(
            "data", self.shared, classes, per_row=self.shared == 1, theorem=THEOREM, teachers=self.teachers
        )

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: one response, of the two teachers that differ most."""
        if self.data == "private":
            raise BenchError(
                "--method.data private: the noisy gradients are not released, the student is; use `bench audit release`"
            )
        parameters, mechanism = self.parameters(budget, classes), self._mechanism(classes)

        def step(images: Tensor, phi_s: nn.Module, phi_t: nn.Module, noise: Source) -> Tensor:
            return self._query_teacher(images, phi_s(images), phi_t, parameters, noise)

        game = ensemble_game if self.teachers else gradient_game
        return game(step, mechanism, parameters, budget.delta, flat=self.gradient_at == "flat")
