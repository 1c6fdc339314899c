"""What the two PATE baselines share: images to ask about, the teachers' votes, the student, and what it all costs.

Where the student's images come from is the field `images`:

- "public": unlabelled images of the private data's own distribution, as both papers have them; half of the attacker's
  part of split iid, which the attacker then lacks. They cost nothing, and whoever reads the numbers must know of them.
- "private": the private images themselves, unprotected: nothing is proved for a private record, and the claim is about
  the votes alone.
- "strokes", "generated": an untrained generator's random pen strokes or smooth blots; no data at all.

Asking, targets and the student are `bench/distillation/votes/voted_student.py`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import torch
from dp_accounting import NonPrivateDpEvent
from torch import Tensor

from bench.api import Context, Teacher
from bench.distillation.generator_training import make_generator
from bench.distillation.votes.noisy_votes import CHUNK, Aggregation, VotePlan, calibrate, noisy_votes, put_to_vote
from bench.distillation.votes.vote_bounds import Values
from bench.distillation.votes.vote_game import class_vote_game, released_counts
from bench.distillation.votes.voted_student import StudentImages, VotedStudent, some_of
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Source

DIAGNOSTIC = "data_dependent_epsilon_diagnostic"
"""Name of the data-dependent epsilon among the solved parameters; a function of the votes, itself private."""


@dataclass(frozen=True)
class NoisyVotes(VotedStudent):
    """Options of both papers' students and teachers."""

    images: Literal["public", "private", "strokes", "generated"] = "public"
    """Student's images: public ones (the papers); private ones, unprotected; pen strokes; or smooth blots."""
    diagnostic: bool = False
    """Put the papers' data-dependent epsilon into the record. It is private information: never publish it."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
    def formula(self, plan: VotePlan, delta: float) -> float:
        """Epsilon by the paper's data-independent theorem."""

    @abstractmethod
    def formula_of_votes(self, plan: VotePlan, votes: Values, answered: Values, delta: float) -> float:
        """Epsilon by the paper's data-dependent theorem: (n, classes) votes of all, and of the answered images."""

    @property
    @abstractmethod
    def theorem(self) -> str:
        """How a claim names the paper's theorem."""

    def least_public(self) -> int:
        """The fewest public images that these settings can do with."""
        return self.asked(1).candidates if self.images == "public" else 0

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """The queries and, from the budget, the noise on the votes (or the number of queries)."""
        if self.images == "private" and _provable(budget):
            raise BenchError(
                "--account accounted: private images train the student unprotected; use --method.images public"
            )
        return _calibrated(self, budget, self._k(dataset))

    def _cost(self, plan: VotePlan, budget: Budget) -> float:
        if budget.account == "claimed":
            try:
                return self.claim(plan, budget.delta).epsilon
            except ArithmeticError:
                raise BenchError(
                    f"noise of {plan.aggregation.scale:g} on counts and {plan.aggregation.threshold_scale:g} on the "
                    "threshold: the published formula overflows; expected values nearer to the number of teachers"
                ) from None
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

        def step(two: VotePlan, images: Tensor, members: Ensemble, noise: Source) -> Tensor:
            return released_counts(two, *noisy_votes(two, images, members, noise))

        return class_vote_game(plan, claimed, budget.delta, step)

    def _solved(
        self, plan: VotePlan, asked: Tensor, members: Ensemble, answered: Tensor, delta: float
    ) -> dict[str, float]:
        found = super()._solved(plan, asked, members, answered, delta)
        if self.diagnostic and self._noisy(plan):
            every = put_to_vote(asked, members).double().cpu().numpy()
            found[DIAGNOSTIC] = self.formula_of_votes(plan, every, every[answered.cpu().numpy()], delta)
        return found

    def _images(self, teacher: Teacher, plan: VotePlan, ctx: Context) -> StudentImages:
        count, rng = plan.candidates + self.unlabelled, ctx.generator("pate")
        if self.images == "public":
            return StudentImages(some_of(teacher.public_images(), "public", plan.candidates, count, rng), shown=False)
        if self.images == "private":
            if teacher.private is None:
                raise RuntimeError('the private images are used; the method\'s `needs` must name "private_data"')
            return StudentImages(some_of(teacher.private[0], "private", plan.candidates, count, rng), shown=False)
        return StudentImages(_untrained(self.images, teacher, count, rng, ctx), shown=True)


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
