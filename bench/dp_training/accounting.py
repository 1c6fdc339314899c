"""What T steps of DP-SGD cost, and the calibration of the noise or of the number of steps.

A step is a Poisson-sampled Gaussian of multiplier z, for one added or removed record; the number of records is public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent

from bench.errors import BenchError
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account

MOST_STEPS = 1_000_000

NoiseSchedule = Callable[[int, int], float]
"""(step from 0, T) to the noise multiplier of the step over sigma_0; piecewise constant, > 0."""


def constant(step: int, steps: int) -> float:
    """The schedule of plain DP-SGD."""
    return 1.0


@dataclass(frozen=True)
class DpSgdParameters:
    """What enters the mechanism.

    Attributes:
        sampling: q in (0, 1].
        steps: T.
        multiplier: z, noise over the clipping norm; 0 = no noise.
        schedule: by which z is multiplied.
    """

    sampling: float
    steps: int
    multiplier: float
    schedule: NoiseSchedule = constant

    @classmethod
    def of(
        cls, batch: int, records: int, steps: int, multiplier: float, schedule: NoiseSchedule = constant
    ) -> DpSgdParameters:
        """For an expected batch of B out of n records; at most all of them."""
        return cls(min(1.0, batch / records), steps, multiplier, schedule)

    def multipliers(self) -> list[float]:
        """z of every step."""
        return [self.multiplier * self.schedule(step, self.steps) for step in range(self.steps)]

    def ledger(self) -> Ledger:
        """The T steps, steps of equal noise together; without noise, nothing that can be proved."""
        ledger = Ledger()
        for z, run in groupby(sorted(self.multipliers())):
            count = len(list(run))
            if z == 0:
                ledger.spend(NonPrivateDpEvent(), why="gradients without noise")
                continue
            event = PoissonSampledDpEvent(self.sampling, GaussianDpEvent(z))
            ledger.spend(event, count=count, why="clipped gradients of a Poisson sample of the private records")
        return ledger

    def epsilon(self, delta: float) -> float:
        """What the bench's accountant proves of `ledger`."""
        return account(self.ledger(), Unit.EXAMPLE, delta).epsilon

    def claim(self, delta: float, source: str) -> Claim:
        """Claim and account are one number; `source` is whose algorithm it is."""
        return Claim(self.epsilon(delta), delta, Unit.EXAMPLE, source)

    def solved(self) -> dict[str, float]:
        """For the record."""
        return {"sigma": self.multiplier, "steps": self.steps, "sampling": self.sampling}


def gaussian_event(multiplier: float) -> DpEvent:
    """A Gaussian of this noise multiplier; without noise, nothing that can be proved."""
    return GaussianDpEvent(multiplier) if multiplier > 0 else NonPrivateDpEvent()


def require_unit_example(budget: Budget) -> None:
    """Refuse a budget for another unit than one record, before anything is trained."""
    if budget.unit != Unit.EXAMPLE:
        raise BenchError(f"--unit {budget.unit}: private training is accounted per example; use --unit example")


def calibrate(
    parameters: DpSgdParameters, budget: Budget, cost: Callable[[DpSgdParameters], float] | None = None
) -> DpSgdParameters:
    """`parameters` with z, or T, as `budget` determines it.

    Args:
        cost: the epsilon that is held against the budget; None = what the bench's accountant proves.

    Raises:
        BenchError: another unit than example, or a budget that cannot be met.
    """
    require_unit_example(budget)
    return noise_or_steps(parameters, budget, cost or (lambda p: p.epsilon(budget.delta)), "multiplier", MOST_STEPS)
