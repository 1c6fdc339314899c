"""What the two PATE baselines share: images to ask about, the teachers' votes, the student, and what it all costs.

The students of the papers have unlabelled public images of the private data's own distribution, which the bench has
not. Where its images come from is the field `images`:

- "private": the private images themselves, unprotected. Nearest to the papers, whose numbers are for such images; but
  nothing is proved for a private record, and the claim is about the votes alone.
- "moments": Gaussians around the private classes, from one noisy release of their first two moments
  (`class_moments.py`), which has its own entry in the ledger, `images_share` of the budget, and a part in the claim.
- "strokes", "generated": an untrained generator's random pen strokes or smooth blots; no data at all.

Shares of a budget are of rho, the sum of e0^2 / 2 over Laplace votes and of 1 / (2 z^2) over Gaussians of noise
multiplier z (zero-concentrated privacy).

The student is trained by cross-entropy on the answered images, and on the other ones by its own confident answers:
where its largest probability reaches `sure`, that class is the target for the same image, moved about.

With images from moments there is a control, a student of the same making without the teachers: all of the budget for
the moments, and each image's label the class it was drawn for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Release, Shards, Teacher
from bench.data import to_float
from bench.data.affine import random_affine
from bench.distillation.class_moments import cosine_basis, gaussians, ink, light, release, stroke_basis
from bench.distillation.ensemble_mode import SMALL, Prior
from bench.distillation.generator_training import GLYPHS, make_generator
from bench.distillation.noisy_votes import Aggregation, VotePlan, ask, posterior, solve, vote_game
from bench.distillation.vote_bounds import Values
from bench.errors import BenchError, RunFailed
from bench.nets.initialise import xavier
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.accountant import epsilon as accounted_epsilon
from bench.privacy.audit import Game

SHARDS, LARGE = {"digits": 48}, 250
CHUNK, SHOWN = 256, 60
DIAGNOSTIC = "data_dependent_epsilon_diagnostic"
"""Name of the data-dependent epsilon among the solved parameters; a function of the votes, itself private."""


@dataclass(frozen=True)
class NoisyVotes(ABC):
    """Options of both papers' students and teachers."""

    teachers: int = 250
    """K, teachers on disjoint parts of the private data; 0 = 48 on digits, 250 on larger data sets."""
    teacher_net: str = "dgd-cnn"
    """Network of the K teachers, a name as for --teacher, or `same` for the run's own --teacher."""
    teacher_steps: int = 3000
    """Training steps of the teachers; networks of fixed features are solved instead."""
    teacher_batch: int = 128
    """Images of a teacher's part per step."""
    teacher_lr: float = 1e-3
    """First learning rate of the teachers (Adam), falling linearly to 0."""
    teacher_shift: int = 0
    """Teachers see their images moved by up to so many pixels."""
    images: Literal["private", "moments", "strokes", "generated"] = "private"
    """Student's images: private ones, unprotected; drawn from noisy class moments; pen strokes; or smooth blots."""
    images_share: float = 0.5
    """Share of the budget (of rho) that the class moments take, in (0, 1)."""
    images_dimension: int = 0
    """d, directions of the data-free basis in which moments are released; 0 = 80, of small data sets 32."""
    unlabelled: int = 8900
    """Images that nobody is asked about, for the student's semi-supervised loss; 0 = none."""
    unlabelled_weight: float = 1.0
    """Weight of the loss on the images without answers."""
    sure: float = 0.9
    """Probability from which the student's own answer is the target of an image without an answer."""
    reading: Literal["argmax", "posterior"] = "argmax"
    """Target from noisy counts: their arg-max (the papers), or each class's probability given all counts (Bayes)."""
    steps: int = 3000
    """Steps of the student's training."""
    batch: int = 128
    """Images per student step, with and without answers each."""
    lr: float = 1e-3
    """First learning rate of the student (Adam), falling linearly to 0."""
    augment: bool = False
    """Answered images are turned, scaled, sheared and moved a little at random."""
    diagnostic: bool = False
    """Put the papers' data-dependent epsilon into the record. It is private information: never publish it."""

    def __post_init__(self) -> None:
        for name in ("teacher_steps", "teacher_batch", "steps"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("teacher_lr", "lr"):
            _require(name, getattr(self, name), getattr(self, name) > 0, "more than 0")
        for name in ("teachers", "teacher_shift", "images_dimension", "unlabelled", "unlabelled_weight"):
            _require(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        _require("batch", self.batch, self.batch >= 2, "at least 2")
        _require("images_share", self.images_share, 0 < self.images_share < 1, "between 0 and 1")
        _require("sure", self.sure, 0 <= self.sure <= 1, "0 to 1")
        if self.diagnostic and self.reading == "posterior":
            raise ValueError("diagnostic is a bound for arg-maxes; expected reading argmax, or diagnostic false")

    @property
    def needs(self) -> frozenset[str]:
        """The ensemble, and the private images where they or their moments are used."""
        return frozenset({"teacher_ensemble"} | ({"private_data"} if self.images in ("private", "moments") else set()))

    @abstractmethod
    def asked(self, teachers: int) -> VotePlan:
        """What is asked of so many teachers, with the fields' own noise."""

    @abstractmethod
    def formula(self, plan: VotePlan, moments: float, delta: float) -> float:
        """Epsilon by the paper's data-independent theorem; `moments` is 1 / z^2 of the class moments, 0 = none."""

    @abstractmethod
    def formula_of_votes(self, plan: VotePlan, votes: Values, answered: Values, moments: float, delta: float) -> float:
        """Epsilon by the paper's data-dependent theorem: (n, classes) votes of all, and of the answered images."""

    @property
    @abstractmethod
    def theorem(self) -> str:
        """How a claim names the paper's theorem."""

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The K teachers."""
        return Shards(
            count=self._k(dataset),
            archs=(teacher_arch if self.teacher_net == "same" else self.teacher_net,),
            steps=self.teacher_steps,
            batch=self.teacher_batch,
            lr=self.teacher_lr,
            shift=self.teacher_shift,
        )

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise and no number of queries meets, before anything is trained."""
        self.plan(budget, dataset)

    def _k(self, dataset: str) -> int:
        return self.teachers or SHARDS.get(dataset, LARGE)

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """The queries and, from the budget, the noise on the votes (or the number of queries)."""
        if self.images == "private" and _provable(budget):
            raise BenchError(
                "--account accounted: private images train the student unprotected; use --method.images moments"
            )
        return _solved(self, budget, self._k(dataset))

    def _cost(self, plan: VotePlan, budget: Budget) -> float:
        if budget.account == "claimed":
            return self.claim(plan, budget.delta).epsilon
        return accounted_epsilon(self.ledger(plan), budget.unit, budget.delta).epsilon

    def moments_multiplier(self, plan: VotePlan) -> float:
        """z of the class moments, which leaves the votes 1 - images_share of rho; 0 = no noise."""
        if not self._noisy(plan):
            return 0.0
        return math.sqrt((1 - self.images_share) / (self.images_share * votes_squares(plan)))

    def _moments_squares(self, plan: VotePlan) -> float:
        """1 / z^2 of the class moments; 0 where there are none."""
        return self.moments_multiplier(plan) ** -2 if self.images == "moments" and self._noisy(plan) else 0.0

    @staticmethod
    def _noisy(plan: VotePlan) -> bool:
        at = plan.aggregation
        return at.scale > 0 and (at.threshold == 0 or at.threshold_scale > 0)

    def ledger(self, plan: VotePlan) -> Ledger:
        """Everything that is taken from the private data; data-independent."""
        ledger = plan.ledger()
        if self.images == "private":
            ledger.spend(NonPrivateDpEvent(), why="private images train the student and are put to the teachers")
        if self.images == "moments":
            z = self.moments_multiplier(plan)
            event = GaussianDpEvent(z) if z > 0 else NonPrivateDpEvent()
            ledger.spend(event, why="class moments of the private images, from which the student's are drawn")
        return ledger

    def claim(self, plan: VotePlan, delta: float) -> Claim:
        """The paper's data-independent theorem at these settings, for one private record."""
        value = self.formula(plan, self._moments_squares(plan), delta) if self._noisy(plan) else math.inf
        beside = {
            "private": "; votes alone, the private images are not charged",
            "moments": "; with the class moments' Gaussian in the same sum",
        }
        return Claim(value, delta, Unit.EXAMPLE, self.theorem + beside.get(self.images, ""))

    def game(self, budget: Budget, dataset: str, classes: int) -> Game:
        """The noisy votes on one image, with and without one teacher's change of mind: what an audit plays."""
        plan = self.plan(budget, dataset)
        once = replace(plan, queries=1, candidates=1)
        claimed = self.formula(once, 0.0, budget.delta) if self._noisy(plan) else math.inf
        return vote_game(plan, claimed, budget.delta)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Ask about the first of the images, then train the student. Only here are the teachers seen."""
        plan = replace(self.plan(budget, teacher.dataset), teachers=len(teacher.members()))
        rng = ctx.generator("pate")
        images = self._images(teacher, plan, rng, ctx)
        votes = torch.cat([teacher.members().votes(part) for part in images[: plan.candidates].split(CHUNK)])
        answered, counts = ask(plan, votes, ctx.privacy_noise("votes"))
        if len(answered) == 0:
            raise RunFailed("no query passed the threshold: lower --method.threshold, or ask more --method.queries")
        rest = images[plan.candidates :]
        made = self._learn(student, teacher, images[answered], self._targets(counts, plan), rest, "student", ctx)
        return Release(
            student=made,
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan, budget.delta),
            synthetic=None if self.images == "private" else images[:SHOWN],
            solved=self._solved(plan, votes, answered, budget.delta),
            control=self._control(teacher, student, plan, ctx) if self.images == "moments" else None,
        )

    def _solved(self, plan: VotePlan, votes: Tensor, answered: Tensor, delta: float) -> dict[str, float]:
        at = plan.aggregation
        found = {"queries": plan.candidates, "answers": plan.queries, "answered": len(answered), "scale": at.scale}
        if at.threshold > 0:
            found["threshold_scale"] = at.threshold_scale
        if self.images == "moments":
            found["moments_multiplier"] = self.moments_multiplier(plan)
        if self.diagnostic and self._noisy(plan):
            every = votes.double().cpu().numpy()
            read = self.formula_of_votes(plan, every, every[answered.cpu().numpy()], self._moments_squares(plan), delta)
            found[DIAGNOSTIC] = read
        return found

    def _targets(self, counts: Tensor, plan: VotePlan) -> Tensor:
        """(m, classes) targets from (m, classes) noisy counts."""
        if self.reading == "posterior":
            return posterior(counts, plan.aggregation, plan.teachers)
        return F.one_hot(counts.argmax(1), counts.shape[1]).float()

    def _images(self, teacher: Teacher, plan: VotePlan, rng: torch.Generator, ctx: Context) -> Tensor:
        """(n, c, h, w) in [0, 1]: first the images to be asked about, then those without answers."""
        count = plan.candidates + self.unlabelled
        if self.images == "private":
            return _some_private(teacher, plan.candidates, count, rng)
        if self.images == "moments":
            multiplier, noise = self.moments_multiplier(plan), ctx.privacy_noise("moments")
            return self._prior(teacher, multiplier, noise, ctx).draw(count, rng)[0]
        return _untrained(self.images, teacher, count, rng, ctx)

    def _prior(self, teacher: Teacher, multiplier: float, noise: torch.Generator, ctx: Context) -> Prior:
        """The release of class moments, and how images are drawn from it."""
        images, labels = _private(teacher)
        pooled, glyphs = len(images) < SMALL * teacher.classes, teacher.dataset in GLYPHS
        d = min(self.images_dimension or (32 if pooled else 80), math.prod(teacher.shape))
        seed = ctx.generator("basis").initial_seed()
        basis = (stroke_basis(teacher.shape, d, seed) if glyphs else cosine_basis(teacher.shape, d)).to(ctx.device)
        weight = 0.7 if pooled else 0.5
        moments = release(images, labels, teacher.classes, basis, multiplier, noise, weight, pooled)
        return Prior(gaussians(moments), ink if glyphs else light, teacher.shape)

    def _control(self, teacher: Teacher, student: str, plan: VotePlan, ctx: Context) -> nn.Module:
        """The student without teachers, of the same total budget; its answers are the classes images were drawn for."""
        multiplier = self.moments_multiplier(plan) * math.sqrt(self.images_share)
        prior = self._prior(teacher, multiplier, ctx.privacy_noise("control"), ctx)
        images, classes = prior.draw(plan.candidates + self.unlabelled, ctx.generator("control"))
        targets = F.one_hot(classes, teacher.classes).float()
        return self._learn(student, teacher, images, targets, images[:0], "control without teachers", ctx)

    def _learn(
        self, student: str, teacher: Teacher, asked: Tensor, targets: Tensor, rest: Tensor, stage: str, ctx: Context
    ) -> nn.Module:
        """The student, from (m, c, h, w) images with (m, classes) targets and (u, c, h, w) images without."""
        made, rng = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes))), ctx.generator(stage)
        call = ctx.compiled(made)
        optimizer = torch.optim.Adam(made.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / self.steps)
        with ctx.track(f"PATE: {stage}", self.steps) as advance:
            for _ in range(self.steps):
                rows = _draw(len(asked), self.batch, rng)
                x = random_affine(asked[rows], rng) if self.augment else asked[rows]
                made.train()
                with ctx.precision():
                    loss = F.cross_entropy(call(x).float(), targets[rows])
                    if len(rest) and self.unlabelled_weight:
                        others = rest[_draw(len(rest), self.batch, rng)]
                        loss = loss + self.unlabelled_weight * self._own_answers(made, call, others, rng)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                advance(1)
        return made.eval()

    def _own_answers(
        self, made: nn.Module, call: Callable[[Tensor], Tensor], images: Tensor, rng: torch.Generator
    ) -> Tensor:
        """Cross-entropy of moved images to the student's own answers, where it is sure of them; batch mean."""
        made.eval()
        with torch.no_grad():
            largest, answer = call(images).float().softmax(1).max(1)
        made.train()
        each = F.cross_entropy(call(random_affine(images, rng)).float(), answer, reduction="none")
        return (each * (largest >= self.sure)).mean()


@lru_cache(maxsize=64)
def _solved(method: NoisyVotes, budget: Budget, teachers: int) -> VotePlan:
    """The plan that a budget allows; kept, as a sound account of many votes takes seconds for each trial."""
    return solve(method.asked(teachers), partial(method._cost, budget=budget), budget)


def votes_squares(plan: VotePlan) -> float:
    """Twice rho of the votes: the sum of e0^2 over Laplace answers, or of 1 / z^2 over answers and thresholds."""
    at = plan.aggregation
    each = (2 / at.scale) ** 2 if at.law == "laplace" else 2 / at.scale**2
    return plan.queries * each + (plan.candidates / at.threshold_scale**2 if at.threshold > 0 else 0.0)


def vote_plan(noise: Aggregation, answers: int, queries: int, teachers: int) -> VotePlan:
    """At most `answers` of `queries` images answered; without a threshold, all of them are."""
    return VotePlan(noise, answers if noise.threshold > 0 else queries, queries, teachers)


def _provable(budget: Budget) -> bool:
    """Whether a finite epsilon is to be proved for one private record."""
    finite = budget.epsilon is not None and math.isfinite(budget.epsilon)
    return finite and budget.account == "accounted" and budget.unit == Unit.EXAMPLE


def _private(teacher: Teacher) -> tuple[Tensor, Tensor]:
    if teacher.private is None:
        raise RuntimeError('the private images are used; the method\'s `needs` must name "private_data"')
    return teacher.private


def _some_private(teacher: Teacher, candidates: int, count: int, rng: torch.Generator) -> Tensor:
    """At most `count` private images in random order. Raises BenchError if there are fewer than `candidates`."""
    images = _private(teacher)[0]
    if len(images) < candidates:
        raise BenchError(f"{candidates} images to query of {len(images)} private ones; lower --method.queries")
    order = torch.randperm(len(images), generator=rng, device=rng.device)[:count]
    return to_float(images.to(rng.device)[order])


def _untrained(kind: str, teacher: Teacher, count: int, rng: torch.Generator, ctx: Context) -> Tensor:
    """`count` images of a generator that nobody trained."""
    _, height, width = teacher.shape
    if kind == "strokes" and height != width:
        raise BenchError(f"images of {height}x{width} pixels: strokes are square; use --method.images generated")
    made = make_generator("strokes" if kind == "strokes" else "upsample", teacher.dataset, teacher.shape, 100, 32)
    generator = ctx.prepared(made)
    z = torch.randn(max(count, 2), generator.latent, generator=rng, device=ctx.device)  # type: ignore[call-overload]
    with torch.no_grad():
        return torch.cat([generator(part) for part in z.chunk(math.ceil(len(z) / CHUNK))])[:count]


def _draw(size: int, count: int, rng: torch.Generator) -> Tensor:
    """`count` of `size` rows, with replacement."""
    return torch.randint(size, (count,), generator=rng, device=rng.device)


def _require(name: str, value: float, holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}; expected {expected}")
