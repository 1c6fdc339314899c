"""Accounting of DataLens' votes: the number that its paper proves, and the ledger.

For every generated image each of n teachers has a vector of votes of norm sqrt(k) (`bench/dp_training/top_k_votes.py`).
One private record is in one teacher's part and may reverse all votes of that teacher: the sum of an image's votes
changes by 2 sqrt(k) at most, under noise of sigma on every pixel. So an image is a Gaussian of multiplier
sigma / (2 sqrt(k)), and B images in each of T steps are B T adaptive Gaussians, which compose exactly.

Published (`published_epsilon`): Renyi divergence 2 k a / sigma^2 of order a for an image, converted to epsilon by
rho(a) + log(1 / delta) / (a - 1), the smallest over a in {1.1, 2, 3, ..., 199}. It is an upper bound of the ledger's
epsilon. The released code takes the minimum of this and a bound for noisy arg-maxes that it computes from the noisy
votes; such a bound does not hold for a vector of votes, and is a function of the private data: it is not computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bench.distillation.votes.vote_bounds import epsilon_of
from bench.dp_training.accounting import MOST_STEPS
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account
from bench.privacy.counts import require_count_scale
from bench.privacy.events import gaussian_event
from bench.privacy.information import gaussian_capacity

ORDERS = np.array([1.1, *range(2, 200)])
SOURCE = "DataLens (Wang et al. 2021), Renyi, whatever the votes are"


def published_epsilon(sigma: float, k: int, images: int, delta: float) -> float:
    """Compute epsilon as the authors' code does, without its data-dependent bound; infinite at sigma 0.

    Steps of 15 images within epsilon 1 and 10 on MNIST, and within 10 on Fashion-MNIST, at the published settings:

    >>> [round(published_epsilon(5000.0, 200, 15 * steps, 1e-5), 3) for steps in (86, 87)]
    [0.996, 1.002]
    >>> [round(published_epsilon(800.0, 300, 15 * steps, 1e-5), 2) for steps in (109, 110)]
    [9.97, 10.03]
    >>> [round(published_epsilon(1000.0, 350, 15 * steps, 1e-5), 2) for steps in (146, 147)]
    [9.97, 10.01]
    """
    if sigma <= 0:
        return math.inf
    return epsilon_of(images * 2 * k * ORDERS / sigma**2, ORDERS, delta)


@dataclass(frozen=True)
class DataLensParameters:
    """Parameters of the mechanism.

    Attributes:
        sigma: noise on every pixel's sum of votes, in votes; 0 = none.
        steps: T, steps of the generator.
        batch: B, images in a step.
        k: number of coordinates that a teacher votes on.
        teachers: n, number of teachers.
        pixels: d, pixels of an image.
    """

    sigma: float
    steps: int
    batch: int
    k: int
    teachers: int
    pixels: int

    @property
    def images(self) -> int:
        """B T, number of images that are voted on."""
        return self.steps * self.batch

    @property
    def multiplier(self) -> float:
        """Ratio of the noise to the sensitivity of one image's votes."""
        return self.sigma / (2 * math.sqrt(self.k))

    def ledger(self) -> Ledger:
        """Return the ledger of all images; without noise its epsilon is infinite."""
        ledger = Ledger()
        why = f"noisy sums of {self.teachers} teachers' top-{self.k} sign vectors, one of which may turn"
        radius = self.teachers * math.sqrt(self.k)
        carries = self.images * gaussian_capacity(self.sigma / radius, self.pixels)
        ledger.spend(gaussian_event(self.multiplier), count=self.images, why=why, carries=carries)
        return ledger

    def claim(self, delta: float) -> Claim:
        """Return the published number at these settings."""
        return Claim(published_epsilon(self.sigma, self.k, self.images, delta), delta, Unit.EXAMPLE, SOURCE)

    def cost(self, budget: Budget) -> float:
        """Return the epsilon, claimed or accounted, that the budget limits."""
        if budget.account == "claimed":
            return self.claim(budget.delta).epsilon
        return account(self.ledger(), Unit.EXAMPLE, budget.delta).epsilon


def calibrate(parameters: DataLensParameters, budget: Budget) -> DataLensParameters:
    """Solve for sigma or T within the budget, by its claimed or accounted epsilon.

    Raises:
        BenchError: the budget cannot be met, or only with noise that cannot be drawn.
    """
    found = noise_or_steps(parameters, budget, lambda made: made.cost(budget), "sigma", MOST_STEPS)
    require_count_scale("the scale of the noise on the votes, in votes,", found.sigma)
    return found
