"""Records of runs and audits as typed values, and their conversion to and from JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bench.core import JsonObject
from bench.core.privacy import AccountedRecord, ClaimRecord, Extended, Number, PrivacyReport, Value
from bench.errors import BenchError

Status = Literal["ok", "skipped", "failed", "inconclusive"]
Verdict = Literal["refuted", "not refuted"]
AnyRecord = TypeVar("AnyRecord", "RunRecord", "AuditRecord")
NETWORKS = ("student", "teacher", "null")
"""Networks from which an audit guesses canaries: the null teacher was trained without canaries."""


class DataSpec(Value):
    """A data set by content: its name, the fingerprint of its images, and the split."""

    dataset: str
    fingerprint: str
    split: str


class TeacherSpec(Value):
    """A teacher: data, network, training recipe and seed, or the SHA-256 of a user's weights."""

    data: DataSpec
    arch: str
    weights: str | None
    recipe: JsonObject
    seed: int
    normalise: list[Any] | None
    kind: str
    version: int


class EvaluatorSpec(Value):
    """The network that scores reconstructions."""

    data: DataSpec
    arch: str
    recipe: JsonObject
    seed: int
    kind: str
    version: int


class EnsembleSpec(Value):
    """Teachers on disjoint parts of the private records."""

    data: DataSpec
    shards: JsonObject
    seed: int
    canaries: int
    coins: int
    kind: str
    version: int


class BudgetSpec(Value):
    """The budget of a release; `epsilon` is None where the method's own noise was kept."""

    epsilon: Extended | None
    delta: float
    account: str
    solve: str
    unit: str


class ReleaseSpec(Value):
    """A method with its options, its teacher and its budget."""

    teacher: TeacherSpec
    method: str
    version: int
    options: JsonObject
    student: str
    budget: BudgetSpec
    noise: str
    seed: int
    ensemble: EnsembleSpec | None
    variant: str
    public: str | None
    kind: str


class AttackSpec(Value):
    """An attack with its options on a release; `aux` is the fingerprint of the attacker's images."""

    target: ReleaseSpec
    attack: str
    version: int
    options: JsonObject
    access: str
    aux: str
    seed: int
    variant: str
    kind: str


class RunSpec(Value):
    """All fields that identify a run; their hash names the record."""

    release: ReleaseSpec
    attack: AttackSpec | None
    evaluator: EvaluatorSpec
    tier: str
    kind: str
    version: int


class Provenance(BaseModel):
    """Versions, device and seconds of a record: never compared. Other fields are kept unchanged.

    Attributes:
        device: the device of the run; "" in records of older versions.
        seconds: step to the seconds that making it took, cached or not.
        steps: the differing origin of reused steps, by kind and hash; None for a step without an origin.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", defer_build=True)
    device: str = ""
    seconds: dict[str, Number] = {}
    steps: dict[str, JsonObject | None] = {}

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field by name, or `default` if the record has none."""
        return getattr(self, name, default)


def _allow_empty_report(schema: JsonObject) -> None:
    """Allow an empty object as the privacy report of a failed run in the JSON Schema."""
    schema["properties"]["privacy"]["anyOf"][1] = {"type": "object", "maxProperties": 0}


class RunRecord(Value):
    """The result of a run.

    Attributes:
        hash: the hash of `spec`.
        status: "ok", "skipped" (the attack does not apply), "inconclusive" (the attack did not prove its power) or
            "failed".
        reason: a sentence for every status except "ok".
        options: options that differ from the defaults of variant and tier, by group.
        student: the released network; "" where nothing was released.
        metrics: name to value; None if a metric could not be computed, with the reason in `missing`.
        privacy: None for a failed run.
        provenance: versions, device and seconds; never compared.
        artifacts: name of a picture to its file next to the record.
    """

    model_config = ConfigDict(json_schema_extra=_allow_empty_report)
    hash: str
    status: Status
    reason: str
    spec: RunSpec
    options: dict[str, JsonObject]
    student: str
    metrics: dict[str, Number | None]
    missing: dict[str, str]
    privacy: PrivacyReport | None
    provenance: Provenance
    artifacts: dict[str, str]

    @model_validator(mode="before")
    @classmethod
    def _read_empty_report(cls, plain: Any) -> Any:
        """Read the empty privacy report of a failed run."""
        if isinstance(plain, dict) and plain.get("privacy") == {} and plain.get("status") == "failed":
            return plain | {"privacy": None}
        return plain

    @model_validator(mode="after")
    def _expect_report(self) -> Self:
        if self.privacy is None and self.status != "failed":
            raise ValueError(f"a run of status {self.status} has no privacy report")
        return self

    def to_plain(self) -> JsonObject:
        """Return plain data as stored in the record's file."""
        plain = super().to_plain()
        return plain if self.privacy is not None else plain | {"privacy": {}}


