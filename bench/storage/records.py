"""What a run is (specs) and what came of it (records), as plain data with one canonical form.

A step's spec contains the spec of what it consumes, so that its hash covers its whole history. Device and precision are
not part of a spec.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field
from json.encoder import encode_basestring as _quoted
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson

Status = Literal["ok", "skipped", "failed", "inconclusive"]
RECORD = "record.json"
AUDIT = "audit.json"
Verdict = Literal["refuted", "not refuted"]
SPEC = b'\n "spec": {'
Kept = TypeVar("Kept", "Record", "Audit")


def canonical(data: Any) -> str:
    """JSON with sorted keys, indented by 1, and no NaN or infinity.

    The text of `json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False)`, which is several times slower.

    Raises:
        ValueError: a number that is NaN or infinite.
        TypeError: a key that is no string, or a value that JSON does not have.
    """
    return _text(data, "\n") + "\n"


def _text(value: Any, line: str) -> str:
    """One value; `line` is a line break with the indentation of where the value stands."""
    if isinstance(value, str):
        return _quoted(value)
    if value is None or value is True or value is False:
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no place in JSON")
        return float.__repr__(value)
    inner = line + " "
    if isinstance(value, dict):
        parts = [f"{_quoted(key)}: {_text(value[key], inner)}" for key in sorted(value)]
        return f"{{{inner}{f',{inner}'.join(parts)}{line}}}" if parts else "{}"
    if isinstance(value, list | tuple):
        parts = [_text(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(parts)}{line}]" if parts else "[]"
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def digest(spec: dict[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of a spec's canonical form."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:16]


def number(value: float | None) -> float | None:
    """A number that JSON can hold: infinity becomes None (the caller stores "finite" beside it).

    Raises:
        ValueError: NaN, which must be a stated reason, never a number.
    """
    if value is None or math.isinf(value):
        return None
    if math.isnan(value):
        raise ValueError("NaN is not a result")
    return float(value)


@dataclass(frozen=True)
class DataSpec:
    """A data set by content: its slug, fingerprint and split."""

    dataset: str
    fingerprint: str
    split: str


@dataclass(frozen=True)
class TeacherSpec:
    """A trained teacher. `weights` is the SHA-256 of a user's own file, or None where the recipe was run; `normalise`
    the (mean, std) that the user's network expects, or None for the harness's (0.5, 0.5)."""

    data: DataSpec
    arch: str
    weights: str | None
    recipe: dict[str, Any]
    seed: int
    normalise: tuple[float, float] | None = None
    kind: str = "teacher"
    version: int = 1


@dataclass(frozen=True)
class EvaluatorSpec:
    """The network that judges reconstructions; never shown to an attack."""

    data: DataSpec
    arch: str
    recipe: dict[str, Any]
    seed: int
    kind: str = "evaluator"
    version: int = 1


@dataclass(frozen=True)
class EnsembleSpec:
    """Teachers on disjoint parts of the private split; `shards` are the method's `bench.api.Shards` as plain data.
    `canaries` and `coins` as in an AuditTeacherSpec."""

    data: DataSpec
    shards: dict[str, Any]
    seed: int
    canaries: int = 0
    coins: int = 0
    kind: str = "ensemble"
    version: int = 1


@dataclass(frozen=True)
class ReleaseSpec:
    """A teacher converted by a variant of a method within a budget, through an ensemble if it asks for one, and with
    the public images of fingerprint `public` if it asks for those."""

    teacher: TeacherSpec
    method: str
    version: int
    options: dict[str, Any]
    student: str
    budget: dict[str, Any]
    noise: str
    seed: int
    ensemble: EnsembleSpec | None = None
    variant: str = "printed"
    public: str | None = None
    kind: str = "release"


@dataclass(frozen=True)
class RandomSpec:
    """The control that must not be attackable: the teacher's network with random weights."""

    data: DataSpec
    arch: str
    seed: int
    kind: str = "random"


@dataclass(frozen=True)
class AttackSpec:
    """A variant of an attack on one target. `aux` is the fingerprint of the attacker's images."""

    target: TeacherSpec | ReleaseSpec | RandomSpec
    aux: str
    attack: str
    version: int
    access: str
    options: dict[str, Any]
    seed: int
    variant: str = "printed"
    kind: str = "attack"


@dataclass(frozen=True)
class RunSpec:
    """One row's worth of work: a release, optionally an attack with its two controls, and the evaluator."""

    tier: str
    release: ReleaseSpec
    attack: AttackSpec | None
    evaluator: EvaluatorSpec
    kind: str = "run"
    version: int = 1

    @property
    def hash(self) -> str:
        """The name of the run's directory."""
        return digest(asdict(self))


@dataclass(frozen=True)
class AuditTeacherSpec(TeacherSpec):
    """A teacher trained on the private part and on those of `canaries` mislabelled images whose coin, of seed `coins`,
    says so."""

    canaries: int = 0
    coins: int = 0
    kind: str = "audit-teacher"


@dataclass(frozen=True)
class AuditSpec:
    """An end-to-end audit. `release` is the release of a plain run at these settings, `teacher` what was converted
    instead of its teacher; `guesses` of the canaries' coins are guessed from `score`."""

    tier: str
    release: ReleaseSpec
    teacher: AuditTeacherSpec
    score: str
    guesses: int
    confidence: float
    kind: str = "audit"
    version: int = 1

    @property
    def hash(self) -> str:
        """The name of the audit's directory."""
        return digest(asdict(self))


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
        return _read(cls, path, "an audit")


@dataclass
class Record:
    """What came of a run.

    Attributes:
        hash: of the spec.
        status: ok, skipped (the attack does not apply), failed, inconclusive (the attack did not prove its power).
        reason: a sentence for every status but ok.
        spec: the RunSpec as plain data.
        setting: what differs from the tier's defaults, for people.
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
    setting: str = ""
    student: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The canonical text of the record."""
        return canonical(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record in a file. Raises ValueError, naming the file, if it is not one."""
        return _read(cls, path, "a record")


def _read(cls: type[Kept], path: Path, what: str) -> Kept:
    try:
        text = path.read_bytes()
        kept = cls(**orjson.loads(text))
        if kept.hash != _digest_as_written(text) and kept.hash != digest(kept.spec):
            raise ValueError("its hash is not that of its spec")
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is not {what}: {error}") from None
    return kept


def _digest_as_written(text: bytes) -> str:
    """The digest of the spec that stands in a canonical text, without composing it anew; "" if there is none.

    In canonical text the spec is what stands between its key and the next brace of the same depth, one space further
    to the right. No string can look so: its line breaks are escaped.
    """
    start = text.find(SPEC)
    end = text.find(b"\n }", start)
    if start < 0 or end < 0:
        return ""
    own = text[start + len(SPEC) - 1 : end + 3].replace(b"\n ", b"\n") + b"\n"
    return hashlib.sha256(own).hexdigest()[:16]
