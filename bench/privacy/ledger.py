"""The ledger: a record of every use that a method makes of private data; its privacy cost is computed later.

An entry states what was done; no epsilon is computed here. In a `GaussianDpEvent` the noise multiplier is the noise's
standard deviation over the L2 sensitivity between the neighbours of the entry's unit, in a `LaplaceDpEvent` the noise
scale over the L1 sensitivity. The writer of an entry must include a factor of two if both neighbours contribute, as
they also do when composed with randomised responses. A `PoissonSampledDpEvent` follows DP-SGD: the noise over one
record's contribution, even if neighbours replace it (units `label` and `query`, and in composition with randomised
responses); the accountant then counts it twice.
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
    """One kind of use: `event`, done `count` times, for neighbours of `unit`; `why` describes it.

    `carries`: upper bound, in nats, on the information about the private data in all `count` uses
    (`bench.privacy.information`); None if unknown. It has no effect on epsilon and is not written to files.

    `relation` restricts the guarantee of the event to one neighbouring relation; None = the accountant's default.
    Example: if one of several networks gives each randomised response, removing a record changes one network, and
    replacing it perhaps two, so that a cost computed for one network is valid for removal only.
    """

    event: DpEvent
    count: int
    unit: Unit
    why: str
    carries: float | None = field(default=None, compare=False)
    relation: Relation | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the relation if it is restricted."""
        plain = {"event": event_to_json(self.event), "count": self.count, "unit": self.unit.value, "why": self.why}
        return plain | ({"relation": self.relation.value} if self.relation else {})


class Ledger:
    """All uses of the private data by one release.

    Entries of different units describe the same uses for different neighbours. They are never mixed: the accountant
    reads the entries of one unit only.
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
        """Add an entry: `event` was done `count` times, and all of that `carries` at most this many nats, if known.

        Args:
            relation: as in `Entry`.

        Raises:
            TypeError: `event` is not a DpEvent, `count` not an int, or a parameter of the event not a plain Python
                value.
            ValueError: `count` is below 1 or has more than 4,000 bits, a parameter of the event is NaN or infinite,
                events are nested more than 20 deep, or `carries` is negative or NaN.
            BenchError: an unknown unit.
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
        """Return the entries of one unit, or of all units, in the order they were written."""
        return tuple(entry for entry in self._entries if unit is None or entry.unit == unit)

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain data, one item per entry."""
        return [entry.to_json() for entry in self._entries]

    @classmethod
    def from_json(cls, items: Any) -> Ledger:
        """Rebuild the ledger that `to_json` wrote. The input may be untrusted, so everything is checked.

        Raises:
            BenchError: not a list of entries as `to_json` writes them, an event that dp_accounting does not define, a
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
    """Return the event of one response drawn by `mechanisms.randomised_response` over `choices` candidates.

    dp_accounting's noise parameter is the probability p of a uniform draw that may hit the true answer,
    p = k / (e^epsilon + k - 1). For an epsilon > 0 it is kept below 1, so that no response is accounted as epsilon 0.

    Args:
        epsilon: in [0, `limits.most_response_epsilon(choices)`], or infinity: a response without noise.
        choices: k >= 1.

    Raises:
        BenchError: a value outside these ranges, including NaN.

    >>> round(randomised_response_event(math.log(7), 4).noise_parameter, 12)
    0.4
    """
    from dp_accounting import RandomizedResponseDpEvent

    check_response_epsilon(epsilon, choices)
    odds = math.exp(-epsilon)
    noise = choices * odds / (1 + (choices - 1) * odds)
    return RandomizedResponseDpEvent(min(noise, 1 - 2**-53) if epsilon > 0 else 1.0, choices)
