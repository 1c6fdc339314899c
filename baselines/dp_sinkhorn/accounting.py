"""Accounting of DP-Sinkhorn: a step as the joint release of all images' gradients, and as the paper counts it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent

from bench.dp_training.accounting import MOST_STEPS
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account

Clipping = Literal["batch", "image"]
CODE = "DP-Sinkhorn (Cao et al. 2021), released code: the whole batch clipped"
PAPER = "DP-Sinkhorn (Cao et al. 2021), section 4: each image clipped, its release amplified by a sample of its own"


@dataclass(frozen=True)
class SinkhornParameters:
    """Parameters of the mechanism.

    Attributes:
        sampling: q in (0, 1].
        images: n, number of images whose gradients are released in every step.
        steps: T.
        sigma: noise deviation over 2 C; 0 = no noise.
        clipping: "batch", all gradients together are clipped to C; "image", each image's gradient is.
    """

    sampling: float
    images: int
    steps: int
    sigma: float
    clipping: Clipping

    def ledger(self) -> Ledger:
        """Return the ledger of T joint releases of n gradients."""
        moved = 1.0 if self.clipping == "batch" else math.sqrt(self.images)
        reach = "2 C" if self.clipping == "batch" else "2 C sqrt(n)"
        why = f"gradients of {self.images} generated images, which one private record moves by up to {reach}"
        return self._events(self.sigma / moved, self.steps, why)

    def claim(self, delta: float) -> Claim:
        """Return the epsilon of the released code's accounting, or of the paper's."""
        if self.clipping == "batch":
            ledger, source, disputed = self.ledger(), CODE, ""
        else:
            ledger = self._events(self.sigma, self.steps * self.images, "each image by itself")
            source, disputed = PAPER, "per-image-composition"
        return Claim(account(ledger, Unit.EXAMPLE, delta).epsilon, delta, Unit.EXAMPLE, source, disputed)

    def cost(self, budget: Budget) -> float:
        """Return the epsilon, claimed or accounted, that `budget` limits."""
        if budget.account == "claimed":
            return self.claim(budget.delta).epsilon
        return account(self.ledger(), Unit.EXAMPLE, budget.delta).epsilon

    def _events(self, multiplier: float, count: int, why: str) -> Ledger:
        ledger = Ledger()
        if multiplier == 0:
            ledger.spend(NonPrivateDpEvent(), why=f"{why}; without noise")
        else:
            ledger.spend(PoissonSampledDpEvent(self.sampling, GaussianDpEvent(multiplier)), count=count, why=why)
        return ledger


@lru_cache(maxsize=64)
def calibrate(parameters: SinkhornParameters, budget: Budget) -> SinkhornParameters:
    """Calibrate sigma, or the steps, to `budget`. Raises BenchError if none meets it."""
    return noise_or_steps(parameters, budget, lambda made: made.cost(budget), "sigma", MOST_STEPS)
