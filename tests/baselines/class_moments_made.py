"""Budgets of class moments, helpers that spend one, and the resulting ledger."""

from __future__ import annotations

import math

from dp_accounting import GaussianDpEvent

from baselines.class_moments.spending import Spending
from bench.privacy import Budget, Ledger, Unit

DELTA, TEACHERS = 1e-5, 3
EIGHT, FREE = Budget(8.0, account="accounted"), Budget(math.inf)
VOTES = Spending(teachers=50, queries=200, sigma=100.0, share=0.5, multiplier=1.0)


def mu_squared(ledger: Ledger, unit: Unit = Unit.EXAMPLE) -> list[float]:
    """Return count / multiplier^2 of every entry."""
    found = []
    for entry in ledger.entries(unit):
        assert isinstance(entry.event, GaussianDpEvent)
        found.append(entry.count / entry.event.noise_multiplier**2)
    return found
