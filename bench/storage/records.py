"""Records of runs and audits as plain data, whose fields are read by name; and their options as a line for display.

`bench.core.records` defines the types of all fields, and is imported when a record is read; this module also checks the
hash of the spec.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from bench.renamed import present_names
from bench.storage.specs import Json, Plain, canonical, digest

if TYPE_CHECKING:
    from bench.core.records import AnyRecord, AuditRecord, RunRecord, Status, Verdict

RECORD, AUDIT = "record.json", "audit.json"
Changed = dict[str, Plain]
"""Group of GROUPS to option to value, as stored in JSON."""
GROUPS = ("method", "attack", "teacher", "evaluator", "budget")
BUDGET = ("epsilon", "delta", "account", "solve", "unit", "noise")
"""The options of the last group, in display order."""
SPEC = b'\n "spec": {'
Digest = Callable[[Plain], str]
"""A function that computes the hash of a spec."""


def described(changed: Changed) -> str:
    """Format the options in a line, as they would be typed but without dashes; "" if nothing differs.

    >>> described({"method": {"teachers": 40, "secure": True}, "attack": {"steps": 9}, "budget": {"epsilon": None}})
    'secure=true teachers=40 attack.steps=9 epsilon=none'
    """
    words = []
    for group in GROUPS:
        values = changed.get(group, {})
        prefix = "" if group in ("method", "budget") else f"{group}."
        order = [name for name in BUDGET if name in values] if group == "budget" else sorted(values)
        words += [f"{prefix}{name}={_typed(values[name])}" for name in order]
    return " ".join(words)


def _typed(value: Json) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass
class Audit:
    """An `AuditRecord` as plain data."""

    hash: str
    verdict: Verdict
    reasons: list[str]
    spec: Plain
    canaries: Plain
    ceiling: float
    delta: float
    lines: dict[str, Plain]
    powerful: bool
    privacy: Plain
    provenance: Plain = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the canonical text of the audit."""
        return canonical(asdict(self))

    @classmethod
    def of(cls, record: AuditRecord) -> Audit:
        """Convert a typed audit to plain data."""
        return cls(**record.to_plain())

    @classmethod
    def read(cls, path: Path) -> Audit:
        """Read the audit in a file. Raises ValueError, naming the file, if it is not one."""
        return cls.decode(path.read_bytes(), str(path))

    @classmethod
    def decode(cls, text: bytes, name: str, digest_of: Digest = digest) -> Audit:
        """Read the audit in a text, as `Record.decode`."""
        from bench.core.records import AuditRecord

        return cls(**_decode(AuditRecord, text, name, "an audit", digest_of))


@dataclass
class Record:
    """A `RunRecord` as plain data."""

    hash: str
    status: Status
    reason: str
    spec: Plain
    options: Changed = field(default_factory=dict)
    student: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    privacy: Plain = field(default_factory=dict)
    provenance: Plain = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """The options in a line, for display: renamed ones by their present names."""
        return described({group: present_names(given) for group, given in self.options.items()})

    def to_json(self) -> str:
        """Return the canonical text of the record."""
        return canonical(asdict(self))

    @classmethod
    def of(cls, record: RunRecord) -> Record:
        """Convert a typed record to plain data."""
        return cls(**record.to_plain())

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read the record in a file. Raises ValueError, naming the file, if it is not one."""
        return cls.decode(path.read_bytes(), str(path))

    @classmethod
    def decode(cls, text: bytes, name: str, digest_of: Digest = digest) -> Record:
        """Read the record in a text; its hash must be that of its spec.

        Args:
            name: the source of the text, for messages.
            digest_of: computes the hash of a spec; one that caches parts shared by many specs is faster.

        Raises:
            ValueError: the text is not a record; the message begins with `name`.
        """
        from bench.core.records import RunRecord

        return cls(**_decode(RunRecord, text, name, "a record", digest_of))


def _decode(kind: type[AnyRecord], text: bytes, source: str, noun: str, digest_of: Digest) -> Plain:
    """Return the plain data of a text after checking its types and the hash of its spec."""
    from bench.core.records import validate

    try:
        plain: Plain = orjson.loads(text)
        record = validate(kind, plain)
        if record.hash != _digest_as_written(text) and record.hash != digest_of(plain["spec"]):
            raise ValueError("its hash is not that of its spec")
    except ValueError as error:
        raise ValueError(f"{source} is not {noun}: {error}") from None
    return plain


def _digest_as_written(text: bytes) -> str:
    """Return the digest of the spec in a canonical text, without serialising it again; "" if there is no spec.

    In canonical text the spec ends at the next closing brace of the same depth, which is indented one space more. No
    string can contain this pattern, as its line breaks are escaped.
    """
    start = text.find(SPEC)
    end = text.find(b"\n }", start)
    if start < 0 or end < 0:
        return ""
    spec = text[start + len(SPEC) - 1 : end + 3].replace(b"\n ", b"\n") + b"\n"
    return hashlib.sha256(spec).hexdigest()[:16]
