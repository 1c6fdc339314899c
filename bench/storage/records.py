"""What came of a run (`Record`) or of an end-to-end audit (`Audit`), and how both are read back from their files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson

from bench.storage.options import Changed, described
from bench.storage.specs import canonical, digest

Status = Literal["ok", "skipped", "failed", "inconclusive"]
RECORD = "record.json"
AUDIT = "audit.json"
Verdict = Literal["refuted", "not refuted"]
SPEC = b'\n "spec": {'
Kept = TypeVar("Kept", "Record", "Audit")
Digest = Callable[[dict[str, Any]], str]
"""Computes the hash of a spec."""
ENTRY = {"unit", "why", "event", "count"}
"""What each entry of a ledger says."""
BOUND = {"epsilon_lower", "delta", "unit"}
"""What an audit's bound in a record is read for."""
TYPES = {"str": str, "dict": dict, "list": list, "Changed": dict}
"""Of fields, by the first word of their annotation."""


@dataclass
class Audit:
    """What came of an end-to-end audit of a release.

    Attributes:
        hash: of the spec.
        verdict: refuted, or not refuted; an audit verifies nothing.
        reasons: a sentence per number of the release: refuted, not exceeded, or why the audit cannot speak of it.
        spec: the AuditSpec as plain data.
        canaries: how many, how many were inserted, which images.
        ceiling: the bound if all guesses were right.
        delta: at which the bounds hold.
        lines: "student", "teacher", "null" to correct guesses, epsilon_lower, accuracy, memorised canaries.
        powerful: whether the bound of the undefended teacher is above 0; otherwise the audit shows nothing.
        privacy: claimed and accounted of the audited release, as in a record.
        provenance: versions, device, seconds. Never part of what is compared.
    """

    hash: str
    verdict: Verdict
    reasons: list[str]
    spec: dict[str, Any]
    canaries: dict[str, Any]
    ceiling: float
    delta: float
    lines: dict[str, dict[str, Any]]
    powerful: bool
    privacy: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The canonical text of the audit."""
        return canonical(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Audit:
        """The audit in a file. Raises ValueError, naming the file, if it is not one."""
        return cls.decode(path.read_bytes(), str(path))

    @classmethod
    def decode(cls, text: bytes, name: str, digest_of: Digest = digest) -> Audit:
        """The audit in a text, as `Record.decode`."""
        return _decode(cls, text, name, "an audit", digest_of)


@dataclass
class Record:
    """What came of a run.

    Attributes:
        hash: of the spec.
        status: ok, skipped (the attack does not apply), failed, inconclusive (the attack did not prove its power).
        reason: a sentence for every status but ok.
        spec: the RunSpec as plain data.
        options: what differs from the defaults of variant and tier, by group and name (`bench.storage.options`).
        student: the network that was released; "" where nothing was.
        metrics: name to number; None where a metric could not be computed, with the reason in `missing`.
        privacy: claimed, accounted, audited, events, noise, and what the account covers ("covers"): the student, and a
            generator or synthetic images if they are released. All metrics are measurements of the laboratory, many of
            them on private data without noise, and no part of the release (docs/releasing.md).
        provenance: versions, device, seconds. Never part of what is compared.
        artifacts: name to file name beside the record.
    """

    hash: str
    status: Status
    reason: str
    spec: dict[str, Any]
    options: Changed = field(default_factory=dict)
    student: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """The options in a line, for people."""
        return described(self.options)

    def to_json(self) -> str:
        """The canonical text of the record."""
        return canonical(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record in a file. Raises ValueError, naming the file, if it is not one."""
        return cls.decode(path.read_bytes(), str(path))

    @classmethod
    def decode(cls, text: bytes, name: str, digest_of: Digest = digest) -> Record:
        """The record in a text, whose hash must be that of its spec.

        Args:
            name: of where the text is from, for messages.
            digest_of: computes the hash of a spec; one that keeps the parts that many specs share is faster.

        Raises:
            ValueError: the text is not a record; the message begins with `name`.
        """
        return _decode(cls, text, name, "a record", digest_of)


def _decode(cls: type[Kept], text: bytes, name: str, what: str, digest_of: Digest) -> Kept:
    try:
        kept = cls(**orjson.loads(text))
        _expect_types(kept)
        if isinstance(kept, Record):
            _expect_contents(kept)
        else:
            _expect_lines(kept)
        if kept.hash != _digest_as_written(text) and kept.hash != digest_of(kept.spec):
            raise ValueError("its hash is not that of its spec")
    except TypeError:
        raise ValueError(f"{name} is not {what}: it lacks fields of one, or has others") from None
    except (ValueError, KeyError) as error:
        raise ValueError(f"{name} is not {what}: {error}") from None
    return kept


def _expect_types(kept: Any) -> None:
    """Raises TypeError where a field that is text, a list or an object is something else."""
    for name, expected in TYPED[type(kept).__name__]:
        if not isinstance(getattr(kept, name), expected):
            raise TypeError(name)


