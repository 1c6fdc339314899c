"""The distinguishing game of noisy votes, for audits: two teachers on one image, one of which changes its vote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bench.distillation.distinguishing_games import classify_by_number, numbered_images
from bench.distillation.votes.noisy_votes import VotePlan
from bench.nets import Ensemble
from bench.privacy import Unit
from bench.privacy.accountant import account, accounted_curve
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Source
from bench.privacy.plays import play_of_rows

CLASSES = 3
"""Number of classes in the game: one for each of the two teachers, and one without votes."""
PLAYS = 100_000
Step = Callable[[Tensor, VotePlan, torch.Generator], Tensor]
"""Step under audit: (m,) image numbers, plan of the two teachers, generator -> (m, d) released numbers per image.

On image 0 the two teachers vote for different classes, on image 1 for the same one.
"""
VoteStep = Callable[[VotePlan, Tensor, Ensemble, Source], Tensor]
"""Step under audit for teachers of classes: plan, (m, c, h, w) images, ensemble, noise -> (m, d) released numbers."""


def vote_game(plan: VotePlan, claimed: float, delta: float, step: Step) -> DistinguishingGame:
    """Build the game of one image's label, on which one of two teachers changes its vote. Unit `example`.

    The game has two teachers, with the noise of the release. A threshold is scaled to two teachers. The largest count
    is 1 in world 0, and 2 in world 1.

    Args:
        plan: the plan of a release, whose noise is audited.
        claimed: the epsilon of one query at `delta` by the paper's formula.
        step: the method's function that collects and aggregates votes.
    """
    threshold = 2 * plan.aggregation.threshold / plan.teachers
    two = replace(plan, aggregation=replace(plan.aggregation, threshold=threshold), teachers=2)

    def responses(numbers: Tensor, generator: torch.Generator) -> Tensor:
        return step(numbers, replace(two, queries=len(numbers), candidates=len(numbers)), generator).double()

    ledger = replace(plan, queries=1, candidates=1).ledger()
    return DistinguishingGame(
        play=play_of_rows(responses),
        claimed=claimed,
        accounted=account(ledger, Unit.EXAMPLE, delta).epsilon,
        delta=delta,
        describe="the noisy votes of two teachers on an image, for which one of them changes its vote",
        curve=accounted_curve(ledger, Unit.EXAMPLE),
        plays=PLAYS,
    )


def class_vote_game(plan: VotePlan, claimed: float, delta: float, step: VoteStep) -> DistinguishingGame:
    """Build `vote_game` for teachers that vote for classes: votes (1, 1, 0) in world 0 and (0, 2, 0) in world 1."""
    members = Ensemble([classify_by_number(0, 1, of=CLASSES), classify_by_number(1, 1, of=CLASSES)], CLASSES)  # type: ignore[list-item]
    return vote_game(plan, claimed, delta, lambda numbers, two, rng: step(two, numbered_images(numbers), members, rng))


def released_counts(plan: VotePlan, passed: Tensor, counts: Tensor) -> Tensor:
    """Return (n, classes) noisy counts; with a threshold (n, classes + 1), counts and 1, or zeros for a failed image.

    Args:
        passed: (m,) int64 rows that passed the threshold.
        counts: (m, classes), their noisy counts.
    """
    if plan.aggregation.threshold <= 0:
        return counts
    released = counts.new_zeros(plan.candidates, counts.shape[1] + 1)
    released[passed] = torch.cat([counts, counts.new_ones(len(counts), 1)], 1)
    return released
