"""Accounting of class moments and votes: the ledger, the calibration, and the game of an audit.

A private record adds a vector of length 1 to the sums of moments, and moves one teacher's vote on every queried image,
which changes two counts by 1 each. Both are Gaussian mechanisms, so the epsilon of a release is that of one Gaussian
with

    mu^2 = 1 / m^2 + 2 q / sigma^2,

where m is the moments' noise multiplier, q the number of queried images, sigma the noise of a vote count.
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
"""Number of classes in the game of an audit."""

Answers = Callable[[Tensor, Ensemble, "Spending", Source], Tensor]
"""(m, c, h, w) images, the ensemble, its releases, the source of noise -> (m, classes) noisy counts."""


@dataclass(frozen=True)
class Spending:
    """The releases of the method: the parameters from which the ledger is computed.

    Attributes:
        teachers: n, number of teachers on disjoint parts of the private records; 0 = no votes.
        queries: q, images that every teacher votes on; ignored if there are no teachers.
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
        """m, the moments' noise multiplier; with teachers, the one for `share` of mu^2."""
        if not self.teachers:
            return self.multiplier
        odds = self.share / (1 - self.share)
        return self.sigma / VOTE_SENSITIVITY / math.sqrt(odds * self.queries)

    @property
    def whole_multiplier(self) -> float:
        """The moments' noise multiplier if they had all of mu^2."""
        return self.moments_multiplier * (math.sqrt(self.share) if self.teachers else 1.0)

    def ledger(self) -> Ledger:
        """Return the ledger for one private record and, if teachers vote, for one queried image."""
        ledger = Ledger()
        if self.teachers:
            why = f"vote counts of {self.teachers} teachers" + ("" if self.sigma > 0 else " without noise")
            # A record changes one teacher, on all queries; another image may change all teachers, on one query
            for unit, moved, count in ((Unit.EXAMPLE, 1, self.queries), (Unit.QUERY, self.teachers, 1)):
                event = _gaussian(self.sigma / (moved * VOTE_SENSITIVITY))
                ledger.spend(event, count=count if self.sigma > 0 else 1, unit=unit, why=why)
        why = "class moments of the private images, from which synthetic ones are drawn"
        ledger.spend(_gaussian(self.moments_multiplier), why=why)
        return ledger

    def epsilon(self, unit: Unit, delta: float) -> float:
        """Return the accounted epsilon."""
        return account(self.ledger(), unit, delta).epsilon

    def with_noise(self, noise: float) -> Spending:
        """Return a copy with this noise: the moments' or, with teachers, that of the votes, which determines both."""
        return replace(self, sigma=noise) if self.teachers else replace(self, multiplier=noise)


def _gaussian(multiplier: float) -> GaussianDpEvent | NonPrivateDpEvent:
    return GaussianDpEvent(multiplier) if multiplier > 0 else NonPrivateDpEvent()


def calibrated(fields: Spending, budget: Budget) -> Spending:
    """Calibrate the noise, or the number of queries, to a budget.

    This method has no paper and no claim: --account is ignored, and the budget limits the accounted epsilon.

    Raises:
        BenchError: the budget cannot be met, or only with noise that cannot be drawn.
    """
    units = (Unit.EXAMPLE, Unit.QUERY) if fields.teachers else (Unit.EXAMPLE,)
    if budget.unit not in units:
        with_teachers = "" if fields.teachers else " (with --method.teachers N also per query)"
        raise BenchError(
            f"--unit {budget.unit}: class-moments is accounted per {' and per '.join(units)}{with_teachers}; "
            "choose one of these"
        )
    if budget.epsilon is None:
        found = fields
    elif math.isinf(budget.epsilon):
        found = fields.with_noise(0.0)
    elif budget.solve == "none":
        found = fields
    else:
        found = _solved(fields, budget, budget.epsilon)
    if found.teachers:
        require_count_scale("the scale of the noise on the votes, in votes,", found.sigma)
    return found


def _solved(fields: Spending, budget: Budget, epsilon: float) -> Spending:
    """Solve for the noise or the number of queries that just meets a finite epsilon."""
    if budget.solve == "steps" and not (fields.teachers and budget.unit == Unit.EXAMPLE):
        reason = (
            "the epsilon of one query does not depend on the number of queries"
            if fields.teachers
            else "the moments are released once"
        )
        raise BenchError(f"--solve steps: {reason}; use --solve sigma")

    def cost(trial: Spending) -> float:
        return trial.epsilon(budget.unit, budget.delta)

    try:
        if budget.solve == "steps":
            count = largest_count(lambda n: cost(replace(fields, queries=n)), epsilon, MOST_QUERIES)
            return replace(fields, queries=count)
        noise = calibrate_noise(lambda x: cost(fields.with_noise(x)), epsilon, 0.1, 100.0, rtol=1e-4)
        return fields.with_noise(noise)
    except Unreachable as error:
        raise BenchError(f"--epsilon {epsilon:g} --solve {budget.solve}: {error}") from None


def votes_play(spending: Spending, answers: Answers) -> Play:
    """Return the play of one image's noisy counts, where one of two teachers votes for another class in each world.

    Args:
        answers: the method's noisy vote counts of an ensemble.
    """
    members = Ensemble([classify_by_number(0, 1, of=CLASSES), classify_by_number(1, 1, of=CLASSES)], CLASSES)  # type: ignore[list-item]

    def step(numbers: Tensor, generator: torch.Generator) -> Tensor:
        return answers(numbered_images(numbers), members, spending, generator)

    return play_of_rows(step)


def played_ledger(spending: Spending) -> Ledger:
    """Return the ledger of one play: the moments and, if teachers vote, the counts of one image."""
    ledger = replace(spending, teachers=0, multiplier=spending.moments_multiplier).ledger()
    if spending.teachers:
        ledger.spend(_gaussian(spending.sigma / VOTE_SENSITIVITY), why="one image's vote counts")
    return ledger
