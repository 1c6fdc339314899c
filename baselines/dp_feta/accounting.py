"""Accounting of DP-FETA: noisy central images and DP-SGD in one ledger, and the calibration of the noise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dp_accounting import PoissonSampledDpEvent

from bench.dp_training.accounting import MOST_STEPS
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account
from bench.privacy.events import gaussian_event, unprotected_event

SOURCE = "DP-FETA 2025, central images and DP-SGD of the denoiser, by the bench's accountant"
SUMS = "class sums of small images of a Poisson sample of the private records"
CLIPPED = "clipped gradients of a Poisson sample of the private records"


@dataclass(frozen=True)
class FetaParameters:
    """Parameters of both mechanisms.

    Attributes:
        central: sigma_c, noise of the sums of a round over their sensitivity; 0 = no noise.
        central_sampling: q_c, the probability that a record is in a round.
        rounds: m, rounds of central images.
        sampling: q, the probability that a record is in a batch of DP-SGD.
        steps: T, steps of DP-SGD; 0 = central images only.
        multiplier: sigma, noise of a step over the clipping norm; 0 = no noise.
    """

    central: float
    central_sampling: float
    rounds: int
    sampling: float
    steps: int
    multiplier: float

    def ledger(self) -> Ledger:
        """Return the ledger of m central rounds and T steps."""
        ledger = Ledger()
        for noise, sampling, count, why in (
            (self.central, self.central_sampling, self.rounds, SUMS),
            (self.multiplier, self.sampling, self.steps, CLIPPED),
        ):
            event = PoissonSampledDpEvent(sampling, gaussian_event(noise)) if noise > 0 else unprotected_event()
            if count:
                ledger.spend(event, count=count, why=why)
        return ledger

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of `ledger` at `delta` by the bench's accountant."""
        return account(self.ledger(), Unit.EXAMPLE, delta).epsilon

    def claim(self, delta: float) -> Claim:
        """Return the accounted epsilon as a claim."""
        return Claim(self.epsilon(delta), delta, Unit.EXAMPLE, SOURCE)

    def solved(self) -> dict[str, float]:
        """Return the calibrated parameters for the record."""
        found = {"sigma_central": self.central, "sampling_central": self.central_sampling}
        if self.steps:
            found |= {"sigma": self.multiplier, "steps": self.steps, "sampling": self.sampling}
        return found


def calibrate(parameters: FetaParameters, budget: Budget) -> FetaParameters:
    """Calibrate sigma, or T, to the budget that the central images leave; without DP-SGD, sigma_c.

    Raises:
        BenchError: no parameter meets the budget.
    """
    free = "multiplier" if parameters.steps else "central"
    if budget.epsilon == float("inf"):
        parameters = replace(parameters, central=0.0)
    return noise_or_steps(parameters, budget, lambda made: made.epsilon(budget.delta), free, MOST_STEPS)
