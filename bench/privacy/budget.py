"""What a run may spend (`Budget`) and what a method's own paper says it spends (`Claim`)."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from bench.core.infinity import INFINITE, epsilon_from_json, epsilon_to_json
from bench.errors import BudgetError, unknown
from bench.privacy.units import Unit

__all__ = [
    "INFINITE",
    "Account",
    "Budget",
    "Claim",
    "Solve",
    "as_unit",
    "epsilon_from_json",
    "epsilon_to_json",
]
Account = Literal["claimed", "accounted"]
Solve = Literal["sigma", "steps", "none"]


def as_unit(given: str) -> Unit:
    """The unit of that name. Raises BenchError for a name that is none."""
    try:
        return Unit(given)
    except ValueError:
        raise unknown("unit", given, [unit.value for unit in Unit]) from None


@dataclass(frozen=True)
class Budget:
    """What a run may spend, and what is adjusted to meet it.

    Attributes:
        epsilon: > 0; infinity is a budget that everything meets; None is no budget: the method's own fields stand.
        delta: in (0, 1).
        account: the number held to the budget: "claimed" by the method's paper, or "accounted" from the ledger.
        solve: the parameter the budget determines: the noise ("sigma"), the number of steps, or none.
        unit: the unit that "accounted" is read for.

    Raises:
        BenchError: a value outside these ranges, NaN included, or no budget with something to solve for.
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

    def to_json(self) -> dict[str, Any]:
        """Plain data; no budget is an epsilon of null."""
        epsilon = None if self.epsilon is None else epsilon_to_json(self.epsilon)
        return {**asdict(self), "epsilon": epsilon, "unit": self.unit.value}


@dataclass(frozen=True)
class Claim:
    """What a method's own paper promises at the settings of a run.

    Attributes:
        epsilon: >= 0, or infinity.
        delta: in [0, 1).
        unit: what the paper's proof covers.
        source: paper and theorem.
        disputed: why the proof does not cover what the algorithm does, in a few words joined by "-", such as
            "per-image-composition"; boards flag it. "" where nothing is known against it.

    Raises:
        BenchError: a value outside these ranges, NaN included, or a reason that is not such words.
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

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        plain = {"epsilon": epsilon_to_json(self.epsilon), "delta": self.delta}
        plain |= {"unit": self.unit.value, "source": self.source}
        return plain | ({"disputed": self.disputed} if self.disputed else {})
