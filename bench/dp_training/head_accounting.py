"""Joint privacy cost of a private head, its whitening, and the class moments of query images: Gaussians with one mu.

T steps of multiplier z, one second moment of multiplier m and class moments of multiplier k are together one Gaussian
mechanism of

    mu^2 = T / z^2 + 1 / m^2 + 1 / k^2,

of which the second moment has the fraction `share` and the class moments the fraction `images`: m = z sqrt((1 - share -
images) / (share T)), and k likewise with `images`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bench.dp_training.accounting import MOST_STEPS, require_unit_example
from bench.dp_training.whitening import REPLACED
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account
from bench.privacy.events import gaussian_event

Neighbours = Literal["add-or-remove", "replace"]


@dataclass(frozen=True)
class Spending:
    """Mechanism parameters of a private head that enter the ledger.

    Attributes:
        steps: T.
        multiplier: z, noise of a step divided by the largest change of the gradient sum by one record; 0 = no noise.
        share: fraction of mu^2 for the second moment, in [0, 1); 0 = not released.
        images: fraction of mu^2 for the class moments, from which images are drawn, in [0, 1 - share); 0 = not
            released.
        neighbours: add-or-remove or replace-one adjacency; the multipliers refer to it.
        unit: the protected unit, example or group; for unit group a "record" is a group here.
        largest: for unit group, the largest number of records of a group that are used.
    """

    steps: int
    multiplier: float
    share: float
    neighbours: Neighbours
    images: float = 0.0
    unit: Unit = Unit.EXAMPLE
    largest: int = 1

    @property
    def moment_multiplier(self) -> float:
        """Return m, the noise of the second moment divided by its sensitivity; 0 without noise or without a release."""
        return self._multiplier_of(self.share)

    @property
    def images_multiplier(self) -> float:
        """Return k, the noise of the class moments divided by their sensitivity; 0 without noise or a release."""
        return self._multiplier_of(self.images)

    def _multiplier_of(self, share: float) -> float:
        return self.multiplier * math.sqrt(self.of_steps / (share * self.steps)) if share else 0.0

    @property
    def of_steps(self) -> float:
        """Return the fraction of mu^2 for the gradient steps."""
        return 1 - self.share - self.images

    @property
    def mu(self) -> float:
        """Return mu of all releases together, for `neighbours`; infinite without noise."""
        return math.sqrt(self.steps / self.of_steps) / self.multiplier if self.multiplier else math.inf

    def gradient_noise(self, clip: float) -> float:
        """Return the noise's standard deviation on a sum of gradients clipped to C.

        Replacing a record changes it by 2 C.
        """
        return self.multiplier * clip * (2 if self.neighbours == "replace" else 1)

    @property
    def moment_noise(self) -> float:
        """Return the noise's standard deviation on the second moment's diagonal.

        Replacing a record changes it by sqrt(2).
        """
        return self.moment_multiplier * (REPLACED if self.neighbours == "replace" else 1)

    @property
    def images_noise(self) -> float:
        """Return the noise's standard deviation on the class moments; replacing a record changes them by sqrt(2)."""
        return self.images_multiplier * (REPLACED if self.neighbours == "replace" else 1)

    def ledger(self, steps: int = 0) -> Ledger:
        """Return the ledger for an added or removed record, for either adjacency.

        It contains only the first `steps` gradient steps; 0 = all.
        """
        return self._ledger_of(self.gradient_noise(1.0), self.moment_noise, self.images_noise, steps or self.steps)

    def _ledger_of(self, gradient: float, moment: float, images: float, steps: int) -> Ledger:
        """Return the ledger of T Gaussians, one on the second moment and one on the class moments, by multiplier."""
        ledger = Ledger()
        groups = f", in groups of at most {self.largest} records" if self.unit == Unit.GROUP else ""
        if self.images:
            why = "class moments of the private images, from which synthetic ones are drawn"
            ledger.spend(gaussian_event(images), why=why)
        if self.share:
            why = f"second moments of the private records' features, by which they are whitened{groups}"
            ledger.spend(gaussian_event(moment), unit=self.unit, why=why)
        count = steps if gradient > 0 else 1
        why = f"clipped gradients of all private records' features{groups}"
        ledger.spend(gaussian_event(gradient), count=count, unit=self.unit, why=why)
        return ledger

    def epsilon(self, delta: float) -> float:
        """Return the accounted epsilon for `neighbours`, the adjacency of the multipliers."""
        ledger = self._ledger_of(self.multiplier, self.moment_multiplier, self.images_multiplier, self.steps)
        return account(ledger, self.unit, delta).epsilon

    def claim(self, delta: float) -> Claim:
        """Return the accounted epsilon for `neighbours` as a claim; the ledger does not cover replaced records."""
        who = f"a group of at most {self.largest} records" if self.unit == Unit.GROUP else "a record"
        relation = f"{who} {'replaced' if self.neighbours == 'replace' else 'added or removed'}"
        return Claim(self.epsilon(delta), delta, self.unit, f"this project: Gaussians only, {relation}")

    def solved(self) -> dict[str, float]:
        """Return the calibrated parameters for the record."""
        moment = {"moment_multiplier": self.moment_multiplier} if self.share else {}
        images = {"moments_multiplier": self.images_multiplier} if self.images else {}
        return {"sigma": self.multiplier, "steps": self.steps, **moment, **images}


def calibrated(fields: Spending, budget: Budget) -> Spending:
    """Return `fields` with the noise, or the number of steps, that just meets the budget.

    Raises:
        BenchError: the unit is not that of `fields`, or no parameter meets the budget.
    """
    if budget.unit != fields.unit:
        require_unit_example(budget)
    return noise_or_steps(fields, budget, lambda trial: trial.epsilon(budget.delta), "multiplier", MOST_STEPS)
