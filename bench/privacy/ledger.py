"""The ledger: every use a method made of private data, written down as it happened and costed later.

An entry says what was done; no epsilon is computed here. In a `GaussianDpEvent` the noise multiplier is the noise's
standard deviation over the L2 sensitivity between the neighbours of the entry's unit, in a `LaplaceDpEvent` the noise
scale over the L1 sensitivity: whoever writes the entry has counted a factor two where both neighbours contribute, as
they do beside randomised responses too.
A `PoissonSampledDpEvent` follows DP-SGD: the noise over one record's contribution, also where neighbours replace it
(units `label` and `query`, and beside randomised responses), which the accountant counts twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.privacy._events import WIDEST_INT, event_from_json, event_to_json, shown
from bench.privacy.budget import as_unit
from bench.privacy.limits import check_response_epsilon
from bench.privacy.units import Relation, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent


KEYS = {"event", "count", "unit", "why"}
OPTIONAL = {"relation"}


@dataclass(frozen=True)
class Entry:
    """One kind of use: `event`, done `count` times, seen at `unit`; `why` says in words what it was.

    `carries`: so many nats about everything private go through all `count` uses at most (`bench.privacy.information`);
    None where that is not known. No epsilon depends on it, and it is not written to files.

    `relation` narrows what the event proves by itself to neighbours that differ so; None = as the accountant reads it.
    Where one of several networks answers by randomised response, a record that is left out changes one of them, and one
    that is replaced perhaps two, so that what is charged for one holds for leaving out alone.
    """

    event: DpEvent
    count: int
    unit: Unit
    why: str
    carries: float | None = field(default=None, compare=False)
    relation: Relation | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data; the relation where it is narrowed."""
        plain = {"event": event_to_json(self.event), "count": self.count, "unit": self.unit.value, "why": self.why}
        return plain | ({"relation": self.relation.value} if self.relation else {})


class Ledger:
    """What one release took from the private data.

    Entries of different units describe the same uses as seen by different neighbours. They are never mixed: the
    accountant reads the entries of one unit and nothing else.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def spend(
        self,
        event: DpEvent,
        *,
        count: int = 1,
        unit: Unit = Unit.EXAMPLE,
        why: str = "",
        carries: float | None = None,
        relation: Relation | None = None,
    ) -> None:
        """Write down that `event` was done `count` times, and what all of that `carries` at most, where it is known.

        Args:
            relation: as of an `Entry`.

        Raises:
            TypeError: `event` is no DpEvent, `count` no int, or a parameter of the event no plain Python value.
            ValueError: `count` is below 1 or has more than 4,000 bits, a parameter of the event is NaN or infinite,
                events are nested more than 20 deep, or `carries` is negative or NaN.
            BenchError: no such unit.
        """
        from dp_accounting import DpEvent

        if not isinstance(event, DpEvent):
            raise TypeError(f"a ledger takes dp_accounting events, not {type(event).__name__}")
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"the count of a {type(event).__name__} is {count!r}; expected an int")
        if count < 1:
            raise ValueError(f"the count of a {type(event).__name__} is {count}; expected at least 1")
        if count.bit_length() > WIDEST_INT:
            raise ValueError(f"the count of a {type(event).__name__} is {shown(count)}; expected fewer bits")
        if carries is not None and not carries >= 0:
            raise ValueError(f"a {type(event).__name__} carries {carries} nats; expected a number >= 0, inf or None")
        event_to_json(event)
        self._entries.append(Entry(event, count, as_unit(unit), why, carries, relation))

    def entries(self, unit: Unit | None = None) -> tuple[Entry, ...]:
        """The entries of one unit, or of all units, in the order they were written."""
        return tuple(entry for entry in self._entries if unit is None or entry.unit == unit)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data, one item per entry."""
        return [entry.to_json() for entry in self._entries]

    @classmethod
    def from_json(cls, items: Any) -> Ledger:
        """The ledger that `to_json` wrote. Anything may be given: nothing in a file is believed.

        Raises:
            BenchError: not a list of entries as `to_json` writes them, an event that dp_accounting does not have, a
                parameter of the wrong kind, a number that is not finite, or events nested more than 20 deep.
        """
        if not isinstance(items, list):
            raise BenchError(f"the ledger is {shown(items)}; expected a list of entries; mend or remove the record")
        ledger = cls()
        for place, item in enumerate(items):
            if not isinstance(item, dict) or not KEYS <= set(item) <= KEYS | OPTIONAL:
                raise BenchError(
                    f"entry {place} of the ledger is {shown(item)}; expected an object with {', '.join(sorted(KEYS))}"
                )
            count, unit, why = item["count"], item["unit"], item["why"]
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 1 << WIDEST_INT:
                raise BenchError(f"entry {place} of the ledger has count {shown(count)}; expected a whole number >= 1")
            for name in ("unit", "why"):
                if not isinstance(item[name], str):
                    raise BenchError(f"entry {place} of the ledger has {name} {shown(item[name])}; expected words")
            known = [each for each in Relation if each.value == item.get("relation")]
            if "relation" in item and not known:
                raise BenchError(
                    f"entry {place} of the ledger has relation {shown(item['relation'])}; expected "
                    + " or ".join(each.value for each in Relation)
                )
            relation = known[0] if known else None
            event = event_from_json(item["event"])
            ledger.spend(event, count=count, unit=as_unit(shown(unit)), why=why, relation=relation)
        return ledger


def randomised_response_event(epsilon: float, choices: int) -> DpEvent:
    """The event of one answer drawn by `mechanisms.randomised_response` over `choices` candidates.

    dp_accounting's noise parameter is the probability p of a uniform draw that may hit the true answer,
    p = k / (e^epsilon + k - 1). For an epsilon > 0 it is kept below 1, so that none is accounted as 0.

    Args:
        epsilon: in [0, `limits.most_response_epsilon(choices)`], or infinity: an answer without noise.
        choices: k >= 1.

    Raises:
        BenchError: a value outside these ranges, NaN included.

    >>> round(randomised_response_event(math.log(7), 4).noise_parameter, 12)
    0.4
    """
    from dp_accounting import RandomizedResponseDpEvent

    check_response_epsilon(epsilon, choices)
    odds = math.exp(-epsilon)
    noise = choices * odds / (1 + (choices - 1) * odds)
    return RandomizedResponseDpEvent(min(noise, 1 - 2**-53) if epsilon > 0 else 1.0, choices)
