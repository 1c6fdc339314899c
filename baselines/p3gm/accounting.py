"""Accounting of P3GM's phases: the paper's composition, the ledger, and the calibration of all noises."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import PoissonSampledDpEvent
from scipy import special

from bench.dp_training.accounting import MOST_STEPS
from bench.errors import BenchError
from bench.privacy import Budget, Claim, Ledger, Unit, Unreachable, calibrate_noise, noise_or_steps
from bench.privacy.accountant import account
from bench.privacy.events import gaussian_event
from bench.validate import present

ORDERS = np.arange(2, 513)


@dataclass(frozen=True)
class P3gmParameters:
    """Parameters of the mechanism.

    Attributes:
        mean, components, mixture, gradients: sigma_m (None if m is 1/2), sigma_p, sigma_e, sigma_s.
        kinds: K.
        iterations: iterations of expectation maximisation.
        sampling: q in (0, 1].
        steps: T; 0 = only the first phase.
        factor: factor by which the first three noises were scaled.
    """

    mean: float | None
    components: float
    mixture: float
    gradients: float
    kinds: int
    iterations: int
    sampling: float
    steps: int
    factor: float = 1.0

    def scaled(self, by: float) -> P3gmParameters:
        """Return a copy in which the first phase's noises are multiplied by a factor."""
        mean = None if self.mean is None else by * self.mean
        return replace(
            self, mean=mean, components=by * self.components, mixture=by * self.mixture, factor=by * self.factor
        )

    def within(self, budget: Budget, share: float) -> P3gmParameters:
        """Scale the first phase's noises until it costs `share` of the budget, then solve for sigma_s.

        Raises:
            Unreachable: no noise is enough.
        """
        epsilon = present(budget.epsilon, "epsilon to share out")
        first = replace(self, steps=0)
        factor = calibrate_noise(lambda by: first.scaled(by).cost(budget), share * epsilon, 0.25, 2.0)
        scaled = self.scaled(factor)
        width = 1e-3 if budget.account == "claimed" else 5e-3
        sigma = calibrate_noise(lambda z: replace(scaled, gradients=z).cost(budget), epsilon, 0.5, 2.0, width)
        return replace(scaled, gradients=sigma)

    def ledger(self) -> Ledger:
        """Return the ledger with every release."""
        ledger = Ledger()
        if self.mean is not None:
            ledger.spend(gaussian_event(self.mean), why="mean of the private records")
        ledger.spend(gaussian_event(self.components), why="principal components of the private records")
        releases = self.iterations * (3 if self.kinds > 1 else 2)
        ledger.spend(
            gaussian_event(self.mixture), count=releases, why="sums of expectation maximisation on private codes"
        )
        event = gaussian_event(self.gradients)
        if self.gradients > 0:
            event = PoissonSampledDpEvent(self.sampling, event)
        if self.steps:
            ledger.spend(event, count=self.steps, why="clipped gradients of a Poisson sample of the private records")
        return ledger

    def claim(self, delta: float) -> Claim:
        """Return the claim: the paper's sum of Renyi divergences, with 2K + 1 releases an iteration."""
        return Claim(self.renyi_epsilon(delta), delta, Unit.EXAMPLE, "P3GM 2021, Renyi composition of its phases")

    def cost(self, budget: Budget) -> float:
        """Return the epsilon, claimed or accounted, that `budget` limits."""
        if budget.account == "claimed":
            return self.renyi_epsilon(budget.delta)
        return account(self.ledger(), Unit.EXAMPLE, budget.delta).epsilon

    def solved(self) -> dict[str, float]:
        """Return the solved values for the record."""
        return {
            "factor": self.factor,
            "sigma": self.gradients,
            "steps": float(self.steps),
            "sampling": self.sampling,
        }

    def renyi_epsilon(self, delta: float) -> float:
        """Compute min over integers a of R(a) + log((a - 1) / a) - (log delta + log a) / (a - 1) (Balle et al. 2020).

        R(a) = a/2 (1/sigma_m^2 + 1/sigma_p^2 + iterations (2K + 1) / sigma_e^2) + T S(a), S as `sampled_renyi`.
        """
        squares = [(self.components, 1), (self.mixture, self.iterations * (2 * self.kinds + 1))]
        if self.mean is not None:
            squares.append((self.mean, 1))
        if min(self.gradients, *(sigma for sigma, _ in squares)) <= 0:
            return math.inf
        plain = sum(count / sigma**2 for sigma, count in squares)
        total = ORDERS * plain / 2 + self.steps * sampled_renyi(self.sampling, self.gradients)
        spent = total + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
        least = float(spent.min())
        return math.inf if math.isnan(least) else max(0.0, least)  # NaN: the square of a noise underflows to 0


def calibrate(parameters: P3gmParameters, budget: Budget, share: float) -> P3gmParameters:
    """Calibrate the noises, or T, to `budget`; `share` is the first phase's share of epsilon.

    Raises:
        BenchError: the budget cannot be met.
    """
    if budget.epsilon is None:
        return parameters
    if math.isinf(budget.epsilon):
        return replace(parameters.scaled(0.0), gradients=0.0)
    if budget.solve == "none":
        return parameters
    if budget.solve == "steps":
        return noise_or_steps(parameters, budget, lambda made: made.cost(budget), "gradients", MOST_STEPS)
    try:
        return parameters.within(budget, share)
    except Unreachable as error:
        raise BenchError(f"--epsilon {budget.epsilon:g} --solve {budget.solve}: {error}") from None


def sampled_renyi(sampling: float, sigma: float) -> np.ndarray:
    """Compute the Renyi divergence of the Poisson-sampled Gaussian at all `ORDERS` (Mironov, Talwar and Zhang 2019).

    log(sum_k binom(a, k) (1 - q)^(a - k) q^k exp((k^2 - k) / (2 sigma^2))) / (a - 1), k from 0 to a.

    >>> float(sampled_renyi(1.0, 2.0)[0])
    0.25
    """
    a, k = ORDERS[:, None].astype(float), np.arange(ORDERS[-1] + 1)[None].astype(float)
    choose = special.gammaln(a + 1) - special.gammaln(k + 1) - special.gammaln(np.maximum(a - k, 0) + 1)
    terms = choose + special.xlog1py(np.maximum(a - k, 0), -sampling) + k * math.log(sampling)
    terms = np.where(k <= a, terms + (k * k - k) / (2 * sigma**2), -np.inf)
    return special.logsumexp(terms, axis=1) / (ORDERS - 1)
