"""The two accounts of GS-WGAN: the published one, and the ledger of one record.

T generator steps, B images in each, K critics on disjoint records, sigma the noise over the sensitivity 2C of one
clipped gradient.

Published (`published_epsilon`, the claim where each image is clipped): T B Gaussians of multiplier sigma, each on a
group that is drawn again, at rate 1 / K, by the bound of Wang, Balle and Kasiviswanathan (AISTATS 2019, Theorem 9) for
sampling without replacement. But a step draws one critic for all its B images, and one record can reverse all B
gradients at once.

Ledger (`GsWganParameters.ledger`): a record is in one critic's part. A step that uses this critic is one Gaussian of
multiplier sigma (the whole batch clipped to C) or sigma / sqrt(B) (each image clipped to C); all other steps are
post-processing. The schedule is fixed independently of the data and may be public, so that the record is used in
exactly the steps of its critic; the ledger has those of the most used critic. A random schedule does not amplify
privacy: a critic keeps its state, which reveals when it was used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy.special import gammaln, logsumexp
from torch import Tensor

from bench.dp_training.accounting import MOST_STEPS
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account

HIGHEST_ORDER = 512
PAPER = "GS-WGAN's published accounting (Chen et al. 2020): T B subsampled Gaussians at rate 1/K"
BATCH = "GS-WGAN, the gradients of a whole batch clipped as one vector: T / K Gaussians"
DISPUTED = "per-image-composition"

Clipping = Literal["batch", "image"]


def published_epsilon(sigma: float, steps: int, batch: int, critics: int, delta: float) -> float:
    """Compute the published epsilon of T B Gaussians on samples without replacement at rate g = 1 / K.

    One of them has Renyi divergence of order a = 2, 3, ... at most log(1 + g^2 C(a, 2) min(4 (e^r(2) - 1), 2 e^r(2)) +
    sum over j = 3..a of 2 g^j C(a, j) e^((j - 1) r(j))) / (a - 1), r(j) = j / (2 sigma^2). The conversion is
    epsilon = min over a of T B times it + log(1 / delta) / (a - 1). For K = 1, without sampling, it is r(a). Without
    noise epsilon is infinite.

    >>> round(published_epsilon(1.07, 20_000, 32, 1000, 1e-5), 2)
    9.99
    """
    if sigma <= 0:
        return math.inf
    orders = np.arange(2, HIGHEST_ORDER + 1)
    plain = orders / (2 * sigma * sigma)
    sampled = _sampled_divergence(orders, sigma, 1 / critics)
    divergence = np.minimum(plain, sampled) if critics > 1 else plain
    return float(np.min(steps * batch * divergence + math.log(1 / delta) / (orders - 1)))


def _sampled_divergence(orders: np.ndarray, sigma: float, rate: float) -> np.ndarray:
    a, j = orders[:, None], orders[None, :]
    with np.errstate(invalid="ignore"):
        log_binomial = gammaln(a + 1) - gammaln(j + 1) - gammaln(np.maximum(a - j, 0) + 1)
    growth = j * (j - 1) / (2 * sigma * sigma)
    factor = np.full(j.shape, math.log(2.0))
    second = 1 / (sigma * sigma)
    log_four = math.log(4) + second + math.log(-math.expm1(-second))
    factor[0, 0] = min(log_four, math.log(2) + second) - second
    terms = np.where(j <= a, log_binomial + j * math.log(rate) + growth + factor, -np.inf)
    return np.logaddexp(0.0, logsumexp(terms, axis=1)) / (orders - 1)


@dataclass(frozen=True)
class GsWganParameters:
    """Parameters of the mechanism.

    Attributes:
        schedule: critic of each step, int64, of at least `steps` entries; drawn independently of the data.
        steps: T.
        batch: B.
        critics: K.
        sigma: noise over 2C; 0 = no noise.
        clipping: "batch", all gradients together are clipped to C; "image", each image's gradient is.
    """

    schedule: Tensor
    steps: int
    batch: int
    critics: int
    sigma: float
    clipping: Clipping

    @property
    def uses(self) -> int:
        """Number of steps of the most used critic."""
        return int(torch.bincount(self.schedule[: self.steps]).max())

    @property
    def multiplier(self) -> float:
        """Ratio of the noise to the joint sensitivity of one step."""
        return self.sigma / (math.sqrt(self.batch) if self.clipping == "image" else 1.0)

    def ledger(self) -> Ledger:
        """Return the ledger of the most used critic; without noise its epsilon is infinite."""
        ledger = Ledger()
        if self.sigma == 0:
            ledger.spend(NonPrivateDpEvent(), why="a critic's gradients without noise")
        else:
            why = "gradients of the one critic that saw the record, all images"
            ledger.spend(GaussianDpEvent(self.multiplier), count=self.uses, why=why)
        return ledger

    def claim(self, delta: float) -> Claim:
        """Return the claim: the paper's number if each image is clipped, else the ledger's."""
        if self.clipping == "batch":
            return Claim(account(self.ledger(), Unit.EXAMPLE, delta).epsilon, delta, Unit.EXAMPLE, BATCH)
        claimed = published_epsilon(self.sigma, self.steps, self.batch, self.critics, delta)
        return Claim(claimed, delta, Unit.EXAMPLE, PAPER, DISPUTED)

    def cost(self, budget: Budget) -> float:
        """Return the epsilon, claimed or accounted, that the budget limits."""
        if budget.account == "claimed":
            return self.claim(budget.delta).epsilon
        return account(self.ledger(), Unit.EXAMPLE, budget.delta).epsilon


def make_schedule(critics: int, steps: int, rng: torch.Generator | None) -> Tensor:
    """Return (n,) int64 critics on the CPU, n >= `steps`: cyclic, or (with a generator) uniform for each step."""
    length = max(steps, MOST_STEPS)
    if rng is None:
        return torch.arange(length) % critics
    return torch.randint(critics, (length,), generator=rng, device=rng.device).cpu()


def calibrate(parameters: GsWganParameters, budget: Budget) -> GsWganParameters:
    """Solve for sigma or T within the budget, by its claimed or accounted epsilon.

    Raises:
        BenchError: a budget that cannot be met.
    """
    return noise_or_steps(parameters, budget, lambda made: made.cost(budget), "sigma", MOST_STEPS)
