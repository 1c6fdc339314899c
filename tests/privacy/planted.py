"""Parts of the faults planted into private mechanisms, and the guarantees of the correct mechanisms.

Worlds are neighbours for the correct mechanism, which is (`promised`, `delta`)-differentially private. `truth` is the
epsilon of the faulty one, with the event that shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import optimize, stats
from torch import Tensor

from bench.privacy._bounds import gaussian_epsilon
from bench.privacy.audit import DistinguishingGame, Play

DELTA = 1e-5
MU = 0.2680511
"""Gaussian differential privacy of epsilon 1 at delta 1e-5: how far apart worlds lie, in standard deviations."""
C = 10
HALF = MU / 2 / math.sqrt(2) * torch.tensor([1.0, -1.0] + [0.0] * (C - 2), dtype=torch.float64)
"""World 1's gradient at noise of standard deviation 1; world 0's is opposite, so that they lie MU apart."""
VOTE_STD = math.sqrt(2) / MU
"""For votes: one record moves one vote, sqrt(2) in L2."""


@dataclass(frozen=True)
class Planted:
    """A faulty mechanism.

    Attributes:
        name: the fault in words.
        play: see `DistinguishingGame`.
        promised, delta: the guarantee of the correct mechanism for a play.
        truth: the faulty mechanism's epsilon at `delta` and the event that shows it, computed by hand.
        plays: enough plays at seed 0; one of 2,000, 10,000, 50,000 and 1,000,000.
    """

    name: str
    play: Play
    promised: float
    delta: float
    truth: str
    plays: int = 2_000

    @property
    def game(self) -> DistinguishingGame:
        """Return the game in which the correct mechanism's guarantee is both the claim and the accounted epsilon."""
        return DistinguishingGame(self.play, self.promised, math.inf, self.delta, self.name)


def gradients(world: bool, n: int) -> Tensor:
    return (HALF if world else -HALF).expand(n, -1)


def normal(g: torch.Generator, *shape: int) -> Tensor:
    """Standard normal draws in float64."""
    return torch.randn(shape, generator=g, dtype=torch.float64)


def laplace(g: torch.Generator, *shape: int) -> Tensor:
    """Laplace draws of scale 1 in float64."""
    return torch.empty(shape, dtype=torch.float64).exponential_(generator=g) * signs(g, *shape)


def signs(g: torch.Generator, *shape: int) -> Tensor:
    """-1 or 1, evenly."""
    return torch.randint(2, shape, generator=g).double() * 2 - 1


def chance(probability: float, g: torch.Generator, n: int) -> Tensor:
    """(n, 1) booleans, true with this probability."""
    return torch.rand(n, 1, generator=g, dtype=torch.float64) < probability


def gaussian_promise(answers: int = 1, mu: float = MU) -> float:
    """Return epsilon at DELTA of that many Gaussian responses."""
    return gaussian_epsilon(mu * math.sqrt(answers), DELTA)


def sampled_promise(rate: float, mu: float) -> float:
    """Epsilon at DELTA of a Gaussian on a Poisson sample: the worse of the two directions, worked from the densities.

    With P = (1 - q) N(0, 1) + q N(mu, 1) and Q = N(0, 1), P / Q rises with x, so the best events are half-lines.
    """

    def excess(epsilon: float) -> float:
        def edge(ratio: float) -> float:
            return (math.log((ratio - 1 + rate) / rate) + mu**2 / 2) / mu if ratio > 1 - rate else -math.inf

        def tails(x: float) -> tuple[float, float]:
            under = float(stats.norm.sf(x))
            return (1 - rate) * under + rate * float(stats.norm.sf(x - mu)), under

        mixed, plain = tails(edge(math.exp(epsilon)))
        low_mixed, low_plain = tails(edge(math.exp(-epsilon)))
        removed = (1 - low_plain) - math.exp(epsilon) * (1 - low_mixed)
        return max(mixed - math.exp(epsilon) * plain, removed) - DELTA

    return float(optimize.brentq(excess, 1e-6, 10.0))
