"""Privacy of DGD's noisy votes (section III-E), for both variants: ledger, claim, calibration and the audit's game."""

from __future__ import annotations

import math
from dataclasses import replace

from bench.distillation.votes.noisy_votes import VotePlan, calibrate, votes_epsilon
from bench.distillation.votes.vote_game import VoteStep, class_vote_game
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame
from bench.privacy.events import unprotected_event

BASELINE_ACCESS = "the unprotected baseline's gradients train the generator (Eq. 2)"
IMAGE_ACCESS = "private images train the student and are put to the teachers"
CLAIM_REMARKS = {
    "": "which is all that is taken",
    BASELINE_ACCESS: "the generator's use of the baseline is not charged",
    IMAGE_ACCESS: "the private images are not charged",
}
"""Unprotected access to the private data ("" = none) to the remark in the claim's source. Records contain these."""


def votes_ledger(plan: VotePlan, unprotected: str) -> Ledger:
    """Return the ledger of the votes and of the unprotected access, a key of `CLAIM_REMARKS` ("" = none)."""
    ledger = plan.ledger()
    if unprotected:
        ledger.spend(unprotected_event(), why=unprotected)
    return ledger


def votes_claim(plan: VotePlan, delta: float, unprotected: str, code_epsilon: float = 0.0) -> Claim:
    """Return the claim of section III-E: the epsilon of the votes plus epsilon_1 of the noise on the VAE's codes.

    Args:
        unprotected: a key of `CLAIM_REMARKS`.
        code_epsilon: epsilon_1; 0 = no noise on the codes.
    """
    laplace = plan.aggregation.law == "laplace"
    formula = "section III-E" if laplace else "Gaussian votes, by this project's accountant"
    epsilon = votes_epsilon(plan, delta) + code_epsilon
    return Claim(epsilon, delta, Unit.EXAMPLE, f"DGD, {formula}; votes alone, {CLAIM_REMARKS[unprotected]}")


def calibrate_votes(fields: VotePlan, budget: Budget, unprotected: str, code_epsilon: float = 0.0) -> VotePlan:
    """Return `fields` with the noise, or the number of queries, that just meets the budget.

    Raises:
        BenchError: the budget cannot be met; the message has the reason.
    """
    return calibrate(fields, lambda plan: _epsilon(plan, budget, unprotected, code_epsilon), budget)


def _epsilon(plan: VotePlan, budget: Budget, unprotected: str, code_epsilon: float = 0.0) -> float:
    """Return the epsilon of the plan, claimed or accounted as the budget says."""
    if budget.account == "claimed":
        return votes_epsilon(plan, budget.delta) + code_epsilon
    return account(votes_ledger(plan, unprotected), budget.unit, budget.delta).epsilon


def limit_queries(fields: VotePlan, share: float, minimum: int, budget: Budget, unprotected: str) -> VotePlan:
    """Return `fields` with as many queries as the budget allows at a noise scale of `share` times the teachers' number.

    The information of the votes on one image depends on noise / teachers. A student learns more from few queries with
    little noise than from many with much.

    Args:
        fields: its number of queries is the maximum.
        share: noise scale on a vote count, divided by the number of teachers, > 0.
        minimum: number of queries if the budget allows fewer at this noise.
        unprotected: a key of `CLAIM_REMARKS`.
    """
    if budget.epsilon is None or math.isinf(budget.epsilon) or budget.solve != "sigma":
        return fields
    if budget.account == "accounted" and budget.unit == Unit.QUERY:
        return fields
    plan = fields.with_scale(share * fields.teachers)
    if _epsilon(plan.with_queries(minimum), budget, unprotected) > budget.epsilon:
        return fields.with_queries(minimum)
    calibrated = calibrate_votes(plan, replace(budget, solve="steps"), unprotected)
    return fields.with_queries(min(calibrated.queries, fields.queries))


def needs_record_guarantee(budget: Budget) -> bool:
    """Whether the budget limits the accounted epsilon of one private record.

    No setting with unprotected access to the private data can meet such a budget.
    """
    finite = budget.epsilon is not None and math.isfinite(budget.epsilon)
    return budget.account == "accounted" and budget.unit == Unit.EXAMPLE and finite


def one_query_game(plan: VotePlan, delta: float, label: VoteStep) -> DistinguishingGame:
    """Build the audit's game: the noisy label of one image, with and without a changed vote of one teacher.

    Args:
        label: the method's own function that labels images by noisy votes.
    """
    one_query = VotePlan(plan.aggregation, 1, 1, plan.teachers)
    return class_vote_game(plan, votes_epsilon(one_query, delta), delta, label)
