"""Ledgers of given uses, and their cost."""

from __future__ import annotations

from unittest.mock import patch

import dp_accounting as dp
import numpy as np

from bench.privacy import Ledger, Unit, _pld
from bench.privacy.accountant import account

DELTA = 1e-5
G, L, P, RR = dp.GaussianDpEvent, dp.LaplaceDpEvent, dp.PoissonSampledDpEvent, dp.RandomizedResponseDpEvent


def ledger_of(*spent, unit=Unit.EXAMPLE) -> Ledger:
    ledger = Ledger()
    for item in spent:
        event, count = item if isinstance(item, tuple) else (item, 1)
        ledger.spend(event, count=count, unit=unit)
    return ledger


def cost(*spent, delta: float = DELTA) -> float:
    return account(ledger_of(*spent), Unit.EXAMPLE, delta).epsilon


def coarse_cost(*spent) -> float:
    with patch.object(_pld, "FINEST_GRID", 1e-3):
        return cost(*spent)


def epsilon_of_losses(losses: np.ndarray, probabilities: np.ndarray, delta: float) -> float:
    """Bisection on the definition: delta(e) = sum of p (1 - exp(e - loss)) over losses above e."""
    low, high = 0.0, float(losses.max())
    for _ in range(200):
        middle = (low + high) / 2
        above = losses > middle
        spent = float(np.sum(probabilities[above] * -np.expm1(middle - losses[above])))
        low, high = (low, middle) if spent <= delta else (middle, high)
    return high
