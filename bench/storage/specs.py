"""Specs: plain data that identify a step, a run or an audit; their canonical form, and the hash that names them.

A step's spec contains the specs of its inputs, so that its hash covers its whole history. Device and precision are not
part of a spec.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, fields
from functools import cache, cached_property
from json.encoder import encode_basestring as _quoted
from typing import Any

import orjson

Numbers = float | tuple[float, ...]
"""One number, or one per channel."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_INNER = "\n "
"""A line break and the indentation of a spec's fields."""


def canonical(data: Any) -> str:
    """Return JSON with sorted keys, indented by 1, and no NaN or infinity.

    This is the text of `json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False)`, several times faster.

    Raises:
        ValueError: a number that is NaN or infinite.
        TypeError: a key that is not a string, or a value that JSON does not have.
    """
    return _text(data, "\n") + "\n"


def _text(value: Any, line: str) -> str:
    """Return the text of one value; `line` is a line break with the indentation of the value."""
    if isinstance(value, str):
        return _quoted(encodable(value))
    if value is None or value is True or value is False:
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no place in JSON")
        return float.__repr__(value)
    if isinstance(value, Spec | Shared):
        return value.text.replace("\n", line)  # text in quotes has no line breaks
    inner = line + " "
    if isinstance(value, dict):
        parts = [f"{_quoted(encodable(key))}: {_text(value[key], inner)}" for key in sorted(value)]
        return f"{{{inner}{f',{inner}'.join(parts)}{line}}}" if parts else "{}"
    if isinstance(value, list | tuple):
        parts = [_text(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(parts)}{line}]" if parts else "[]"
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def json_form(data: Any) -> Any:
    """Return plain data as read back from a file: tuples become lists, text is UTF-8. Raises as `canonical`."""
    return orjson.loads(canonical(data))


def encodable(text: str) -> str:
    """Return text that UTF-8 can encode; an undecodable byte of a file's name becomes \\xNN.

    >>> print(encodable("caf\\udce9"), encodable("café"))
    caf\\xe9 café

    Raises:
        TypeError: not a string, such as a number as the key of an object.
    """
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} is not text")
    if text.isascii():
        return text
    return _SURROGATES.sub(lambda found: _escaped(ord(found[0])), text)


def _escaped(code: int) -> str:
    """Escape a surrogate: 0xdc80 to 0xdcff represent bytes that could not be decoded."""
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def digest(spec: dict[str, Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 of a spec's canonical form."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:16]


class Shared(dict[str, Any]):
    """Plain data shared by many specs; it must not be changed, as its text is computed once.

    Two objects are the same if their texts are: 1 and 1.0 are two settings.
    """

    @cached_property
    def text(self) -> str:
        """Return the canonical text, as `Spec.text`."""
        return _text(dict(self), "\n")

    def __eq__(self, other: object) -> bool:
        return self is other or (self.text == other.text if isinstance(other, Shared) else dict.__eq__(self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.text)


class Spec:
    """Base of all specs: the canonical text, composed once from that of its parts, and its hash.

    A sweep computes several hashes of thousands of runs, whose specs have most parts in common.
    """

    @cached_property
    def text(self) -> str:
        """The `canonical` text of the spec as plain data, without the last line break."""
        kind: Any = type(self)
        parts = [f'"{name}": {_text(getattr(self, name), _INNER)}' for name in _names(kind)]
        return f"{{{_INNER}{f',{_INNER}'.join(parts)}\n}}"

    @cached_property
    def hash(self) -> str:
        """The `digest` of the spec as plain data: the name of a step, a run or an audit in the store."""
        return hashlib.sha256(f"{self.text}\n".encode()).hexdigest()[:16]


@cache
def _names(kind: Any) -> list[str]:
    """Return the fields of a kind of spec, sorted."""
    return sorted(field.name for field in fields(kind))


@dataclass(frozen=True)
class DataSpec(Spec):
    """A data set by content: its slug, fingerprint and split."""

    dataset: str
    fingerprint: str
    split: str


@dataclass(frozen=True)
class TeacherSpec(Spec):
    """A trained teacher. `weights`: SHA-256 of a user's own file, or None if the recipe was run. `normalise`: the
    (mean, std) that the user's network expects, each one number or one per channel, or None for the values in the file,
    or the harness's (0.5, 0.5)."""

    data: DataSpec
    arch: str
    weights: str | None
    recipe: dict[str, Any]
    seed: int
    normalise: tuple[Numbers, Numbers] | None = None
    kind: str = "teacher"
    version: int = 1


@dataclass(frozen=True)
class EvaluatorSpec(Spec):
    """The network that scores reconstructions; never shown to an attack."""

    data: DataSpec
    arch: str
    recipe: dict[str, Any]
    seed: int
    kind: str = "evaluator"
    version: int = 1


@dataclass(frozen=True)
class EnsembleSpec(Spec):
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
class ReleaseSpec(Spec):
    """A teacher converted by a variant of a method within a budget, through an ensemble if the method needs one, and
    with the public images of fingerprint `public` if it needs those."""

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
class RandomSpec(Spec):
    """The untrained baseline of attacks: the teacher's network with random weights."""

    data: DataSpec
    arch: str
    seed: int
    kind: str = "random"


@dataclass(frozen=True)
class GeneratorSpec(Spec):
    """The baseline of attacks on released generators: a generator trained on `records` private records for `steps`
    steps; with 0 steps it has random weights."""

    data: DataSpec
    records: int
    steps: int
    seed: int
    kind: str = "memorising-generator"
    version: int = 1


@dataclass(frozen=True)
class AttackSpec(Spec):
    """A variant of an attack on one target. `aux` is the fingerprint of the attacker's images."""

    target: TeacherSpec | ReleaseSpec | RandomSpec | GeneratorSpec
    aux: str
    attack: str
    version: int
    access: str
    options: dict[str, Any]
    seed: int
    variant: str = "printed"
    kind: str = "attack"


@dataclass(frozen=True)
class RunSpec(Spec):
    """One run: a release, optionally an attack with its two baselines, and the evaluator."""

    tier: str
    release: ReleaseSpec
    attack: AttackSpec | None
    evaluator: EvaluatorSpec
    kind: str = "run"
    version: int = 1

    @property
    def attack_spec(self) -> AttackSpec:
        """Return the attack's spec. Raises ValueError for a run without an attack."""
        if self.attack is None:
            raise ValueError("this run has no attack")
        return self.attack


@dataclass(frozen=True)
class AuditTeacherSpec(TeacherSpec):
    """A teacher trained on the private part and on those of `canaries` mislabelled images whose coin, drawn with seed
    `coins`, is true."""

    canaries: int = 0
    coins: int = 0
    kind: str = "audit-teacher"


@dataclass(frozen=True)
class AuditSpec(Spec):
    """An end-to-end audit. `release`: the release of a plain run at these settings; `teacher`: the teacher converted
    instead of its teacher; `guesses`: number of the canaries' coins guessed from `score`."""

    tier: str
    release: ReleaseSpec
    teacher: AuditTeacherSpec
    score: str
    guesses: int
    confidence: float
    kind: str = "audit"
    version: int = 1
