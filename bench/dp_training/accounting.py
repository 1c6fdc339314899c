"""Privacy cost of T steps of DP-SGD, and calibration of the noise or of the number of steps to a budget.

A step is a Poisson-sampled Gaussian of multiplier z, for one added or removed record; the number of records is public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from bench.errors import BenchError
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account
from bench.privacy.events import unprotected_event

MOST_STEPS = 1_000_000

NoiseSchedule = Callable[[int, int], float]
"""Noise schedule: (step from 0, T) -> noise multiplier of that step divided by sigma_0; piecewise constant, > 0."""


def constant(step: int, steps: int) -> float:
    """Return 1 for every step: the noise schedule of plain DP-SGD."""
    return 1.0


@dataclass(frozen=True)
class DpSgdParameters:
    """Parameters of DP-SGD that determine its privacy cost.

    Attributes:
        sampling: q in (0, 1], the probability that a record is in a batch.
        steps: T, number of steps.
        multiplier: z, standard deviation of the noise over the clipping norm; 0 = no noise.
        schedule: factor on z for each step.
    """

    sampling: float
    steps: int
    multiplier: float
    schedule: NoiseSchedule = constant

    @classmethod
    def of(
        cls, batch: int, records: int, steps: int, multiplier: float, schedule: NoiseSchedule = constant
    ) -> DpSgdParameters:
        """Build the parameters for an expected batch of `batch` out of `records` records (at most all of them)."""
        return cls(min(1.0, batch / records), steps, multiplier, schedule)

    def multipliers(self) -> list[float]:
        """Return the noise multiplier of every step."""
        return [self.multiplier * self.schedule(step, self.steps) for step in range(self.steps)]

    def ledger(self) -> Ledger:
        """Return a ledger of the T steps, with steps of equal noise in one entry.

        Without noise they are unprotected uses.
        """
        ledger = Ledger()
        for z, run in groupby(sorted(self.multipliers())):
            count = len(list(run))
            if z == 0:
                ledger.spend(unprotected_event(), why="gradients without noise")
                continue
            event = PoissonSampledDpEvent(self.sampling, GaussianDpEvent(z))
            ledger.spend(event, count=count, why="clipped gradients of a Poisson sample of the private records")
        return ledger

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of `ledger` at `delta` by the bench's accountant."""
        return account(self.ledger(), Unit.EXAMPLE, delta).epsilon

    def claim(self, delta: float, source: str) -> Claim:
        """Return the accounted epsilon as a claim; `source` names the paper of the algorithm."""
        return Claim(self.epsilon(delta), delta, Unit.EXAMPLE, source)

    def solved(self) -> dict[str, float]:
        """Return the calibrated parameters for the record."""
        return {"sigma": self.multiplier, "steps": self.steps, "sampling": self.sampling}


def require_unit_example(budget: Budget) -> None:
    """Refuse, before any training, a budget for another unit than `example`."""
    if budget.unit != Unit.EXAMPLE:
        raise BenchError(f"--unit {budget.unit}: private training is accounted per example; use --unit example")


def calibrate(
    parameters: DpSgdParameters, budget: Budget, cost: Callable[[DpSgdParameters], float] | None = None
) -> DpSgdParameters:
    """Return `parameters` with z, or T, calibrated to `budget`.

    Args:
        cost: the epsilon that is compared with the budget; None = the bench's accountant.

    Raises:
        BenchError: the unit is not example, or no parameter meets the budget.
    """
    require_unit_example(budget)
    return noise_or_steps(parameters, budget, cost or (lambda p: p.epsilon(budget.delta)), "multiplier", MOST_STEPS)
