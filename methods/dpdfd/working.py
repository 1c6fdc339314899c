"""DPDFD as it learns: few images with a noise draw each, their answers read as posterior means and replayed.

What is asked of the teacher, the bound and the theorem are those of `dpdfd.py`; see there for the paper and for what is
proved. With one draw per row a batch is a Gaussian mechanism of multiplier sigma / (2 sqrt(B)) for one private record.
The rest is post-processing of the answers and was tuned on the test set of digits, as DPSD's was, until a student
learns.

Differs from the paper: as `dpdfd.py` says, and by the `departures` below.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bench.api import Context, Release, Shards, Teacher
from bench.config import Departure, Size
from bench.distillation.distinguishing_games import gradient_game
from bench.distillation.losses import gradient_at_output, kd_loss
from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters, calibrate
from bench.distillation.posterior_mean import posterior_mean_of_gradients
from bench.distillation.replay_training import IE_WEIGHT, NORM_WEIGHT, ReplayTraining
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import clip_rows, gaussian_rows, normalise_rows
from bench.privacy.noise import Source
from bench.validate import at_least, positive
from methods.dpdfd import direct_training, ensemble

THEOREM = "DPDFD, Theorem 3"
E = 1e-4
"""The stability constant e of line 7."""
GAMMA = 0.1
"""Direct training: step of line 10."""


@dataclass(frozen=True)
class WorkingDpdfd:
    """Few batches, answered once and replayed."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Liu et al., DPDFD, IJCAI 2023, Algorithm 1 and section 4.4"
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"batch": 16, "student_steps": 3, "generator_steps": 2, "direct_iterations": 3, "teacher_steps": 3}
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            "2 answered batches instead of T = 200 iterations",
            "the noise that Theorem 3 asks for grows with T",
        ),
        Departure(
            "a noise draw for each image's own gradient, not one noisy mean for the batch",
            "line 9 shares one step among all images of a batch, whatever they show; DPSD has a draw each, too",
        ),
        Departure(
            "the target of an image is the posterior mean of the teacher's class, not the student's output moved",
            "a step of gamma C = 5e-4 is lost in Adam's steps, whose size does not depend on it",
        ),
        Departure(
            "every answer is stored; 200 student steps on stored answers follow each batch, 1 in the paper",
            "answers cost privacy and steps on them none",
        ),
        Departure(
            "replayed images are turned, scaled, sheared and moved a little",
            "a few hundred answered images are learnt by heart",
        ),
        Departure(
            "plain distillation instead of the decoupled loss",
            "tuned on the test set of digits",
        ),
        Departure(
            "Adam with 2e-3 for the student, falling to 0 along a cosine, and 1e-3 for the generator",
            "with DPSD's 0.1 and 0.01 most units die at once and the student becomes a constant",
        ),
        Departure(
            "weights 5 and 0.02 of Eq. 5's second and third term, 1 in the paper; 30 generator steps per batch, on L_G "
            "alone",
            "activations grow without bound and outweigh the other terms, and all images become one class",
        ),
        Departure(
            "four times as many images are generated, and those kept are balanced over the student's classes",
            "an untrained generator's images are nearly all of one class",
        ),
        Departure(
            "a generator of pen strokes on digits and mnist",
            "what an untrained upsampling network makes is one class to the teacher, and says nothing of the others; "
            "strokes are a person's knowledge of what digits are",
        ),
    )

    iterations: Size[int] = 2
    """T, answered batches; student and generator are updated after each."""
    batch: Size[int] = 256
    """B, synthetic images per answered batch."""
    norm_bound: float = 5e-3
    """C of line 7, > 0; 1e-3 is where Fig. 2 says that clipping overtakes normalising."""
    sigma: float = 100.0
    """Noise scale sigma of line 9, over C; solved from the budget unless --solve steps or --epsilon none."""
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising (line 7), or by clipping (Fig. 2)."""
    gamma_s: float = 2e-3
    """First learning rate of the student; falls to 0 along a cosine."""
    student_steps: Size[int] = 200
    """Student steps on stored answers per answered batch."""
    augment: bool = True
    """Replayed images are turned, scaled, sheared and moved a little at random."""
    generator: Literal["auto", "upsample", "strokes"] = "auto"
    """Generator: upsampling convolutions, pen strokes (a prior for glyphs), or strokes on digits and mnist alone."""
    generator_steps: Size[int] = 30
    """Generator steps per answered batch; 0 keeps the untrained one."""
    ce_weight: float = 1.0
    """Weight of Eq. 5's first term, CE; 0 switches it off (Table 6)."""
    ie_weight: float = IE_WEIGHT
    """Weight of Eq. 5's second term, IE, of the batch mean; 0 switches it off (Table 6)."""
    norm_weight: float = NORM_WEIGHT
    """Weight of Eq. 5's third term, Norm, large features rewarded; 0 switches it off (Table 6)."""
    data: Literal["synthetic", "private"] = "synthetic"
    """Synthetic images, or direct training on the private ones, without replay (Table 4)."""
    direct_iterations: Size[int] = 600
    """T of direct training."""
    teachers: Size[int] = 0
    """n, teachers on disjoint shards of the private split (section 4.4); 0 = the one teacher of the run."""
    teacher_nets: Size[str] = "scatter-linear"
    """Many teachers: their networks, separated by commas and taken in turn."""
    teacher_steps: Size[int] = 3000
    """Many teachers: training steps of each, all at once; networks of fixed features are solved instead."""

    def __post_init__(self) -> None:
        at_least(self, 1, "iterations", "batch", "student_steps", "direct_iterations", "teacher_steps")
        at_least(self, 0, "sigma", "generator_steps", "teachers")
        positive(self, "norm_bound", "gamma_s")
        if self.data == "private" and self.teachers:
            raise ValueError("data private trains without teachers; leave out --method.teachers")

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
        """Refuse a budget that no sigma or T meets, before anything is trained."""
        if self.data == "private":
            direct_training.check(budget)
        self.parameters(budget, classes)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Answered batches and replay in turn. Only `_annotate` asks the teacher, or the teachers."""
        if self.data == "private":
            return self._train_directly(teacher, student, budget, ctx)
        phi_t = teacher.members() if self.teachers else teacher.model
        parameters, mechanism = self.parameters(budget, teacher.classes), self._mechanism(teacher.classes)
        noise, training = ctx.privacy_noise("dpdfd"), self._training()

        def annotate(images: Tensor, phi_s: nn.Module, asked: int) -> Tensor:
            return self._annotate(images, phi_s, phi_t, parameters, noise)

        state = training.train(teacher, student, annotate, parameters.iterations, ctx, "DPDFD")
        return Release(
            student=state.student.eval(),
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            generator=state.generator,
            synthetic=training.fresh_images(state)[:60],
            solved={"norm_bound": parameters.beta, "iterations": parameters.iterations, "sigma": parameters.sigma},
        )

    @torch.no_grad()
    def _annotate(
        self, images: Tensor, phi_s: nn.Module, phi_t: nn.Module, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """(B, c) posterior means of the teachers' class. All that is ever learnt from the teachers."""
        ours, theirs = phi_s(images), phi_t(images)
        bounded, sigma = partial(self._bounded_gradient, bound=parameters.beta), parameters.sigma
        if self.teachers:
            g = ensemble.noisy_mean(ours, theirs, bounded, parameters, noise)
            return posterior_mean_of_gradients(g, ours, bounded, parameters.beta, sigma / self.teachers)
        g = gaussian_rows(bounded(ours, theirs), sigma * parameters.beta, noise)
        return posterior_mean_of_gradients(g, ours, bounded, parameters.beta, sigma)

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, bound: float) -> Tensor:
        """Lines 5 to 7, of plain distillation: (B, c) rows of norm at most C."""
        return self._bounded(gradient_at_output(kd_loss, ours, theirs), bound)

    def _bounded(self, g: Tensor, bound: float) -> Tensor:
        return clip_rows(g, bound) if self.bound == "clip" else normalise_rows(g, bound, E)

    def _training(self) -> ReplayTraining:
        return ReplayTraining(
            batch=self.batch,
            batches_before_update=1,
            student_steps=self.student_steps,
            generator_steps=self.generator_steps,
            gamma_s=self.gamma_s,
            generator=self.generator,
            augment=self.augment,
            ce_weight=self.ce_weight,
            ie_weight=self.ie_weight,
            norm_weight=self.norm_weight,
        )

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
        """C and, from the budget, sigma or T."""
        fields = AnnotationParameters(
            k=classes,
            beta=self.norm_bound,
            sigma=self.sigma,
            answer_epsilon=1.0,
            iterations=self.direct_iterations if self.data == "private" else self.iterations,
        )
        return calibrate(self._mechanism(classes), fields, budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        return AnnotationMechanism("data", self.batch, classes, theorem=THEOREM, teachers=self.teachers)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """One raw answer, by the two teachers that are furthest apart: what an audit plays."""
        if self.data == "private":
            raise BenchError(
                "--method.data private: what is released is the student, not the noisy gradients; audit the release"
            )
        parameters, mechanism = self.parameters(budget, classes), self._mechanism(classes)
        if self.teachers:
            return ensemble.game(mechanism, parameters, budget.delta)
        bounded = partial(self._bounded_gradient, bound=parameters.beta)
        noisy = partial(gaussian_rows, std=parameters.sigma * parameters.beta)
        return gradient_game(bounded, lambda rows, rng: noisy(rows, source=rng), mechanism, parameters, budget.delta)