def _typed(kind: type[Record] | type[Audit]) -> list[tuple[str, type[Any]]]:
    """The fields that are text, a list or an object, each with its type."""
    found = ((each.name, TYPES.get(str(each.type).partition("[")[0])) for each in fields(kind))
    return [(name, expected) for name, expected in found if expected is not None]


TYPED = {kind.__name__: _typed(kind) for kind in (Record, Audit)}


def _expect_contents(record: Record) -> None:
    """Raises ValueError where a number of a record is none, or an option stands in no group."""
    for name, value in record.metrics.items():
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"its metric {name} is {value!r}, no number")
    if not all(isinstance(group, dict) for group in record.options.values()):
        raise ValueError("its options are not grouped")
    for name, words in (("artifacts", record.artifacts), ("missing", record.missing)):
        if not all(isinstance(word, str) for word in words.values()):
            raise ValueError(f"its {name} are not all words")
    if not isinstance(record.provenance.get("steps", {}), dict):
        raise ValueError("its provenance.steps are not grouped")
    if not isinstance(record.provenance.get("device", ""), str):
        raise ValueError("its provenance.device is no word")
    seconds = record.provenance.get("seconds", {})
    if not isinstance(seconds, dict) or not all(type(each) in (int, float) for each in seconds.values()):
        raise ValueError("its provenance.seconds are not all numbers")
    if record.privacy or record.status != "failed":
        _expect_account(record.privacy)
    promises = [("accounted", record.privacy.get("accounted")), ("claimed", record.privacy.get("claimed"))]
    units = record.privacy.get("accounted_units") or {}
    for name, promise in [*promises, *(units.items() if isinstance(units, dict) else [("accounted_units", units)])]:
        epsilon = promise.get("epsilon") if isinstance(promise, dict) else promise
        known = isinstance(epsilon, int | float) and not isinstance(epsilon, bool) and epsilon >= 0
        if promise is not None and not (known or epsilon == "inf"):
            raise ValueError(f"its privacy.{name} has the epsilon {epsilon!r}")


def _expect_account(privacy: dict[str, Any]) -> None:
    """Raises ValueError where a run's account lacks what every reader of it asks for."""
    claimed, units = privacy.get("claimed", {}), privacy.get("accounted_units")
    promises = {"accounted": privacy.get("accounted"), **({} if claimed is None else {"claimed": claimed})}
    promises |= units if isinstance(units, dict) else {"accounted_units": units}
    for name, promise in promises.items():
        if not isinstance(promise, dict) or not {"epsilon", "delta", "unit"} <= promise.keys():
            epsilon = promise.get("epsilon") if isinstance(promise, dict) else promise
            raise ValueError(f"its privacy.{name} has the epsilon {epsilon!r}, and lacks delta or unit")
        if type(promise["delta"]) not in (int, float) or not isinstance(promise["unit"], str):
            raise ValueError(f"its privacy.{name} has the delta {promise['delta']!r} per {promise['unit']!r}")
    if not isinstance(privacy.get("solved") or {}, dict):
        raise ValueError("its privacy.solved is not grouped")
    audited = privacy.get("audited")
    if audited is not None and not (isinstance(audited, dict) and audited.keys() >= BOUND):
        raise ValueError("its privacy.audited is no bound of an audit")
    events = privacy.get("events", [])
    if not isinstance(events, list) or not all(isinstance(one, dict) and one.keys() >= ENTRY for one in events):
        raise ValueError("its privacy.events are no ledger")


def _expect_lines(audit: Audit) -> None:
    """Raises ValueError where an audit lacks a number of one of its three lines, or what it is held against."""
    numbers = {"ceiling": audit.ceiling, "delta": audit.delta, "canaries": audit.canaries.get("number")}
    for name in ("student", "teacher", "null"):
        line = audit.lines.get(name)
        if not isinstance(line, dict):
            raise ValueError(f"it has no line of the {name}")
        numbers |= {f"{name}'s {key}": line.get(key) for key in ("correct", "epsilon_lower")}
    for name, value in numbers.items():
        if type(value) not in (int, float):
            raise ValueError(f"its {name} is {value!r}, no number")
    if not {"claimed", "accounted_units"} <= audit.privacy.keys():
        raise ValueError("its privacy lacks claimed or accounted_units")


def _digest_as_written(text: bytes) -> str:
    """The digest of the spec that stands in a canonical text, without composing it again; "" if there is none.

    In canonical text the spec is what stands between its key and the next brace of the same depth, one space further
    to the right. No string can look so: its line breaks are escaped.
    """
    start = text.find(SPEC)
    end = text.find(b"\n }", start)
    if start < 0 or end < 0:
        return ""
    own = text[start + len(SPEC) - 1 : end + 3].replace(b"\n ", b"\n") + b"\n"
    return hashlib.sha256(own).hexdigest()[:16]
