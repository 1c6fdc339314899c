"""The ledger: every use a method made of private data, written down as it happened and costed later.

An entry says what was done; no epsilon is computed here. In a `GaussianDpEvent` the noise multiplier is the noise's
standard deviation over the L2 sensitivity between the neighbours of the entry's unit, in a `LaplaceDpEvent` the noise
scale over the L1 sensitivity: whoever writes the entry has counted a factor two where both neighbours contribute.
A `PoissonSampledDpEvent` follows DP-SGD: the noise over one record's contribution, for add-or-remove neighbours.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.privacy.budget import as_unit
from bench.privacy.units import Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Entry:
    """One kind of use: `event`, done `count` times, seen at `unit`; `why` says in words what it was."""

    event: DpEvent
    count: int
    unit: Unit
    why: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"event": _event_to_json(self.event), "count": self.count, "unit": self.unit.value, "why": self.why}


class Ledger:
    """What one release took from the private data.

    Entries of different units describe the same uses as seen by different neighbours. They are never mixed: the
    accountant reads the entries of one unit and nothing else.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def spend(self, event: DpEvent, *, count: int = 1, unit: Unit = Unit.EXAMPLE, why: str = "") -> None:
        """Write down that `event` was done `count` times.

        Raises:
            TypeError: `event` is no DpEvent, `count` no int, or a parameter of the event no plain Python value.
            ValueError: `count` is below 1, or a parameter of the event is NaN or infinite.
            BenchError: no such unit.
        """
        from dp_accounting import DpEvent

        if not isinstance(event, DpEvent):
            raise TypeError(f"a ledger takes dp_accounting events, not {type(event).__name__}")
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"the count of a {type(event).__name__} is {count!r}; expected an int")
        if count < 1:
            raise ValueError(f"the count of a {type(event).__name__} is {count}; expected at least 1")
        json.dumps(_event_to_json(event), allow_nan=False)
        self._entries.append(Entry(event, count, as_unit(unit), why))

    def entries(self, unit: Unit | None = None) -> tuple[Entry, ...]:
        """The entries of one unit, or of all units, in the order they were written."""
        return tuple(entry for entry in self._entries if unit is None or entry.unit == unit)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data, one item per entry."""
        return [entry.to_json() for entry in self._entries]

    @classmethod
    def from_json(cls, items: list[dict[str, Any]]) -> Ledger:
        """The ledger that `to_json` wrote. Raises BenchError for an event that dp_accounting does not have."""
        ledger = cls()
        for item in items:
            event = _event_from_json(item["event"])
            ledger.spend(event, count=item["count"], unit=as_unit(item["unit"]), why=item["why"])
        return ledger


def randomised_response_event(epsilon: float, choices: int) -> DpEvent:
    """The event of one answer drawn by `mechanisms.randomised_response` over `choices` candidates.

    dp_accounting's noise parameter is the probability p of a uniform draw that may hit the true answer,
    p = k / (e^epsilon + k - 1).

    >>> round(randomised_response_event(math.log(7), 4).noise_parameter, 12)
    0.4
    """
    from dp_accounting import RandomizedResponseDpEvent

    odds = math.exp(-epsilon)
    return RandomizedResponseDpEvent(choices * odds / (1 + (choices - 1) * odds), choices)


def _event_to_json(event: DpEvent) -> dict[str, Any]:
    fields = [field.name for field in getattr(type(event), "__attrs_attrs__", ())]
    return {"name": type(event).__name__, **{name: _plain(getattr(event, name)) for name in fields}}


def _plain(value: Any) -> Any:
    from dp_accounting import DpEvent

    if isinstance(value, DpEvent):
        return _event_to_json(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _event_from_json(item: dict[str, Any]) -> DpEvent:
    from dp_accounting import dp_event

    kind = getattr(dp_event, item["name"], None)
    if not (isinstance(kind, type) and issubclass(kind, dp_event.DpEvent)):
        raise BenchError(
            f"this dp-accounting has no event '{item['name']}', which the ledger names; update dp-accounting"
        )
    return kind(**{name: _revive(value) for name, value in item.items() if name != "name"})


def _revive(value: Any) -> Any:
    if isinstance(value, dict):
        return _event_from_json(value)
    if isinstance(value, list):
        return [_revive(item) for item in value]
    return value
