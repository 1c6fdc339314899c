"""What a private head, its whitening and images to be asked about take from the private data: Gaussians, one mu.

T steps of multiplier z, one second moment of multiplier m and class moments of multiplier k are together one Gaussian
mechanism of

    mu^2 = T / z^2 + 1 / m^2 + 1 / k^2,

of which the second moment and the class moments have a share each: m = z sqrt((1 - share - images) / (share T)), and k
the same of its own share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bench.dp_training.accounting import MOST_STEPS, gaussian_event, require_unit_example
from bench.dp_training.whitening import REPLACED
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account

Neighbours = Literal["add-or-remove", "replace"]


@dataclass(frozen=True)
class Spending:
    """The parameters that enter the ledger.

    Attributes:
        steps: T.
        multiplier: z, noise of a step over what a record moves the sum of gradients by; 0 = none.
        share: of mu^2 that the second moment has, in [0, 1); 0 = none is released.
        images: of mu^2 that class moments have, from which images are drawn, in [0, 1 - share); 0 = none are released.
        neighbours: whether a record comes or goes, or is replaced by another one: what the multipliers are for.
    """

    steps: int
    multiplier: float
    share: float
    neighbours: Neighbours
    images: float = 0.0

    @property
    def moment_multiplier(self) -> float:
        """m, noise of the second moment over what a record moves it by; 0 = none."""
        return self._multiplier_of(self.share)

    @property
    def images_multiplier(self) -> float:
        """k, noise of the class moments over what a record moves them by; 0 = none."""
        return self._multiplier_of(self.images)

    def _multiplier_of(self, share: float) -> float:
        return self.multiplier * math.sqrt(self.of_steps / (share * self.steps)) if share else 0.0

    @property
    def of_steps(self) -> float:
        """The share of mu^2 that the steps have."""
        return 1 - self.share - self.images

    @property
    def mu(self) -> float:
        """Of all releases together, for `neighbours`; infinite without noise."""
        return math.sqrt(self.steps / self.of_steps) / self.multiplier if self.multiplier else math.inf

    def gradient_noise(self, clip: float) -> float:
        """Standard deviation on a sum of gradients clipped to C; a replaced record moves that by 2 C."""
        return self.multiplier * clip * (2 if self.neighbours == "replace" else 1)

    @property
    def moment_noise(self) -> float:
        """Standard deviation on the second moment's diagonal; a replaced record moves it by sqrt(2)."""
        return self.moment_multiplier * (REPLACED if self.neighbours == "replace" else 1)

    @property
    def images_noise(self) -> float:
        """Standard deviation on the class moments; a replaced record moves them by sqrt(2)."""
        return self.images_multiplier * (REPLACED if self.neighbours == "replace" else 1)

    def ledger(self, steps: int = 0) -> Ledger:
        """For a record that comes or goes, whatever the noise was made for; of so many of the steps, 0 = all."""
        return self._written(self.gradient_noise(1.0), self.moment_noise, self.images_noise, steps or self.steps)

    def _written(self, gradient: float, moment: float, images: float, steps: int) -> Ledger:
        ledger = Ledger()
        if self.images:
            why = "class moments of the private images, from which synthetic ones are drawn"
            ledger.spend(gaussian_event(images), why=why)
        if self.share:
            why = "second moments of the private records' features, by which they are whitened"
            ledger.spend(gaussian_event(moment), why=why)
        count = steps if gradient > 0 else 1
        ledger.spend(gaussian_event(gradient), count=count, why="clipped gradients of all private records' features")
        return ledger

    def epsilon(self, delta: float) -> float:
        """What the accountant proves for `neighbours`, to whom the multipliers belong."""
        return account(self._as_for_neighbours(), Unit.EXAMPLE, delta).epsilon

    def _as_for_neighbours(self) -> Ledger:
        return self._written(self.multiplier, self.moment_multiplier, self.images_multiplier, self.steps)

    def claim(self, delta: float) -> Claim:
        """The same number as the account; where a record is replaced, which no ledger speaks of, all there is of it."""
        relation = "a record replaced" if self.neighbours == "replace" else "a record added or removed"
        return Claim(self.epsilon(delta), delta, Unit.EXAMPLE, f"this project: Gaussians alone, {relation}")

    def solved(self) -> dict[str, float]:
        """For the record."""
        moment = {"moment_multiplier": self.moment_multiplier} if self.share else {}
        images = {"moments_multiplier": self.images_multiplier} if self.images else {}
        return {"sigma": self.multiplier, "steps": self.steps, **moment, **images}


def calibrated(fields: Spending, budget: Budget) -> Spending:
    """`fields` with the noise, or the number of steps, that just meets a budget.

    Raises:
        BenchError: another unit than example, or a budget that cannot be met.
    """
    require_unit_example(budget)
    return noise_or_steps(fields, budget, lambda trial: trial.epsilon(budget.delta), "multiplier", MOST_STEPS)
