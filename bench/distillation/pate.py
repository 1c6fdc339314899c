"""What the two PATE baselines share: images to ask about, the teachers' votes, the student, and what it all costs.

Where the student's images come from is the field `images`:

- "public": unlabelled images of the private data's own distribution, as both papers have them; half of the attacker's
  part of split iid, which the attacker then lacks. They cost nothing, and whoever reads the numbers must know of them.
- "private": the private images themselves, unprotected: nothing is proved for a private record, and the claim is about
  the votes alone.
- "strokes", "generated": an untrained generator's random pen strokes or smooth blots; no data at all.

The student is trained by cross-entropy on the answered images, and on the other ones by its own confident answers:
where its largest probability reaches `sure`, that class is the target for the same image, moved about.
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
from dp_accounting import NonPrivateDpEvent
from torch import Tensor, nn

from bench import data, nets
from bench.api import Context, Release, Shards, Teacher
from bench.config import Departure, Size
from bench.data import to_float
from bench.data.affine import random_affine
from bench.distillation.generator_training import make_generator
from bench.distillation.noisy_votes import Aggregation, VotePlan, ask, calibrate, posterior, vote_game
from bench.distillation.vote_bounds import Values
from bench.errors import BenchError, RunFailed
from bench.nets.initialise import xavier
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame
from bench.validate import at_least, between, positive

PAPER_TEACHERS = 250
CHUNK, SHOWN = 256, 60
DIAGNOSTIC = "data_dependent_epsilon_diagnostic"
"""Name of the data-dependent epsilon among the solved parameters; a function of the votes, itself private."""
MOVED_ABOUT = Departure(
    what="answered images are turned, scaled, sheared and moved a little whenever they are drawn",
    why="a student of some hundred answers, trained for hundreds of passes over them, fits the images and their noise",
    sets={"augment": True},
)


@dataclass(frozen=True)
class NoisyVotes(ABC):
    """Options of both papers' students and teachers."""

    teachers: Size[int] = 250
    """K, teachers on disjoint parts of the private data; 0 = 48 on digits, 250 on larger data sets."""
    teacher_net: Size[str] = "dgd-cnn"
    """Network of the K teachers, a name as for --teacher, or `same` for the run's own --teacher."""
    teacher_steps: Size[int] = 3000
    """Training steps of the teachers; networks of fixed features are solved instead."""
    teacher_batch: Size[int] = 128
    """Images of a teacher's part per step."""
    teacher_lr: float = 1e-3
    """First learning rate of the teachers (Adam), falling linearly to 0."""
    teacher_shift: int = 0
    """Teachers see their images moved by up to so many pixels."""
    images: Literal["public", "private", "strokes", "generated"] = "public"
    """Student's images: public ones (the papers); private ones, unprotected; pen strokes; or smooth blots."""
    unlabelled: Size[int] = 8900
    """Images that no one is asked about, for the student's semi-supervised loss; fewer where there are fewer."""
    unlabelled_weight: float = 1.0
    """Weight of the loss on the images without answers."""
    sure: float = 0.9
    """Probability from which the student's own answer is the target of an image without an answer."""
    target_estimator: Literal["argmax", "posterior"] = "argmax"
    """Target from noisy counts: their arg-max (the papers), or the posterior mean of the class given all counts."""
    steps: Size[int] = 3000
    """Steps of the student's training."""
    batch: Size[int] = 128
    """Images per student step, with and without answers each."""
    lr: float = 1e-3
    """First learning rate of the student (Adam), falling linearly to 0."""
    augment: bool = False
    """Answered images are turned, scaled, sheared and moved a little at random."""
    diagnostic: bool = False
    """Put the papers' data-dependent epsilon into the record. It is private information: never publish it."""

    def __post_init__(self) -> None:
        at_least(self, 1, "teacher_steps", "teacher_batch", "steps")
        at_least(self, 2, "batch")
        at_least(self, 0, "teachers", "teacher_shift", "unlabelled", "unlabelled_weight")
        positive(self, "teacher_lr", "lr")
        between(self, 0, 1, "sure")
        if self.diagnostic and self.target_estimator == "posterior":
            raise ValueError(
                "diagnostic is a bound for arg-maxes; expected target_estimator argmax, or diagnostic false"
            )

    @property
    def needs(self) -> frozenset[str]:
        """The ensemble, and the public or private images where they are asked about."""
        used = {"public": {"public_data"}, "private": {"private_data"}}.get(self.images, set())
        return frozenset({"teacher_ensemble"} | used)

    @abstractmethod
    def asked(self, teachers: int) -> VotePlan:
        """What is asked of so many teachers, with the fields' own noise."""

    @abstractmethod
    def formula(self, plan: VotePlan, delta: float) -> float:
        """Epsilon by the paper's data-independent theorem."""

    @abstractmethod
    def formula_of_votes(self, plan: VotePlan, votes: Values, answered: Values, delta: float) -> float:
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

    def least_public(self) -> int:
        """The fewest public images that these settings can do with."""
        return self.asked(1).candidates if self.images == "public" else 0

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise and no number of queries meets, before anything is trained."""
        self.plan(budget, dataset)

    def _k(self, dataset: str) -> int:
        return self.teachers or data.facts(dataset).teachers or PAPER_TEACHERS

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """The queries and, from the budget, the noise on the votes (or the number of queries)."""
        if self.images == "private" and _provable(budget):
            raise BenchError(
                "--account accounted: private images train the student unprotected; use --method.images public"
            )
        return _calibrated(self, budget, self._k(dataset))

    def _cost(self, plan: VotePlan, budget: Budget) -> float:
        if budget.account == "claimed":
            return self.claim(plan, budget.delta).epsilon
        return account(self.ledger(plan), budget.unit, budget.delta).epsilon

    @staticmethod
    def _noisy(plan: VotePlan) -> bool:
        at = plan.aggregation
        return at.scale > 0 and (at.threshold == 0 or at.threshold_scale > 0)

    def ledger(self, plan: VotePlan) -> Ledger:
        """Everything that is taken from the private data; data-independent."""
        ledger = plan.ledger()
        if self.images == "private":
            ledger.spend(NonPrivateDpEvent(), why="private images train the student and are put to the teachers")
        return ledger

    def claim(self, plan: VotePlan, delta: float) -> Claim:
        """The paper's data-independent theorem at these settings, for one private record."""
        value = self.formula(plan, delta) if self._noisy(plan) else math.inf
        beside = "; votes alone, the private images are not charged" if self.images == "private" else ""
        return Claim(value, delta, Unit.EXAMPLE, self.theorem + beside)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """The noisy votes on one image, with and without one teacher's change of mind: what an audit plays."""
        plan = self.plan(budget, dataset)
        once = replace(plan, queries=1, candidates=1)
        claimed = self.formula(once, budget.delta) if self._noisy(plan) else math.inf
        return vote_game(plan, claimed, budget.delta)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Ask about the first of the images, then train the student. Only here are the teachers seen."""
        plan = replace(self.plan(budget, teacher.dataset), teachers=len(teacher.members()))
        images = self._images(teacher, plan, ctx.generator("pate"), ctx)
        votes = torch.cat([teacher.members().votes(part) for part in images[: plan.candidates].split(CHUNK)])
        answered, counts = ask(plan, votes, ctx.privacy_noise("votes"))
        if len(answered) == 0:
            raise RunFailed("no query passed the threshold: lower --method.threshold, or ask more --method.query_count")
        rest = images[plan.candidates :]
        made = self._learn(student, teacher, images[answered], self._targets(counts, plan), rest, ctx)
        return Release(
            student=made,
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan, budget.delta),
            synthetic=images[:SHOWN] if self.images in ("strokes", "generated") else None,
            solved=self._solved(plan, votes, answered, budget.delta),
        )

    def _solved(self, plan: VotePlan, votes: Tensor, answered: Tensor, delta: float) -> dict[str, float]:
        at = plan.aggregation
        found = {"queries": plan.candidates, "answers": plan.queries, "answered": len(answered), "scale": at.scale}
        if at.threshold > 0:
            found["threshold_scale"] = at.threshold_scale
        if self.diagnostic and self._noisy(plan):
            every = votes.double().cpu().numpy()
            found[DIAGNOSTIC] = self.formula_of_votes(plan, every, every[answered.cpu().numpy()], delta)
        return found

    def _targets(self, counts: Tensor, plan: VotePlan) -> Tensor:
        """(m, classes) targets from (m, classes) noisy counts."""
        if self.target_estimator == "posterior":
            return posterior(counts, plan.aggregation, plan.teachers)
        return F.one_hot(counts.argmax(1), counts.shape[1]).float()

    def _images(self, teacher: Teacher, plan: VotePlan, rng: torch.Generator, ctx: Context) -> Tensor:
        """(n, c, h, w) in [0, 1]: first the images to be asked about, then those without answers."""
        count = plan.candidates + self.unlabelled
        if self.images == "public":
            return _some(teacher.public_images(), "public", plan.candidates, count, rng)
        if self.images == "private":
            if teacher.private is None:
                raise RuntimeError('the private images are used; the method\'s `needs` must name "private_data"')
            return _some(teacher.private[0], "private", plan.candidates, count, rng)
        return _untrained(self.images, teacher, count, rng, ctx)

    def _learn(
        self, student: str, teacher: Teacher, asked: Tensor, targets: Tensor, rest: Tensor, ctx: Context
    ) -> nn.Module:
        """The student, from (m, c, h, w) images with (m, classes) targets and (u, c, h, w) images without."""
        made, rng = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes))), ctx.generator("student")
        call = ctx.compiled(made)
        optimizer = torch.optim.Adam(made.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / self.steps)
        with ctx.track("PATE: student", self.steps) as advance:
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
def _calibrated(method: NoisyVotes, budget: Budget, teachers: int) -> VotePlan:
    """The calibrated plan; kept, as a sound account of many votes takes seconds for each trial."""
    return calibrate(method.asked(teachers), partial(method._cost, budget=budget), budget)


def vote_plan(noise: Aggregation, answers: int, queries: int, teachers: int) -> VotePlan:
    """At most `answers` of `queries` images answered; without a threshold, all of them are."""
    return VotePlan(noise, answers if noise.threshold > 0 else queries, queries, teachers)


def _provable(budget: Budget) -> bool:
    """Whether a finite epsilon is to be proved for one private record."""
    finite = budget.epsilon is not None and math.isfinite(budget.epsilon)
    return finite and budget.account == "accounted" and budget.unit == Unit.EXAMPLE


def _some(images: Tensor, whose: str, candidates: int, count: int, rng: torch.Generator) -> Tensor:
    """At most `count` of the images in random order. Raises BenchError if there are fewer than `candidates`."""
    if len(images) < candidates:
        raise BenchError(f"{candidates} images to query of {len(images)} {whose} ones; lower --method.query_count")
    order = torch.randperm(len(images), generator=rng, device=rng.device)[:count]
    return to_float(images.to(rng.device)[order])


def _untrained(kind: str, teacher: Teacher, count: int, rng: torch.Generator, ctx: Context) -> Tensor:
    """`count` images of a generator that was never trained."""
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
