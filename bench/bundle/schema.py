"""The three JSON files of a bundle as pydantic models: each field has a type and a range, other fields are errors.

Untrusted files may contain anything. Decoded values are safe to print, compare and compute with: names contain no
active characters, sentences no hidden ones, only epsilons may be infinite, lists are short.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bench import data
from bench.core.epsilon import format_epsilon
from bench.core.privacy import Extended
from bench.escape import has_hidden, visible
from bench.privacy import Relation, Unit

FORMAT: Final = 3
MANIFEST, PRIVACY, MODEL, CARD = "MANIFEST.json", "privacy.json", "model.json", "README.md"
WITHHELD = "withheld: the owner's own data"
MOST_COUNT = 10**15
LONGEST = 1000
"""Largest number of characters of a sentence."""
DEEPEST = 20
"""Largest nesting depth of events, as in `bench.privacy`."""


class Failed(Exception):
    """A bundle is not valid; the message says in one line why."""


def load_json(content: bytes, name: str) -> Any:
    """Decode a JSON text.

    Args:
        name: file name, for the error message.

    Raises:
        Failed: not JSON in UTF-8, nested too deeply, a repeated key, or a number that is not finite.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"the key {key[:100]!r} is there twice")
            found[key] = value
        return found

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError(f"{text[:40]} is not a finite number")
        return number

    try:
        return json.loads(content.decode(), object_pairs_hook=unique, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {visible(str(error))}"
        raise Failed(f"{name} cannot be read ({reason[:200]})") from None


def _without_hidden(text: str) -> str:
    if has_hidden(text):
        raise ValueError("a text has a line break or a hidden character")
    return text


def check_event(event: dict[str, object]) -> dict[str, object]:
    """Check that an event's numbers can be computed with; names and kinds are checked when the ledger is read."""
    if any(not abs(number) <= 1e300 for number in _numbers(event)):
        raise ValueError("a parameter of the event is beyond 1e300")
    return event


def _numbers(value: object, depth: int = 1) -> Iterator[float]:
    if depth > 2 * DEEPEST:
        raise ValueError(f"events are nested more than {DEEPEST} deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner, depth + 1)
    elif isinstance(value, int | float):
        yield value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]{1,100}$")]
Architecture = Annotated[str, Field(pattern=r"^((small:)?(tv:)?|[0-9]{2,3}px:)[A-Za-z0-9._+-]{1,100}$")]
TensorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]{1,300}$")]
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+() -]{1,100}$")]
Slug = Annotated[str, Field(pattern=r"^([a-z0-9]+(-[a-z0-9]+)*)?$", max_length=100)]
Sentence = Annotated[str, Field(max_length=LONGEST), AfterValidator(_without_hidden)]
Label = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_without_hidden)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Delta = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Side = Annotated[int, Field(ge=1, le=1024)]
Channels = Annotated[int, Field(ge=1, le=16)]
Classes = Annotated[int, Field(ge=2, le=100_000)]
Pair = tuple[Side, Side]


class Strict(BaseModel):
    """Plain data of a file, decoded without conversions: unknown and missing fields are errors."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _has_no_null_for_absent(self) -> Self:
        fields = type(self).model_fields
        for name in self.model_fields_set:
            if getattr(self, name) is None and not fields[name].is_required():
                raise ValueError(f"{name} is null; expected a value, or no such field")
        return self

    def to_json(self) -> dict[str, Any]:
        """Return plain data as stored in a file."""
        return self.model_dump(mode="json", exclude_unset=True)


def first_error(error: ValidationError) -> str:
    """Return the first error, with the path of its field."""
    found = error.errors(include_url=False, include_input=False)[0]
    return visible(f"{'.'.join(map(str, found['loc'])) or 'the whole'}: {found['msg']}")[:300]


class Method(Strict):
    """The method that made the release."""

    name: Name
    version: Annotated[int, Field(ge=1, le=10**6)]


class Guarantee(Strict):
    """An epsilon at a delta for a unit."""

    epsilon: Extended
    delta: Delta
    unit: Unit

    @property
    def displayed(self) -> str:
        """Return epsilon for display, rounded up."""
        return format_epsilon(self.epsilon, upward=True)


class AccountedEpsilon(Guarantee):
    """An accounted epsilon, as `bench.privacy.accountant.Accounted.to_json` writes it."""

    relation: Relation
    accountant: Name
    version: Version
    note: Sentence = ""


class ClaimedEpsilon(Guarantee):
    """The epsilon that the method's paper claims."""

    source: Sentence
    disputed: Slug


class AuditedEpsilon(Strict):
    """The lower bound of an audit, measured on another network of the same settings.

    Attributes:
        epsilon_lower: the bound on epsilon, at `delta` and `confidence`.
        ceiling: the bound if all guesses were right: the detection limit of the audit.
        canaries: number of canaries.
        null_run: the bound of a run without canaries, which should be about 0.
    """

    epsilon_lower: Annotated[float, Field(ge=0)]
    confidence: Share
    unit: Unit
    delta: Delta
    ceiling: Annotated[float, Field(ge=0)]
    canaries: Positive
    null_run: Annotated[float, Field(ge=0)]


