"""Shared code of the two PATE baselines: query images, teacher votes, the student, and the privacy cost.

The field `images` selects the student's images:

- "public": unlabelled images from the private data's distribution, as in both papers. They are half of the attacker's
  part of split iid, so the attacker has fewer images. They have no privacy cost; readers of the results must know that
  they are used.
- "private": the private images themselves, unprotected: epsilon is infinite for a private record, and the claim covers
  only the votes.
- "strokes", "generated": random pen strokes or smooth blots, drawn by an untrained generator; no data are used.

The queries, targets and student are in `bench/distillation/votes/voted_student.py`.
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
from bench.distillation.votes.noisy_votes import CHUNK, Aggregation, VotePlan, calibrate, count_votes, noisy_votes
from bench.distillation.votes.vote_bounds import Values
from bench.distillation.votes.vote_game import class_vote_game, released_counts
from bench.distillation.votes.voted_student import StudentImages, VotedStudent, draw_some
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Source

DIAGNOSTIC = "data_dependent_epsilon_diagnostic"
"""Name of the data-dependent epsilon among the solved parameters; it depends on the votes, so it is private itself."""


@dataclass(frozen=True)
class NoisyVotes(VotedStudent):
    """Options that both PATE baselines share; a subclass adds the noise on the votes and the paper's theorems."""

    images: Literal["public", "private", "strokes", "generated"] = "public"
    """Images of the student: public (the papers), private (unprotected), pen strokes, or smooth blots (generated)."""
    diagnostic: bool = False
    """Write the papers' data-dependent epsilon into the record. It is private information: never publish it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.diagnostic and self.target_estimator == "posterior":
            raise ValueError(
                "diagnostic is a bound for arg-maxes; expected target_estimator argmax, or diagnostic false"
            )

    @property
    def needs(self) -> frozenset[str]:
        """Return the needed inputs: the ensemble, and the public or private images if they are used as queries."""
        used = {"public": {"public_data"}, "private": {"private_data"}}.get(self.images, set())
        return frozenset({"teacher_ensemble"} | used)

    @abstractmethod
    def formula(self, plan: VotePlan, delta: float) -> float:
        """Return epsilon by the paper's data-independent theorem."""

    @abstractmethod
    def formula_of_votes(self, plan: VotePlan, votes: Values, answered: Values, delta: float) -> float:
        """Return epsilon by the paper's data-dependent theorem.

        Args:
            votes: (n, classes) counts of all queries, without noise; private.
            answered: (m, classes), the rows of `votes` whose images got a label.
        """

    @property
    @abstractmethod
    def theorem(self) -> str:
        """Return the name of the paper's theorem for the claim."""

    def least_public(self) -> int:
        """Return the smallest number of public images that these settings need."""
        return self.query_plan(1).candidates if self.images == "public" else 0

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """Return the queries and the noise on the votes (or the number of queries), calibrated to the budget."""
        is_finite = budget.epsilon is not None and math.isfinite(budget.epsilon)
        needs_proof = is_finite and budget.account == "accounted" and budget.unit == Unit.EXAMPLE
        if self.images == "private" and needs_proof:
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
    def _has_noise(plan: VotePlan) -> bool:
        """Return whether counts and threshold both have noise."""
        noise = plan.aggregation
        return noise.scale > 0 and (noise.threshold == 0 or noise.threshold_scale > 0)

    def ledger(self, plan: VotePlan) -> Ledger:
        """Return the data-independent ledger of all uses of the private data."""
        ledger = plan.ledger()
        if self.images == "private":
            ledger.spend(NonPrivateDpEvent(), why="private images train the student and are put to the teachers")
        return ledger

    def claim(self, plan: VotePlan, delta: float) -> Claim:
        """Return the paper's data-independent theorem at these settings, for one private record."""
        value = self.formula(plan, delta) if self._has_noise(plan) else math.inf
        limits = "; votes alone, the private images are not charged" if self.images == "private" else ""
        return Claim(value, delta, Unit.EXAMPLE, self.theorem + limits)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the audit's game: the noisy votes on one image, in two worlds that differ in one teacher's vote."""
        plan = self.plan(budget, dataset)
        once = replace(plan, queries=1, candidates=1)
        claimed = self.formula(once, budget.delta) if self._has_noise(plan) else math.inf

        def step(two: VotePlan, images: Tensor, members: Ensemble, noise: Source) -> Tensor:
            return released_counts(two, *noisy_votes(two, images, members, noise))

        return class_vote_game(plan, claimed, budget.delta, step)

    def _solved(
        self, plan: VotePlan, queried: Tensor, members: Ensemble, passed: Tensor, delta: float
    ) -> dict[str, float]:
        found = super()._solved(plan, queried, members, passed, delta)
        if self.diagnostic and self._has_noise(plan):
            votes = count_votes(queried, members).double().cpu().numpy()
            found[DIAGNOSTIC] = self.formula_of_votes(plan, votes, votes[passed.cpu().numpy()], delta)
        return found

    def _images(self, teacher: Teacher, plan: VotePlan, ctx: Context) -> StudentImages:
        count, rng = plan.candidates + self.unlabelled, ctx.generator("pate")
        if self.images == "public":
            return StudentImages(draw_some(teacher.public_images(), "public", plan.candidates, count, rng), shown=False)
        if self.images == "private":
            if teacher.private is None:
                raise RuntimeError('the private images are used; the method\'s `needs` must name "private_data"')
            return StudentImages(draw_some(teacher.private[0], "private", plan.candidates, count, rng), shown=False)
        _, height, width = teacher.shape
        if self.images == "strokes" and height != width:
            raise BenchError(f"images of {height}x{width} pixels: strokes are square; use --method.images generated")
        name = "strokes" if self.images == "strokes" else "upsample"
        generator = ctx.prepared(make_generator(name, teacher.dataset, teacher.shape, 100, 32))
        z = torch.randn(max(count, 2), generator.latent, generator=rng, device=ctx.device)  # type: ignore[call-overload]
        with torch.no_grad():
            drawn = torch.cat([generator(part) for part in z.chunk(math.ceil(len(z) / CHUNK))])[:count]
        return StudentImages(drawn, shown=True)


@lru_cache(maxsize=64)
def _calibrated(method: NoisyVotes, budget: Budget, teachers: int) -> VotePlan:
    """Return the calibrated plan; cached, as accounting many votes takes seconds for each trial."""
    return calibrate(method.query_plan(teachers), partial(method._cost, budget=budget), budget)


def vote_plan(noise: Aggregation, answers: int, queries: int, teachers: int) -> VotePlan:
    """Return a plan with at most `answers` labels for `queries` images; without a threshold every image gets one."""
    return VotePlan(noise, answers if noise.threshold > 0 else queries, queries, teachers)
