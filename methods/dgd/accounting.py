"""DGD's section III-E, for both variants: what the noisy votes claim, what the ledger is told, calibration."""

from __future__ import annotations

import math
from dataclasses import replace

from bench.distillation.votes.noisy_votes import VotePlan, calibrate, votes_epsilon
from bench.distillation.votes.vote_game import VoteStep, class_vote_game
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame
from bench.privacy.events import unprotected_event

BASELINE = "the unprotected baseline's gradients train the generator (Eq. 2)"
PRIVATE_IMAGES = "private images train the student and are put to the teachers"
UNCHARGED = {
    "": "which is all that is taken",
    BASELINE: "the generator's use of the baseline is not charged",
    PRIVATE_IMAGES: "the private images are not charged",
}
"""What is taken from the private data without protection, to the claim's words on it."""


def votes_ledger(plan: VotePlan, unprotected: str) -> Ledger:
    """Everything that is taken from the private data: the votes, and what is `unprotected` ("" = nothing else)."""
    ledger = plan.ledger()
    if unprotected:
        ledger.spend(unprotected_event(), why=unprotected)
    return ledger


def votes_claim(plan: VotePlan, delta: float, uncharged: str, code_epsilon: float = 0.0) -> Claim:
    """Section III-E: the votes, and epsilon_1 for noise on the VAE's codes.

    Args:
        uncharged: a value of `UNCHARGED`, for the claim's source.
        code_epsilon: epsilon_1; 0 = no such noise.
    """
    laplace = plan.aggregation.law == "laplace"
    formula = "section III-E" if laplace else "Gaussian votes, by this project's accountant"
    epsilon = votes_epsilon(plan, delta) + code_epsilon
    return Claim(epsilon, delta, Unit.EXAMPLE, f"DGD, {formula}; votes alone, {uncharged}")


def within(fields: VotePlan, budget: Budget, unprotected: str, code_epsilon: float = 0.0) -> VotePlan:
    """Calibration: `fields` with the noise, or the number of queries, that just meets the budget.

    Raises:
        BenchError: the budget cannot be met, with the reason.
    """
    return calibrate(fields, lambda plan: _cost(plan, budget, unprotected, code_epsilon), budget)


def _cost(plan: VotePlan, budget: Budget, unprotected: str, code_epsilon: float = 0.0) -> float:
    if budget.account == "claimed":
        return votes_epsilon(plan, budget.delta) + code_epsilon
    return account(votes_ledger(plan, unprotected), budget.unit, budget.delta).epsilon


def readable(fields: VotePlan, share: float, fewest: int, budget: Budget, unprotected: str) -> VotePlan:
    """`fields` with as many of its queries as the budget allows at a noise of `share` of the teachers, but `fewest`.

    What the votes on one image tell depends on the noise over the number of teachers; a student learns more of a few
    answers that can be read one by one than of many that drown.
    """
    if budget.epsilon is None or math.isinf(budget.epsilon) or budget.solve != "sigma":
        return fields
    if budget.account == "accounted" and budget.unit == Unit.QUERY:
        return fields
    at = fields.with_scale(share * fields.teachers)
    if _cost(at.with_queries(fewest), budget, unprotected) > budget.epsilon:
        return fields.with_queries(fewest)
    found = within(at, replace(budget, solve="steps"), unprotected)
    return fields.with_queries(min(found.queries, fields.queries))


def asks_for_a_proof(budget: Budget) -> bool:
    """Whether the budget wants a finite epsilon of one private record proved: never where anything is unprotected."""
    finite = budget.epsilon is not None and math.isfinite(budget.epsilon)
    return budget.account == "accounted" and budget.unit == Unit.EXAMPLE and finite


def one_query_game(plan: VotePlan, delta: float, label: VoteStep) -> DistinguishingGame:
    """The label of one image, with and without one teacher's change of mind: what an audit plays.

    Args:
        label: the method's labels of images.
    """
    once = VotePlan(plan.aggregation, 1, 1, plan.teachers)
    return class_vote_game(plan, votes_epsilon(once, delta), delta, label)