class LedgerEntry(Strict):
    """An entry of the ledger, as `bench.privacy.ledger.Entry.to_json` writes it."""

    event: Annotated[dict[str, object], AfterValidator(check_event)]
    count: Positive
    unit: Unit
    why: Sentence
    relation: Relation | None = None


class Privacy(Strict):
    """Content of `privacy.json`: epsilons (accounted, claimed, audited), the ledger, and warnings."""

    format: Literal[3]
    method: Method
    tier: Literal["smoke", "quick", "standard", "paper"]
    noise: Literal["os", "seeded"]
    noise_version: Annotated[int, Field(ge=1, le=1000)]
    unit: Unit
    delta: Annotated[float, Field(gt=0, lt=1)]
    accountant: Version
    accounted: dict[Unit, AccountedEpsilon]
    claimed: ClaimedEpsilon | None
    audited: AuditedEpsilon | None
    events: Annotated[list[LedgerEntry], Field(min_length=1, max_length=1000)]
    warnings: Annotated[list[Sentence], Field(max_length=100)]

    @model_validator(mode="after")
    def _has_one_epsilon_per_unit(self) -> Self:
        if self.unit not in self.accounted:
            raise ValueError(f"no epsilon per {self.unit}, the unit of the account")
        for unit, accounted in self.accounted.items():
            if accounted.unit != unit:
                raise ValueError(f"the epsilon per {unit} is of unit {accounted.unit}")
        return self


class Arguments(Strict):
    """Arguments of a library's function besides the name of a network."""

    num_classes: Classes
    in_chans: Channels | None = None
    img_size: Side | Pair | None = None
    patch_size: Side | None = None
    image_size: Side | None = None
    input_size: Pair | None = None
    aux_logits: bool | None = None
    init_weights: bool | None = None


class Call(Strict):
    """A call `function(name, **arguments)` of a library that builds the bare network of the bundle's weights."""

    function: Literal["timm.create_model", "torchvision.models.get_model"]
    name: Name
    arguments: Arguments


class Pretrained(Strict):
    """The public pretrained weights from which a student began: the timm network, and the SHA-256 of their file."""

    network: Name
    sha256: Digest


class Input(Strict):
    """The images that a student takes."""

    shape: tuple[Channels, Side, Side]
    layout: Literal["n, c, h, w"]
    dtype: Literal["float32"]
    range: tuple[Literal[0], Literal[1]]


class Normalisation(Strict):
    """Constants of (x - mean) / std: one number each, or one per channel."""

    mean: Annotated[list[Annotated[float, Field(ge=-1e6, le=1e6)]], Field(min_length=1, max_length=16)]
    std: Annotated[list[Annotated[float, Field(ge=1e-6, le=1e6)]], Field(min_length=1, max_length=16)]


class Accuracy(Strict):
    """The accuracy of the student on a public test part."""

    share: Share
    low: Share
    high: Share
    images: Positive

    @model_validator(mode="after")
    def _is_within_its_interval(self) -> Self:
        if not self.low <= self.share <= self.high:
            raise ValueError("the accuracy is not within its interval")
        return self


class Model(Strict):
    """Content of `model.json`: how to load the student, and its input, classes and accuracy."""

    format: Literal[3]
    architecture: Architecture
    library: Call | None
    torch: Name
    input: Input
    normalisation: Normalisation
    classes: Classes
    class_names: Annotated[list[Label], Field(max_length=100_000)] | None
    data: Name | Literal["withheld: the owner's own data"]
    accuracy: Accuracy | None
    parameters: Positive
    buffers: Annotated[list[TensorName], Field(max_length=10_000)]
    pretrained: Pretrained | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        channels = self.input.shape[0]
        if {len(self.normalisation.mean), len(self.normalisation.std)} - {1, channels}:
            raise ValueError(f"the normalisation has neither one number nor one for each of {channels} channels")
        if self.library is not None and self.library.name != self.architecture.removeprefix("tv:"):
            raise ValueError(f"the library builds {self.library.name}, and the architecture is {self.architecture}")
        if self.class_names is not None:
            if len(self.class_names) != self.classes:
                raise ValueError(f"{len(self.class_names)} names are given for {self.classes} classes")
            facts = data.facts(self.data)
            known = {facts.classes_of(split) for split in ("full", "disjoint-low", "disjoint-high")}
            if facts.class_names and tuple(self.class_names) not in known:
                raise ValueError(f"the class names are not those of {self.data}")
        if self.data == WITHHELD and self.accuracy is not None:
            raise ValueError("an accuracy is given for data that are withheld")
        return self


class Manifest(Strict):
    """Content of `MANIFEST.json`: the SHA-256 of every other file."""

    format: Literal[3]
    files: Annotated[dict[str, Digest], Field(max_length=20_000)]
