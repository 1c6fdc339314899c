"""Budget checks of baselines without any protection."""

from __future__ import annotations

import math

from bench.errors import BudgetError
from bench.privacy import Budget, Unit


def refuse_proof(budget: Budget, units: tuple[Unit, ...], why: str) -> None:
    """Raise BenchError, before any training, for a unit that the ledger does not cover or a finite accounted budget.

    Raises:
        BenchError: one line that also says what to change.
    """
    if budget.unit not in units:
        raise BudgetError(f"--unit {budget.unit}: accounted per {' or '.join(units)}; name one of them")
    if budget.account == "accounted" and budget.epsilon is not None and math.isfinite(budget.epsilon):
        raise BudgetError(
            f"--account accounted --epsilon {budget.epsilon:g}: {why}, so no epsilon can be proved; "
            "use --account claimed or --epsilon inf"
        )
