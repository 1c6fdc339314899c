"""What class moments and votes take from the private data: the ledger, calibration, and what an audit plays.

A private record adds a vector of length 1 to the sums of moments, and moves one teacher's vote on every queried image,
two counts by 1 each. Both are Gaussian mechanisms, so that the epsilon of a release is that of one Gaussian with

    mu^2 = 1 / m^2 + 2 q / sigma^2,

m the moments' noise multiplier, q the queried images, sigma the noise of a vote count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from torch import Tensor

from bench.distillation.distinguishing_games import classify_by_number, numbered_images
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Ledger, Unit, Unreachable, calibrate_noise, largest_count
from bench.privacy.accountant import account
from bench.privacy.audit import Play
from bench.privacy.counts import require_count_scale
from bench.privacy.noise import Source
from bench.privacy.plays import play_of_rows

MOST_QUERIES = 10_000_000
VOTE_SENSITIVITY = math.sqrt(2)
CLASSES = 3
"""Of the game of an audit."""

Answers = Callable[[Tensor, Ensemble, "Spending", Source], Tensor]
"""(m, c, h, w) images, the ensemble, what is spent, noise to (m, classes) noisy counts."""


@dataclass(frozen=True)
class Spending:
    """The parameters that enter the ledger.

    Attributes:
        teachers: n on disjoint parts of the private records; 0 = no one is asked.
        queries: q, images that every teacher votes on; without meaning where there are no teachers.
        sigma: noise of a vote count, in votes; 0 = none.
        share: with teachers, the moments' share of mu^2, in (0, 1).
        multiplier: without teachers, the moments' noise over their sensitivity; 0 = none.
    """

    teachers: int
    queries: int
    sigma: float
    share: float
    multiplier: float

    @property
    def moments_multiplier(self) -> float:
        """m: with teachers, what leaves the votes 1 - share of mu^2."""
        if not self.teachers:
            return self.multiplier
        odds = self.share / (1 - self.share)
        return self.sigma / VOTE_SENSITIVITY / math.sqrt(odds * self.queries)

    @property
    def whole_multiplier(self) -> float:
        """What the moments' multiplier would be if they had all of mu^2."""
        return self.moments_multiplier * (math.sqrt(self.share) if self.teachers else 1.0)

    def ledger(self) -> Ledger:
        """For one private record and, where teachers vote, for the answer to one image."""
        ledger = Ledger()
        if self.teachers:
            self._spend_votes(ledger)
        why = "class moments of the private images, from which synthetic ones are drawn"
        ledger.spend(_gaussian(self.moments_multiplier), why=why)
        return ledger

    def _spend_votes(self, ledger: Ledger) -> None:
        """A record moves one teacher, in all answers; another image may move all of them, in one answer."""
        why = f"vote counts of {self.teachers} teachers" + ("" if self.sigma > 0 else " without noise")
        for unit, moved, count in ((Unit.EXAMPLE, 1, self.queries), (Unit.QUERY, self.teachers, 1)):
            event = _gaussian(self.sigma / (moved * VOTE_SENSITIVITY))
            ledger.spend(event, count=count if self.sigma > 0 else 1, unit=unit, why=why)

    def epsilon(self, unit: Unit, delta: float) -> float:
        """What the accountant proves."""
        return account(self.ledger(), unit, delta).epsilon

    def with_noise(self, noise: float) -> Spending:
        """Another noise: of the votes, which the moments' follows, or without teachers of the moments."""
        return replace(self, sigma=noise) if self.teachers else replace(self, multiplier=noise)


def _gaussian(multiplier: float) -> GaussianDpEvent | NonPrivateDpEvent:
    return GaussianDpEvent(multiplier) if multiplier > 0 else NonPrivateDpEvent()


def calibrated(fields: Spending, budget: Budget) -> Spending:
    """Calibration: `fields` with the noise, or the number of queries, that just meets a budget.

    There is no paper and no claim: whatever --account says, the budget is held against the accounted epsilon.

    Raises:
        BenchError: the budget cannot be met, or by noise alone that cannot be drawn, with the reason.
    """
    found = _calibrated(fields, budget)
    if found.teachers:
        require_count_scale("the scale of the noise on the votes, in votes,", found.sigma)
    return found


def _calibrated(fields: Spending, budget: Budget) -> Spending:
    units = (Unit.EXAMPLE, Unit.QUERY) if fields.teachers else (Unit.EXAMPLE,)
    if budget.unit not in units:
        asked = "" if fields.teachers else ", and, with --method.teachers N, per query"
        raise BenchError(
            f"--unit {budget.unit}: class-moments is accounted per {' and per '.join(units)}{asked}; name one"
        )
    if budget.epsilon is None:
        return fields
    if math.isinf(budget.epsilon):
        return fields.with_noise(0.0)
    if budget.solve == "none":
        return fields
    if budget.solve == "steps" and not (fields.teachers and budget.unit == Unit.EXAMPLE):
        what = "the epsilon of one answer does not depend on how many" if fields.teachers else "moments are taken once"
        raise BenchError(f"--solve steps: {what}; use --solve sigma")

    def cost(trial: Spending) -> float:
        return trial.epsilon(budget.unit, budget.delta)

    try:
        if budget.solve == "steps":
            count = largest_count(lambda n: cost(replace(fields, queries=n)), budget.epsilon, MOST_QUERIES)
            return replace(fields, queries=count)
        found = calibrate_noise(lambda x: cost(fields.with_noise(x)), budget.epsilon, 0.1, 100.0, rtol=1e-4)
        return fields.with_noise(found)
    except Unreachable as error:
        raise BenchError(f"--epsilon {budget.epsilon:g} --solve {budget.solve}: {error}") from None


def votes_play(spending: Spending, answers: Answers) -> Play:
    """Play one image's noisy counts: one of two teachers votes for another class in either world.

    Args:
        answers: the method's noisy counts of images by an ensemble.
    """
    members = Ensemble([classify_by_number(0, 1, of=CLASSES), classify_by_number(1, 1, of=CLASSES)], CLASSES)  # type: ignore[list-item]

    def step(numbers: Tensor, generator: torch.Generator) -> Tensor:
        return answers(numbered_images(numbers), members, spending, generator)

    return play_of_rows(step)


def played_ledger(spending: Spending) -> Ledger:
    """Of one play, for a private record: the moments and, where teachers vote, the counts of one image."""
    ledger = replace(spending, teachers=0, multiplier=spending.moments_multiplier).ledger()
    if spending.teachers:
        ledger.spend(_gaussian(spending.sigma / VOTE_SENSITIVITY), why="one image's vote counts")
    return ledger
