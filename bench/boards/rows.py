"""Records -> rows: a pure function, so that the same records give the same bytes.

One row per spec with only the seeds forgotten. `Rows` takes one record after the other and keeps of each only what its
row needs, so that a board of many records fits into memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench import registry
from bench.boards.audit_bounds import audited_release, by_release, is_refuted, strongest
from bench.boards.board_csv import place
from bench.boards.columns import MEASURED, NUMBERS, PLUGGED, REFERENCE_NUMBERS, keys
from bench.boards.flags import flags_of_row
from bench.boards.row_members import Member, row_key
from bench.data.naming import is_by_path
from bench.metrics.metric import OWN_REFERENCES, REFERENCE, REFERENCES
from bench.storage.records import Audit, Record

if TYPE_CHECKING:
    import pandas as pd

Published = Callable[[dict[str, Any], str], dict[str, Any]]
"""(a row, the data set) -> columns of numbers published elsewhere, and the row's flags with what is known of them."""
SHORT = 8
"""Digits of a hash that tell apart what has the same name."""
_PLUGGED = [(column.key, NUMBERS.index(column.metric)) for column in MEASURED if column.key in PLUGGED]


@dataclass
class Group:
    """The records of one row: what they share, and what each has of its own."""

    dataset: str
    shared: dict[str, Any]
    members: list[Member] = field(default_factory=list)


