"""No defence: the teacher is released; the upper limit of accuracy and of attacks on every board.

Reference: none; the undefended model is the reference.

Differs from the paper: this baseline has no paper.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from dp_accounting import NonPrivateDpEvent

from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.budget import refuse_finite_budget

UNITS = (Unit.EXAMPLE, Unit.QUERY)


@dataclass(frozen=True)
class NoDefence:
    """Release the teacher; without a privacy guarantee."""

    version: ClassVar[int] = 1
    own: ClassVar[bool] = True
    reference: ClassVar[str] = "the undefended teacher"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    releases_images: ClassVar[bool] = False
    trains_student: ClassVar[bool] = False
    unit: ClassVar[str] = str(Unit.NONE)
    tiers: ClassVar[Tiers] = {}

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse to account a finite epsilon; any claimed epsilon is accepted, because there is no guarantee."""
        refuse_finite_budget(budget, UNITS, "the teacher's weights are released")

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Release a copy of the teacher; `student` and `budget` have no effect."""
        ledger = Ledger()
        for unit in UNITS:
            ledger.spend(NonPrivateDpEvent(), unit=unit, why="the teacher's weights are released")
        return Release(copy.deepcopy(teacher.model), teacher.arch, ledger, claim=None)
