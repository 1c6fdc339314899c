"""Records of runs and audits as plain data, whose fields are read by name.

`bench.core.records` defines the types of all fields; this module also checks the hash of the spec.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from bench.core.records import AnyRecord, AuditRecord, RunRecord, Status, Verdict, validate
from bench.renamed import present_names
from bench.storage.options import Changed, described
from bench.storage.specs import Plain, canonical, digest

__all__ = ["AUDIT", "RECORD", "Audit", "Record", "Status", "Verdict"]

RECORD, AUDIT = "record.json", "audit.json"
SPEC = b'\n "spec": {'
Digest = Callable[[Plain], str]
"""A function that computes the hash of a spec."""


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
        return cls(**_decode(RunRecord, text, name, "a record", digest_of))


def _decode(kind: type[AnyRecord], text: bytes, source: str, noun: str, digest_of: Digest) -> Plain:
    """Return the plain data of a text after checking its types and the hash of its spec."""
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