class Rows:
    """The board of one data set, a record at a time.

    Args:
        audits: end-to-end audits, of which each row takes those of its own releases (`audited_release`).
        published: fills the columns of published numbers; a board without it leaves them empty.
    """

    def __init__(self, audits: Iterable[Audit] = (), published: Published | None = None) -> None:
        self._audits = by_release(audits)
        self._published = published
        self._groups: dict[bytes, Group] = {}
        self.filled: set[str] = set()
        """Columns that not every board has, which a row has a number in."""
        self._references: dict[tuple[str, str, str, str, str], list[tuple[float | None, ...]]] = defaultdict(list)

    def add(self, record: Record) -> None:
        """Take a record of the same data set; the order makes no difference."""
        key = row_key(record.spec)
        if key not in self._groups:
            self._groups[key] = _group(record.spec)
        release = audited_release(record.spec) if self._audits else ""
        member = Member.of(record, release if release in self._audits else "")
        self._groups[key].members.append(member)
        self.filled |= {column for column, at in _PLUGGED if member.numbers[at] is not None}
        where = (record.spec["tier"], _split(record.spec["release"]["teacher"]["data"]))
        for name in REFERENCES:
            if f"{REFERENCE}_{name}_attack_accuracy" in record.metrics:
                attack = _attack(record.spec) if name in OWN_REFERENCES else ("", "")
                numbers = tuple([record.metrics.get(f"{REFERENCE}_{name}_{key}") for key in REFERENCE_NUMBERS])
                self._references[*where, name, *attack].append(numbers)

    def split(self, number: int) -> list[Rows]:
        """The same board in `number` pieces; records of one row are in the same piece, whatever else the board has."""
        pieces = [Rows(published=self._published) for _ in range(number)]
        for piece in pieces:
            piece._audits = self._audits
        for key, group in self._groups.items():
            pieces[int.from_bytes(key[:4]) % number]._groups[key] = group
        pieces[0]._references = self._references
        return pieces

    def merge(self, other: Rows) -> None:
        """Take the records of another board of the same data set and audits."""
        for key, group in other._groups.items():
            if key in self._groups:
                self._groups[key].members += group.members
            else:
                self._groups[key] = group
        for where, numbers in other._references.items():
            self._references[where] += numbers
        self.filled |= other.filled

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per spec-without-seeds and one per kind of reference images, in any order; keys as `keys`."""
        folders = {name: entry.folder for name, entry in registry.entries("method").items()}
        for group in self._groups.values():
            yield self._row(group, folders)
        yield from self._reference_rows()

    def _reference_rows(self) -> Iterator[dict[str, Any]]:
        """A row per kind of reference images in each tier and split; those of its generator for each attack."""
        for (tier, split, name, attack, variant), numbers in sorted(self._references.items()):
            row: dict[str, Any] = {"tier": tier, "split": split, "method": REFERENCE, "kind": REFERENCE}
            row |= {"setting": REFERENCES[name], "attack": attack or None, "attack_variant": variant or None}
            yield row | dict(zip(REFERENCE_NUMBERS, map(_mean, zip(*numbers, strict=True)), strict=True))

    def _row(self, group: Group, folders: dict[str, str]) -> dict[str, Any]:
        members = sorted(group.members, key=lambda member: (member.seed, member.hash))
        done = [member for member in members if member.status != "failed"]
        row = group.shared | {
            "kind": folders.get(group.shared["method"], "unknown"),
            "setting": members[0].setting,
            "options": members[0].options,
            "seeds": " ".join([str(member.seed) for member in members]),
            "failed": len(members) - len(done),
            "runs": " ".join([member.hash for member in members]),
        }
        if not done:
            return row
        row["student"] = next((member.student for member in done if member.student), row["student"])
        audits = [audit for key in sorted({m.release for m in done}) for audit in self._audits.get(key, [])]
        row |= _numbers(done) | _privacy(done, audits)
        return row if self._published is None else row | self._published(row, group.dataset)


def _attack(spec: dict[str, Any]) -> tuple[str, str]:
    """The attack of a spec that has one, and its variant."""
    return spec["attack"]["attack"], spec["attack"].get("variant", "printed")


def _group(spec: dict[str, Any]) -> Group:
    release = spec["release"]
    attack, variant = _attack(spec) if spec["attack"] else (None, None)
    teacher = release["teacher"]
    shared = {
        "tier": spec["tier"],
        "split": _split(teacher["data"]),
        "method": release["method"],
        "variant": release.get("variant", "printed"),
        "version": str(release["version"]),
        "teacher": teacher["arch"] + ("" if teacher["weights"] is None else f"+weights-{teacher['weights'][:SHORT]}"),
        "student": release["student"],
        "attack": attack,
        "attack_variant": variant,
        "access": spec["attack"]["access"] if spec["attack"] else None,
    }
    return Group(teacher["data"]["dataset"], shared)


def _split(where: dict[str, Any]) -> str:
    """Which images. A data set that is read by path has a name that others have too: also what its images hash to."""
    own = is_by_path(where["dataset"])
    return f"{where['split']}-{where['fingerprint'][:SHORT]}" if own else where["split"]


def table(records: Iterable[Record], audits: Iterable[Audit] = ()) -> pd.DataFrame:
    """The board of `records`, which must be of one data set, with the columns `keys`."""
    rows = Rows(audits)
    for record in records:
        rows.add(record)
    ordered: list[dict[str, Any]] = sorted(rows.rows(), key=place)
    import pandas as pd

    return pd.DataFrame(ordered, columns=keys(rows.filled))


def _numbers(done: list[Member]) -> dict[str, Any]:
    measured = dict(zip(NUMBERS, zip(*[member.numbers for member in done], strict=True), strict=True))
    found = {each.key: (_std if each.deviation else _mean)(measured[each.metric]) for each in MEASURED}
    return found | {
        "power": _power(done),
        "seconds": _mean([member.seconds for member in done]),
        "device": " | ".join(sorted({member.device for member in done})),
    }


def _power(done: list[Member]) -> str | None:
    found = {member.power for member in done}
    return "inconclusive" if "inconclusive" in found else "pass" if "pass" in found else None


def _privacy(done: list[Member], audits: list[Audit]) -> dict[str, Any]:
    found = {flag for member in done for flag in member.flags.split()}
    found |= {*flags_of_row(member.versions for member in done), *(["refuted"] if is_refuted(audits) else [])}
    return {
        "epsilon_claimed": _mean([member.claimed for member in done]),
        "claim_unit": done[0].claim_unit,
        "epsilon_accounted": _most([member.accounted for member in done]),
        "unit": done[0].unit,
        "relation": done[0].relation,
        "delta": done[0].delta,
        "flags": " ".join(sorted(found)),
        **_audited(audits),
        "information": _mean([member.information for member in done]),
    }


def _audited(audits: list[Audit]) -> dict[str, float]:
    """What the strongest audit of a row shows, and what it shows where nothing defends or nothing is to be found."""
    if not audits:
        return {}
    best = strongest(audits)
    found = {"epsilon_audited": best.student, "audited_teacher": best.teacher, "audited_null": best.null}
    return {key: round(bound, 6) for key, bound in (found | {"audited_ceiling": best.ceiling}).items()}


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if there is nothing, or one of the values is missing."""
    return None if not values or None in values else round(math.fsum(values) / len(values), 6)  # type: ignore[arg-type]


def _most(values: Sequence[float | None]) -> float | None:
    """The largest: a mean of guarantees is none. None if there is nothing, or one of the values is missing."""
    known = [value for value in values if value is not None]
    return round(max(known), 6) if known and len(known) == len(values) else None


def _std(values: Sequence[float | None]) -> float | None:
    """The sample standard deviation over seeds; None with fewer than two, or where one of the values is missing."""
    known = [v for v in values if v is not None]
    if len(known) < max(2, len(values)):
        return None
    centre = math.fsum(known) / len(known)
    return round(math.sqrt(math.fsum((v - centre) ** 2 for v in known) / (len(known) - 1)), 6)