class AuditTeacherSpec(TeacherSpec):
    """A teacher trained on the private part and on mislabelled canaries chosen by coins."""

    canaries: int
    coins: int


class AuditSpec(Value):
    """All fields that identify an audit: the release, the teacher with canaries, and the way of guessing."""

    tier: str
    release: ReleaseSpec
    teacher: AuditTeacherSpec
    score: str
    guesses: int
    confidence: float
    kind: str
    version: int


class AuditCanaries(Value):
    """The canaries of an audit: their number, how many were inserted, and the images used."""

    number: int
    inserted: int
    source: str = Field(alias="from", serialization_alias="from")


class AuditLine(Value):
    """Guesses from one network.

    Attributes:
        correct, guesses: number of correct guesses and of all guesses.
        epsilon_lower: the lower bound from these guesses.
        accuracy: accuracy of the network on the test set.
        memorised_inserted, memorised_left_out: share of the canaries that the network predicts with the wrong label
            used in training; None without canaries.
    """

    correct: int
    guesses: int
    epsilon_lower: float
    accuracy: float
    memorised_inserted: float | None
    memorised_left_out: float | None


class AuditedPrivacy(Value):
    """The account of the audited release, as in its record."""

    claimed: ClaimRecord | None
    accounted: AccountedRecord
    accounted_units: dict[str, AccountedRecord]


class AuditRecord(Value):
    """The result of an end-to-end audit of a release.

    Attributes:
        hash: the hash of `spec`.
        verdict: refuted, or not refuted; an audit never proves privacy.
        reasons: a sentence for each epsilon of the release: refuted, not refuted, or why the audit does not apply.
        ceiling: the largest possible bound: if all guesses were correct.
        delta: the delta of the bounds.
        lines: the results by network of `NETWORKS`.
        powerful: whether the bound on the unprotected teacher is above 0; otherwise the audit has no power.
        provenance: versions, device and seconds; never compared.
    """

    hash: str
    verdict: Verdict
    reasons: list[str]
    spec: AuditSpec
    canaries: AuditCanaries
    ceiling: float
    delta: float
    lines: dict[str, AuditLine]
    powerful: bool
    privacy: AuditedPrivacy
    provenance: Provenance

    @field_validator("lines")
    @classmethod
    def _expect_lines(cls, lines: dict[str, AuditLine]) -> dict[str, AuditLine]:
        if set(lines) != set(NETWORKS):
            raise ValueError(f"lines of {', '.join(lines) or 'no network'}; expected {', '.join(NETWORKS)}")
        return lines


def validate(kind: type[AnyRecord], plain: object) -> AnyRecord:
    """Build a record from plain data, strictly: no unknown field, no missing field, no field of another type.

    Args:
        kind: RunRecord or AuditRecord.

    Raises:
        ValueError: the path of the first wrong field, and what is wrong with it.
    """
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise ValueError(describe_first_error(error)) from None


def describe_first_error(error: ValidationError) -> str:
    """Return the path of the first wrong field, and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or "the record"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


def decode(text: bytes, name: str) -> RunRecord:
    """Read the text of a record, strictly as `validate`.

    Args:
        name: the file name, for messages.

    Raises:
        BenchError: the text is not a record; the message gives the path of the field.
    """
    try:
        return validate(RunRecord, orjson.loads(text))
    except ValueError as error:
        raise BenchError(f"{name} is not a record of a run ({error}); give a record.json of `bench run`") from None


def read(path: Path) -> RunRecord:
    """Read the record in a file. Raises BenchError if it cannot be read or is not a record."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BenchError(f"{path} cannot be read ({error.strerror}); give a record.json of `bench run`") from None
    return decode(text, str(path))
