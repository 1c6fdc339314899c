"""No defence: the teacher itself is released. The upper end of every board, for accuracy and for the attacker.

Reference: none; the undefended model is the reference.

Differs from the paper: there is no paper.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from dp_accounting import NonPrivateDpEvent

from bench.api import Context, Release, Teacher
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.budget import refuse_finite_budget

UNITS = (Unit.EXAMPLE, Unit.QUERY)


@dataclass(frozen=True)
class NoDefence:
    """Releases the teacher; promises nothing."""

    version: ClassVar[int] = 1
    own: ClassVar[bool] = True
    reference: ClassVar[str] = "the undefended teacher"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    releases_images: ClassVar[bool] = False
    trains_student: ClassVar[bool] = False
    unit: ClassVar[str] = str(Unit.NONE)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {}

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Any claimed epsilon will do, as nothing is promised; a finite one that is to be proved is refused."""
        refuse_finite_budget(budget, UNITS, "the teacher's weights are released")

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """A copy of the teacher; `student` and `budget` have no effect."""
        ledger = Ledger()
        for unit in UNITS:
            ledger.spend(NonPrivateDpEvent(), unit=unit, why="the teacher's weights are released")
        return Release(copy.deepcopy(teacher.model), teacher.arch, ledger, claim=None)
