"""The protected unit of data, the privacy budget of a run, and the guarantee claimed by a method's paper."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal, get_args

from bench.core.epsilon import INFINITE, epsilon_from_json, epsilon_to_json
from bench.errors import BudgetError, unknown

__all__ = [
    "INFINITE",
    "Account",
    "Budget",
    "Claim",
    "Relation",
    "Solve",
    "Unit",
    "as_unit",
    "epsilon_from_json",
    "epsilon_to_json",
    "refuse_finite_budget",
]
Account = Literal["claimed", "accounted"]
"""Epsilon that is compared with a budget, see `Budget.account`."""
Solve = Literal["sigma", "steps", "none"]
"""Parameter that is calibrated to a budget, see `Budget.solve`."""


class Relation(StrEnum):
    """Neighbouring relation: one unit is added or removed, or one unit is replaced by another."""

    ADD_OR_REMOVE_ONE = "add-or-remove"
    REPLACE_ONE = "replace"


class Unit(StrEnum):
    """The unit of data that a guarantee protects. Numbers of different units are never mixed or ranked together.

    EXAMPLE: one record of the teacher's private training set. LABEL: one private record's label. QUERY: the teacher's
    response to one synthetic image. CLIENT: all data of one federated client; the number of clients is public, so that
    a removed client is one without records, which still responds. GROUP: all private records of one group, such as a
    patient, a user or a writer; the number of groups is public. NONE: no guarantee.
    """

    EXAMPLE = "example"
    LABEL = "label"
    QUERY = "query"
    CLIENT = "client"
    GROUP = "group"
    NONE = "none"

    @property
    def relation(self) -> Relation:
        """Return the default relation: records, clients and groups are removed; a label or a response is replaced."""
        return Relation.REPLACE_ONE if self in (Unit.LABEL, Unit.QUERY) else Relation.ADD_OR_REMOVE_ONE


def as_unit(given: str) -> Unit:
    """Return the unit with this name; raise BenchError if there is none."""
    try:
        return Unit(given)
    except ValueError:
        raise unknown("unit", given, [unit.value for unit in Unit]) from None


@dataclass(frozen=True)
class Budget:
    """The privacy budget of a run, and the parameter that is calibrated to meet it.

    Attributes:
        epsilon: > 0; infinity = any run meets it; None = no budget, the method's own options are used.
        delta: in (0, 1).
        account: the epsilon compared with the budget: "claimed" (stated by the method's paper, for the paper's unit) or
            "accounted" (computed from the ledger by the accountant, for `unit`).
        solve: the calibrated parameter: the noise ("sigma"), the number of steps, or none.
        unit: the unit of the "accounted" epsilon.

    Raises:
        BenchError: a value outside these ranges, including NaN, or a parameter to solve for without a budget.
    """

    epsilon: float | None = 10.0
    delta: float = 1e-5
    account: Account = "claimed"
    solve: Solve = "sigma"
    unit: Unit = Unit.EXAMPLE

    def __post_init__(self) -> None:
        if self.epsilon is not None and not self.epsilon > 0:
            raise BudgetError(f"epsilon is {self.epsilon}; expected a number > 0, inf, or none for no budget")
        if not 0 < self.delta < 1:
            raise BudgetError(f"delta is {self.delta}; expected 0 < delta < 1, such as 1e-5")
        if self.account not in get_args(Account):
            raise unknown("account", self.account, get_args(Account))
        if self.solve not in get_args(Solve):
            raise unknown("solve", self.solve, get_args(Solve))
        if self.epsilon is None and self.solve != "none":
            raise BudgetError(f"solve is '{self.solve}' without an epsilon; give an epsilon or solve 'none'")
        object.__setattr__(self, "unit", as_unit(self.unit))

    def to_json(self) -> dict[str, float | str | None]:
        """Return plain data; without a budget, epsilon is null."""
        epsilon = None if self.epsilon is None else epsilon_to_json(self.epsilon)
        return {**asdict(self), "epsilon": epsilon, "unit": self.unit.value}


@dataclass(frozen=True)
class Claim:
    """The guarantee that a method's own paper claims at the settings of a run.

    Attributes:
        epsilon: >= 0, or infinity.
        delta: in [0, 1).
        unit: the unit that the paper's proof covers.
        source: paper and theorem.
        disputed: why the proof does not cover the algorithm, in a few words joined by "-", such as
            "per-image-composition"; boards flag it. "" if no defect is known.

    Raises:
        BenchError: a value outside these ranges, including NaN, or a reason of another form.
    """

    epsilon: float
    delta: float
    unit: Unit
    source: str
    disputed: str = ""

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise BudgetError(f"the claimed epsilon is {self.epsilon}; expected a number >= 0 or inf")
        if not 0 <= self.delta < 1:
            raise BudgetError(f"the claimed delta is {self.delta}; expected 0 <= delta < 1")
        if not re.fullmatch(r"([a-z0-9]+(-[a-z0-9]+)*)?", self.disputed):
            raise BudgetError(f"the claim is disputed for '{self.disputed}'; expected words joined by '-'")
        object.__setattr__(self, "unit", as_unit(self.unit))

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        plain: dict[str, object] = {"epsilon": epsilon_to_json(self.epsilon), "delta": self.delta}
        plain |= {"unit": self.unit.value, "source": self.source}
        return plain | ({"disputed": self.disputed} if self.disputed else {})


def refuse_finite_budget(budget: Budget, units: tuple[Unit, ...], why: str) -> None:
    """Refuse, before any training, a budget that an unprotected method cannot meet.

    Args:
        units: the units of the method's ledger.
        why: the unprotected use of the private data, for the message.

    Raises:
        BudgetError: the budget's unit is not in `units`, or its epsilon is accounted and finite.
    """
    if budget.unit not in units:
        raise BudgetError(f"--unit {budget.unit}: accounted per {' or '.join(units)}; name one of them")
    if budget.account == "accounted" and budget.epsilon is not None and math.isfinite(budget.epsilon):
        raise BudgetError(
            f"--account accounted --epsilon {budget.epsilon:g}: {why}, so no epsilon can be proved; "
            "use --account claimed or --epsilon inf"
        )
