"""The ensemble mode of DPDFD (section 4.4) and DPSD: many teachers on disjoint shards, and a true epsilon per record.

A private record lies in one shard, by the hash of its own pixels, and so stands behind one teacher: leaving it out
changes that teacher alone (replacing it by another record may change two, which the ledger does not count). Every
answered image is the sum over the n teachers of their normalised gradients, with N(0, sigma^2 beta^2) on every
coordinate (a record moves it by 2 beta), or their vote counts, with N(0, sigma^2) (a record moves them by sqrt(2)).
Answers are kept and replayed, read by Bayes' rule, and everything else is post-processing.

Where the images come from is the other half. `prior none`: the data-free generator of the papers. `prior moments`:
Gaussians around the private classes from one noisy release of their first two moments (`class_moments.py`); it has its
own entry in the ledger; it takes `prior_share` of the budget.

Tier `quick` of both methods has votes, moments with 80 % of the budget, 1,024 queries and teachers that are linear
layers on fixed scattering features. On the digits of seeds 0 and 1 shares of 50, 80 and 90 % were tried with sight of
test accuracy; the rest was chosen on the attacker's labelled part, which is not accounted.

The control is a student of the same making without the teachers: all of the budget for the moments, each image's label
the class it was drawn for. Without a prior there is nothing to control with: images without answers teach nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.api import Context, Release, Shards, Teacher
from bench.distillation.class_moments import Gaussians, gaussians, noisy_moments, to_image, to_stroke_image
from bench.distillation.data_free_basis import cosine_basis, stroke_basis
from bench.distillation.distinguishing_games import ensemble_game
from bench.distillation.generator_training import GLYPHS
from bench.distillation.loop import Players, Transcription
from bench.distillation.noisy_labels import Mechanism, Plan
from bench.nets import Ensemble
from bench.privacy.audit import Game
from bench.privacy.counts import noisy_counts
from bench.privacy.mechanisms import gaussian_rows
from bench.privacy.noise import Noise, Source

SHOWN = 60
SMALL = 1000
"""Private records per class below which moments are pooled."""
AGREEMENT = 0.7

BoundedGradient = Callable[..., Tensor]


class Prior(NamedTuple):
    """Where images come from: class Gaussians, and how a projection becomes an image."""

    gaussians: Gaussians
    develop: Callable[[Tensor], Tensor]
    shape: tuple[int, int, int]

    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """(count, c, h, w) images in [0, 1] and the classes they were drawn for."""
        projections, classes = self.gaussians.draw(count, rng, self.shape)
        return self.develop(projections), classes


@dataclass(frozen=True)
class Sound(Transcription):
    """Options of the ensemble mode; none of them matters with one teacher."""

    teachers: int = 0
    """n, teachers on disjoint shards of the private split; 0 = the one teacher of the run."""
    teacher_nets: str = ""
    """Ensemble: networks of the teachers, separated by commas and taken in turn; empty = the run's --teacher."""
    teacher_steps: int = 3000
    """Ensemble: training steps of the teachers, all at once; networks of fixed features are solved instead."""
    teacher_batch: int = 128
    """Ensemble: images per training step of a teacher."""
    teacher_lr: float = 1e-3
    """Ensemble: the teachers' first learning rate, Adam; falls linearly to 0."""
    aggregate: Literal["gradients", "votes"] = "gradients"
    """Ensemble: noisy sum of the teachers' normalised gradients (DPDFD, section 4.4), or noisy vote counts."""
    queries: int = 0
    """Ensemble: images answered, rounded up to whole batches; 0 = T b."""
    asks: int = 1
    """Ensemble: batches answered before the student learns; 0 = all of them."""
    ensemble_steps: int = 0
    """Ensemble: student steps on stored answers each time it learns; 0 = student_steps."""
    prior: Literal["none", "moments"] = "none"
    """Ensemble: images of the data-free generator, or of noisy class moments of the private images."""
    prior_share: float = 0.5
    """Ensemble: share of the budget (of mu^2) that the moments take, in (0, 1)."""
    prior_dimension: int = 0
    """Ensemble: d, directions of the data-free basis in which moments are released; 0 = 80, of small data sets 32."""
    prior_pooled: Literal["auto", "yes", "no"] = "auto"
    """Ensemble: one second moment for all classes, with more weight on the first; auto = for small data sets."""
    extra: int = 0
    """Ensemble: images drawn from the moments that nobody is asked about, taken for the class they were drawn for."""
    prior_weight: float = 2.0
    """Ensemble: logit that an image's own class has before the votes are read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("teachers", "queries", "asks", "ensemble_steps", "prior_weight", "prior_dimension", "extra"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")
        for name in ("teacher_steps", "teacher_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 0 < self.prior_share < 1:
            raise ValueError(f"prior_share is {self.prior_share}; expected more than 0 and less than 1")
        if self.prior == "moments" and self.prior_weight == 0:
            raise ValueError("prior_weight 0 would take images drawn for a class for any class; expected more than 0")
        if self.teachers and (self.asks != 1 or self.extra) and (self.ensemble_steps or self.student_steps) == 1:
            raise ValueError("asks and extra need stored answers to be replayed: expected ensemble_steps above 1")
        if self.teacher_lr <= 0:
            raise ValueError(f"teacher_lr is {self.teacher_lr}; expected more than 0")

    @property
    def sound_needs(self) -> frozenset[str]:
        """The run's teacher, or an ensemble and perhaps the private images' moments."""
        if not self.teachers:
            return frozenset({"teacher"})
        return frozenset({"teacher_ensemble"} | ({"private_data"} if self.prior == "moments" else set()))

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The ensemble."""
        archs = tuple(name.strip() for name in (self.teacher_nets or teacher_arch).split(","))
        return Shards(self.teachers, archs, steps=self.teacher_steps, batch=self.teacher_batch, lr=self.teacher_lr)

    @property
    def step(self) -> float:
        """Of Eq. 3 in DPSD, which is the student's learning rate."""
        return self.gamma_s

    @property
    def batches(self) -> int:
        """T with one teacher; with many, as many batches as hold all queries."""
        return math.ceil(self.queries / self.batch) if self.teachers and self.queries else self.iterations

    @property
    def share(self) -> float:
        """The moments' share of the budget; 0 without them."""
        return self.prior_share if self.teachers and self.prior == "moments" else 0.0

    def ensemble_game(self, plan: Plan, mechanism: Mechanism, delta: float) -> Game:
        """One answer of two ensembles that differ in one teacher, as far as they can."""
        return ensemble_game(mechanism, plan, delta, partial(noisy_sum, plan=plan, votes=mechanism.votes))

    def convert_soundly(
        self,
        teacher: Teacher,
        student: str,
        plan: Plan,
        mechanism: Mechanism,
        bounded: BoundedGradient,
        ctx: Context,
    ) -> Release:
        """Algorithm 1 with an ensemble in the teacher's place. `_answer` asks it, `_prior` the private images.

        Args:
            bounded: (n, c) student's and (n, c) teacher's logits, plan, to (n, c) gradients of norm at most beta.
        """
        ensemble, noise = teacher.members(), ctx.privacy_noise("ensemble")
        prior = self._prior(teacher, mechanism.prior_multiplier(plan), "moments", ctx) if self.share else None
        asks = self.asks or plan.iterations
        rounds = math.ceil(plan.iterations / asks)
        learner = replace(self, student_steps=self.ensemble_steps or self.student_steps)
        players = learner.players(teacher, student, rounds, ctx)
        if prior is not None and self.extra:
            images, classes = prior.draw(self.extra, players.rng)
            players.answers.add(images, self._class_labels(classes, teacher.classes))
        with ctx.track(f"{len(ensemble)} teachers: converting", rounds * learner.student_steps) as advance:
            for asked in range(1, plan.iterations + 1):
                images, classes = (
                    (self.fresh(players, ctx), None) if prior is None else prior.draw(self.batch, players.rng)
                )
                targets = self._answer(images, classes, players.student, ensemble, plan, bounded, noise)
                players.answers.add(images, targets)
                if asked % asks == 0 or asked == plan.iterations:
                    learner.update_student(players, images, targets, ctx, advance)
                    if prior is None:
                        learner.update_generator(players, ctx, players.student)
        shown = self.fresh(players, ctx) if prior is None else prior.draw(SHOWN, players.rng)[0]
        return Release(
            student=players.student.eval(),
            arch=student,
            ledger=mechanism.ledger(plan),
            claim=None,
            generator=players.generator if prior is None else None,
            synthetic=shown[:SHOWN],
            solved={"queries": self.batch * plan.iterations, "sigma": plan.sigma},
            control=None if prior is None else self._control(teacher, student, plan, mechanism, learner, ctx),
        )

    def _prior(self, teacher: Teacher, multiplier: float, name: str, ctx: Context) -> Prior:
        """The release of class moments, and how images are drawn from it."""
        if teacher.private is None:
            raise RuntimeError("the moments need the private images")
        images, labels = teacher.private
        small = len(images) < SMALL * teacher.classes
        glyphs = teacher.dataset in GLYPHS
        d = min(self.prior_dimension or (32 if small else 80), math.prod(teacher.shape))
        seed = ctx.generator("basis").initial_seed()
        basis = (stroke_basis(teacher.shape, d, seed) if glyphs else cosine_basis(teacher.shape, d)).to(ctx.device)
        pooled = small if self.prior_pooled == "auto" else self.prior_pooled == "yes"
        noise, weight = ctx.privacy_noise(name), 0.7 if pooled else 0.5
        moments = noisy_moments(images, labels, teacher.classes, basis, multiplier, noise, weight, pooled)
        return Prior(gaussians(moments), to_stroke_image if glyphs else to_image, teacher.shape)

    def _answer(
        self,
        images: Tensor,
        classes: Tensor | None,
        phi_s: nn.Module,
        ensemble: Ensemble,
        plan: Plan,
        bounded: BoundedGradient,
        noise: Noise,
    ) -> Tensor:
        """(b, c) targets. All that is ever learnt from the teachers."""
        n, phi_s = len(ensemble), phi_s.eval()
        if self.aggregate == "votes":
            counts = noisy_sum(ensemble.votes(images), noise, plan, votes=True).float()
            if self.reading == "step":
                return F.one_hot(counts.argmax(1), counts.shape[1]).float()
            return self._posterior_of_votes(counts, classes, n, plan.sigma)
        with torch.no_grad():
            ours, theirs = phi_s(images), ensemble(images)
        total = torch.stack([bounded(ours, of_teacher, plan=plan) for of_teacher in theirs]).double().sum(0)
        mean = (noisy_sum(total, noise, plan, votes=False) / n).float()
        if self.reading == "step":
            return ours.softmax(1) - self.step * mean
        read = self.posterior_of_gradients(mean, ours, partial(bounded, plan=plan), plan.beta, plan.sigma / n)
        return read if classes is None else (read.clamp_min(1e-12).log() + self._prior_logits(read, classes)).softmax(1)

    def _posterior_of_votes(self, counts: Tensor, classes: Tensor | None, n: int, sigma: float) -> Tensor:
        """(b, c): classes weighted by the likelihood of counts of AGREEMENT n for the right one, and by the prior."""
        logits = AGREEMENT * n * counts / max(sigma, math.sqrt(n)) ** 2
        return (logits if classes is None else logits + self._prior_logits(logits, classes)).softmax(1)

    def _prior_logits(self, like: Tensor, classes: Tensor) -> Tensor:
        return self.prior_weight * F.one_hot(classes, like.shape[1]).to(like.dtype)

    def _class_labels(self, drawn_for: Tensor, classes: int) -> Tensor:
        """(n, classes) targets of images that nobody was asked about."""
        return (self.prior_weight * F.one_hot(drawn_for, classes).float()).softmax(1)

    def _control(
        self, teacher: Teacher, student: str, plan: Plan, mechanism: Mechanism, learner: Sound, ctx: Context
    ) -> nn.Module:
        """The student without teachers, of the same total budget; its answers are the classes images were drawn for."""
        prior = self._prior(teacher, mechanism.prior_multiplier(plan) * math.sqrt(self.prior_share), "control", ctx)
        rounds = math.ceil(plan.iterations / (self.asks or plan.iterations))
        players: Players = learner.players(teacher, student, rounds, ctx)
        images, classes = prior.draw(self.batch * plan.iterations + self.extra, players.rng)
        players.answers.add(images, self._class_labels(classes, teacher.classes))
        with ctx.track("control without teachers", rounds * learner.student_steps) as advance:
            for _ in range(rounds):
                learner.update_student(players, images, self._class_labels(classes, teacher.classes), ctx, advance)
        return players.student.eval()


def noisy_sum(total: Tensor, noise: Source, plan: Plan, votes: bool) -> Tensor:
    """What is released of an image: votes with rounded N(0, sigma^2), or gradients' sum with N(0, sigma^2 beta^2)."""
    if votes:
        return noisy_counts(total, "gaussian", plan.sigma, noise)
    return gaussian_rows(total, plan.sigma * plan.beta, noise)
