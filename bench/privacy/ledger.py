"""The ledger: a list of every use that a method makes of private data. The accountant computes epsilon from it later.

An entry states what was done, as a dp_accounting event. In a `GaussianDpEvent` the noise multiplier is the noise's
standard deviation over the L2 sensitivity between the neighbours of the entry's unit, in a `LaplaceDpEvent` the noise
scale over the L1 sensitivity. If neighbours replace the unit (units `label` and `query`, and any unit in a composition
with randomised responses), the writer must use the sensitivity to replacement, often twice that to removal. In a
`PoissonSampledDpEvent` the multiplier is always the noise over one record's contribution, as in DP-SGD; the accountant
doubles the sensitivity under replacement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.errors import BenchError
from bench.privacy._event_json import WIDEST_INT, event_from_json, event_to_json, shorten
from bench.privacy.budget import Relation, Unit, as_unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Entry:
    """One kind of use of the private data.

    Attributes:
        event: the mechanism, for neighbours of `unit`.
        count: number of uses, each with this event; >= 1.
        unit: the protected unit that the event's noise multiplier refers to.
        why: description of the use.
        carries: upper bound, in nats, on the information about the private data in all `count` uses
            (`bench.privacy.information`); None if unknown. It has no effect on epsilon and is not written to files.
        relation: the only neighbouring relation for which the event holds; None = the accountant's default. Example: if
            one of several networks gives each randomised response, removing a record changes one network, and
            replacing it perhaps two, so that a cost computed for one network is valid for removal only.
    """

    event: DpEvent
    count: int
    unit: Unit
    why: str
    carries: float | None = field(default=None, compare=False)
    relation: Relation | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain data, with the relation if it is restricted."""
        plain = {"event": event_to_json(self.event), "count": self.count, "unit": self.unit.value, "why": self.why}
        return plain | ({"relation": self.relation.value} if self.relation else {})

    @classmethod
    def from_json(cls, item: object, position: int) -> Entry:
        """Rebuild the entry that `to_json` wrote; the input may be untrusted.

        Args:
            position: of the entry in its ledger, for messages.

        Raises:
            BenchError: as `Ledger.from_json`.
        """
        where = f"entry {position} of the ledger"
        keys = {"count", "event", "unit", "why"}
        if not isinstance(item, dict) or not keys <= set(item) <= keys | {"relation"}:
            raise BenchError(f"{where} is {shorten(item)}; expected an object with {', '.join(sorted(keys))}")
        count = item["count"]
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 1 << WIDEST_INT:
            raise BenchError(f"{where} has count {shorten(count)}; expected a whole number >= 1")
        for name in ("unit", "why"):
            if not isinstance(item[name], str):
                raise BenchError(f"{where} has {name} {shorten(item[name])}; expected a string")
        relations = [relation.value for relation in Relation]
        if "relation" in item and item["relation"] not in relations:
            raise BenchError(f"{where} has relation {shorten(item['relation'])}; expected {' or '.join(relations)}")
        relation = Relation(item["relation"]) if "relation" in item else None
        event, unit = event_from_json(item["event"]), as_unit(shorten(item["unit"]))
        return cls(event, count, unit, item["why"], relation=relation)


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
        """Add an entry; the arguments are the fields of `Entry`.

        Raises:
            TypeError: `event` is not a DpEvent, `count` not an int, or a parameter of the event not a plain Python
                value.
            ValueError: `count` is below 1 or has more than 4,000 bits, a parameter of the event is NaN or infinite,
                events are nested more than 20 deep, or `carries` is negative or NaN.
            BenchError: an unknown unit.
        """
        from dp_accounting import DpEvent

        name = type(event).__name__
        if not isinstance(event, DpEvent):
            raise TypeError(f"a ledger takes dp_accounting events, not {name}")
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"the count of a {name} is {count!r}; expected an int")
        if count < 1 or count.bit_length() > WIDEST_INT:
            raise ValueError(f"the count of a {name} is {shorten(count)}; expected 1 to 2^{WIDEST_INT}")
        if carries is not None and not carries >= 0:
            raise ValueError(f"a {name} carries {carries} nats; expected a number >= 0, inf or None")
        event_to_json(event)  # refuses parameters that cannot be written to a file
        self._entries.append(Entry(event, count, as_unit(unit), why, carries, relation))

    def entries(self, unit: Unit | None = None) -> tuple[Entry, ...]:
        """Return the entries of one unit, or of all units, in the order they were written."""
        return tuple(entry for entry in self._entries if unit is None or entry.unit == unit)

    def to_json(self) -> list[dict[str, object]]:
        """Return plain data, one item per entry."""
        return [entry.to_json() for entry in self._entries]

    @classmethod
    def from_json(cls, items: object) -> Ledger:
        """Rebuild the ledger that `to_json` wrote. The input may be untrusted, so everything is checked.

        Raises:
            BenchError: not a list of entries as `to_json` writes them, an event that dp_accounting does not define, a
                parameter of the wrong kind, a number that is not finite, or events nested more than 20 deep.
        """
        if not isinstance(items, list):
            raise BenchError(f"the ledger is {shorten(items)}; expected a list of entries; fix or remove the record")
        ledger = cls()
        for position, item in enumerate(items):
            entry = Entry.from_json(item, position)
            ledger.spend(entry.event, count=entry.count, unit=entry.unit, why=entry.why, relation=entry.relation)
        return ledger
