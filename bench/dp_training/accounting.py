"""Privacy cost of T steps of DP-SGD, and calibration of the noise or of the number of steps to a budget.

A step is a Poisson-sampled Gaussian of multiplier z, for one added or removed record; the number of records is public.
For unit group it is one for an added or removed group, of which the number is public: groups are sampled, and a group's
mean gradient is clipped.
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
        unit: the protected unit, example or group.
        largest: for unit group, the largest number of records of a group that are used.
    """

    sampling: float
    steps: int
    multiplier: float
    schedule: NoiseSchedule = constant
    unit: Unit = Unit.EXAMPLE
    largest: int = 1

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
        ledger, why = Ledger(), "clipped gradients of a Poisson sample of the private records"
        if self.unit == Unit.GROUP:
            why = f"clipped mean gradients of a Poisson sample of the groups, with at most {self.largest} records each"
        for z, run in groupby(sorted(self.multipliers())):
            count = len(list(run))
            if z == 0:
                ledger.spend(unprotected_event(), unit=self.unit, why="gradients without noise")
                continue
            event = PoissonSampledDpEvent(self.sampling, GaussianDpEvent(z))
            ledger.spend(event, count=count, unit=self.unit, why=why)
        return ledger

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of `ledger` at `delta` by the bench's accountant."""
        return account(self.ledger(), self.unit, delta).epsilon

    def claim(self, delta: float, source: str) -> Claim:
        """Return the accounted epsilon as a claim; `source` names the paper of the algorithm."""
        bound = f", for groups of at most {self.largest} records" if self.unit == Unit.GROUP else ""
        return Claim(self.epsilon(delta), delta, self.unit, f"{source}{bound}")

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
        BenchError: the unit is not that of `parameters`, or no parameter meets the budget.
    """
    if budget.unit != parameters.unit:
        require_unit_example(budget)
    return noise_or_steps(parameters, budget, cost or (lambda p: p.epsilon(budget.delta)), "multiplier", MOST_STEPS)
