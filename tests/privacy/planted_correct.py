"""Correct mechanisms, from the bench where it has them, each with its exact epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from planted import DELTA, VOTE_STD, gaussian_promise
from planted_counts import candidates, labels, noisy, votes
from scipy import optimize, stats
from torch import Tensor

from bench.distillation.votes.noisy_votes import Aggregation
from bench.privacy.audit import DistinguishingGame, Play
from bench.privacy.mechanisms import randomised_response

TEACHERS = 50
CONFIDENT = Aggregation("gaussian", VOTE_STD, threshold=26.0, threshold_scale=3 * VOTE_STD)


@dataclass(frozen=True)
class Correct:
    """A mechanism whose smallest epsilon at `delta`, between the two worlds that are played, is `epsilon`."""

    name: str
    play: Play
    epsilon: float
    delta: float

    @property
    def game(self) -> DistinguishingGame:
        return DistinguishingGame(self.play, self.epsilon, math.inf, self.delta, self.name)


def voting(aggregation: Aggregation) -> Play:
    """The bench's own noisy votes: 25 and 25 of 50, or 24 and 26; with a threshold, zeros without a response."""

    def play(world: bool, n: int, g: torch.Generator) -> Tensor:
        asked = (votes(24, 26) if world else votes(25, 25)).expand(n, -1)
        counts = aggregation.counts(asked, g)
        if aggregation.threshold > 0:
            answered = aggregation.confident(asked, g)[:, None]
            counts = torch.cat([counts * answered, answered], 1)
        return counts.float()

    return play


def response(world: bool, n: int, g: torch.Generator) -> Tensor:
    return randomised_response(labels(world, n), candidates(n), 1.0, g)[:, None].double()


def sorted_votes(world: bool, n: int, g: torch.Generator) -> Tensor:
    counts = votes(15, 9, 11, 15) if world else votes(15, 10, 10, 15)
    return noisy(counts.sort(descending=True).values, n, g)


def clamped_votes(world: bool, n: int, g: torch.Generator) -> Tensor:
    return noisy(votes(1, 49) if world else votes(0, 50), n, g).clamp(0, TEACHERS)


def rounded_votes(world: bool, n: int, g: torch.Generator) -> Tensor:
    return noisy(votes(24, 26) if world else votes(25, 25), n, g).round()


def confident_epsilon() -> float:
    """Exact: no response is one event; a response, with probability a in one world and b in the other, is Gaussian."""
    no = [stats.norm.cdf((CONFIDENT.threshold - most) / CONFIDENT.threshold_scale) for most in (25, 26)]
    mu = math.sqrt(2) / VOTE_STD

    def excess(epsilon: float) -> float:
        worst = -1.0
        for this, other in (no, no[::-1]):
            level = epsilon + math.log((1 - other) / (1 - this))
            answered = stats.norm.cdf(mu / 2 - level / mu) - math.exp(level) * stats.norm.cdf(-mu / 2 - level / mu)
            worst = max(worst, max(this - math.exp(epsilon) * other, 0.0) + (1 - this) * answered)
        return worst - DELTA

    return float(optimize.brentq(excess, 0.0, 5.0))


CORRECT = [
    Correct("Gaussian votes", voting(Aggregation("gaussian", VOTE_STD)), gaussian_promise(), DELTA),
    Correct("Laplace votes", voting(Aggregation("laplace", 2.0)), 1.0, 0.0),
    Correct("randomised response", response, 1.0, 0.0),
    Correct("confident GNMax", voting(CONFIDENT), confident_epsilon(), DELTA),
    Correct("private counts sorted before independent noise", sorted_votes, gaussian_promise(), DELTA),
    Correct("noisy votes clamped to 0 and 50", clamped_votes, gaussian_promise(), DELTA),
    Correct("noisy votes rounded", rounded_votes, gaussian_promise(), DELTA),
]
