"""Specs: values that identify a step, a run or an audit; their canonical text, and the digest that names them.

A step's spec contains the specs of its inputs, so that its digest covers its whole history. Device and precision are
not part of a spec.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from json.encoder import encode_basestring
from typing import Any, TypeAlias

import orjson

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""Plain data that a JSON file can hold."""
Plain = dict[str, Any]
"""A JSON object as read from a file, accessed by name; `bench.core.records` has the typed form."""
Numbers = float | tuple[float, ...]
"""One number, or one per channel."""
SURROGATES = re.compile("[\ud800-\udfff]")


def canonical(value: Any) -> str:
    """Return the canonical text of a spec or of plain data: JSON with sorted keys, indented by 1.

    It equals `json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False)` and a line break, several times faster.

    Raises:
        ValueError: a number that is NaN or infinite.
        TypeError: a key that is not a string, or a value that JSON does not have.
    """
    return _text(value, "\n") + "\n"


def digest(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of the canonical text: the name of a step, a run or an audit."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def _text(value: Any, line_break: str) -> str:
    """Return the text of one value; `line_break` includes the indentation of the line on which the value begins."""
    if isinstance(value, str):
        return encode_basestring(encodable(value))
    if value is None or value is True or value is False:
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no place in JSON")
        return float.__repr__(value)
    if isinstance(value, Spec | JsonObject):
        return value.text.replace("\n", line_break)  # text in quotes has no line breaks
    inner = f"{line_break} "
    if isinstance(value, list | tuple):
        items = [_text(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(items)}{line_break}]" if items else "[]"
    if isinstance(value, Mapping):
        items = [f"{encode_basestring(encodable(key))}: {_text(value[key], inner)}" for key in sorted(value)]
        return f"{{{inner}{f',{inner}'.join(items)}{line_break}}}" if items else "{}"
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def json_form(value: Any) -> Any:
    """Return plain data as read back from a file: tuples become lists, text is UTF-8. Raises as `canonical`."""
    return orjson.loads(canonical(value))


def encodable(text: str) -> str:
    r"""Return text that UTF-8 can encode; an undecodable byte of a file's name becomes \xNN.

    >>> print(encodable("caf\udce9"), encodable("café"))
    caf\xe9 café

    Raises:
        TypeError: not a string, such as a number as the key of an object.
    """
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} is not text")
    return text if text.isascii() else SURROGATES.sub(_escape_surrogate, text)


def _escape_surrogate(found: re.Match[str]) -> str:
    """Escape a surrogate: 0xdc80 to 0xdcff represent bytes that could not be decoded."""
    code = ord(found[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


class JsonObject(dict[str, Json]):
    """A JSON object that many specs share; it must not be changed, as its text is computed once.

    Two objects are equal if their texts are: 1 and 1.0 are two settings.
    """

    @cached_property
    def text(self) -> str:
        """The canonical text without its last line break."""
        return _text(dict(self), "\n")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, JsonObject):
            return self is other or self.text == other.text
        return dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.text)


class Spec:
    """Base of all specs; text and hash are computed once, from the texts of the parts.

    A sweep computes several hashes of thousands of runs, whose specs have most parts in common.
    """

    @cached_property
    def text(self) -> str:
        """The canonical text without its last line break."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return _text(values, "\n")

    @cached_property
    def hash(self) -> str:
        """The `digest` of the spec."""
        return digest(self)


@dataclass(frozen=True)
class DataSpec(Spec):
    """A data set by content: its slug, fingerprint and split."""

    dataset: str
    fingerprint: str
    split: str


@dataclass(frozen=True)
class TeacherSpec(Spec):
    """A trained teacher.

    Attributes:
        weights: SHA-256 of a user's own file; None if the recipe was run.
        normalise: (mean, std) that the user's network expects, each one number or one per channel; None = the values
            in the file, else (0.5, 0.5).
    """

    data: DataSpec
    arch: str
    weights: str | None
    recipe: Mapping[str, Json]
    seed: int
    normalise: tuple[Numbers, Numbers] | None = None
    kind: str = "teacher"
    version: int = 1


@dataclass(frozen=True)
class EvaluatorSpec(Spec):
    """The network that scores reconstructions; never shown to an attack."""

    data: DataSpec
    arch: str
    recipe: Mapping[str, Json]
    seed: int
    kind: str = "evaluator"
    version: int = 1


@dataclass(frozen=True)
class EnsembleSpec(Spec):
    """Teachers on disjoint parts of the private records.

    Attributes:
        shards: the method's `bench.api.Shards` as plain data.
        canaries, coins: as in an AuditTeacherSpec.
    """

    data: DataSpec
    shards: Mapping[str, Json]
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
    options: Mapping[str, Json]
    student: str
    budget: Mapping[str, Json]
    noise: str
    seed: int
    ensemble: EnsembleSpec | None = None
    variant: str = "printed"
    public: str | None = None
    kind: str = "release"


@dataclass(frozen=True)
class RandomSpec(Spec):
    """The baseline of attacks on networks: the teacher's network with random weights."""

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
class TrainedGeneratorSpec(GeneratorSpec):
    """A baseline generator after training; `images` is the fingerprint of its training images."""

    images: str = ""


@dataclass(frozen=True)
class AttackSpec(Spec):
    """A variant of an attack on one target. `aux` is the fingerprint of the attacker's images."""

    target: TeacherSpec | ReleaseSpec | RandomSpec | GeneratorSpec
    aux: str
    attack: str
    version: int
    access: str
    options: Mapping[str, Json]
    seed: int
    variant: str = "printed"
    kind: str = "attack"


@dataclass(frozen=True)
class RetrievalSpec(Spec):
    """The attacker's images that a target prefers: a baseline of inversion attacks with access `access`."""

    target: TeacherSpec | ReleaseSpec | RandomSpec | GeneratorSpec
    aux: str
    access: str
    kind: str = "floor"
    version: int = 1


@dataclass(frozen=True)
class FeaturesSpec(Spec):
    """The evaluator's features of the private and held-out images."""

    data: DataSpec
    evaluator: EvaluatorSpec
    version: int
    kind: str = "features"


@dataclass(frozen=True)
class ReferenceImagesSpec(Spec):
    """Scores of images made without a target: `images` of each class from the data and from the attacker's images."""

    data: DataSpec
    evaluator: EvaluatorSpec
    aux: str
    images: int
    version: int
    kind: str = "reference-images"


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
    """A teacher trained on the private part and on mislabelled canaries.

    Attributes:
        canaries: number of canaries; those with a true coin are in the training data.
        coins: seed of the coins.
    """

    canaries: int = 0
    coins: int = 0
    kind: str = "audit-teacher"


@dataclass(frozen=True)
class AuditSpec(Spec):
    """An audit of a whole release.

    Attributes:
        release: the release of a run with the same settings, without canaries.
        teacher: the teacher with canaries, which is converted instead of the release's teacher.
        score: the score of a canary, from which its coin is guessed.
        guesses: number of coins that are guessed.
    """

    tier: str
    release: ReleaseSpec
    teacher: AuditTeacherSpec
    score: str
    guesses: int
    confidence: float
    kind: str = "audit"
    version: int = 1
