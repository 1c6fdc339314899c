"""The record of a run as typed values, and the one place where it becomes JSON and is read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError

from bench.core.privacy import Accounted, Claim, Extended, PrivacyReport, Value
from bench.errors import BenchError

Status = Literal["ok", "skipped", "failed", "inconclusive"]
Verdict = Literal["refuted", "not refuted"]
NETWORKS = ("student", "teacher", "null")
"""Networks that an audit guesses canaries from: the null teacher was trained on none of them."""


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
    recipe: dict[str, Any]
    seed: int
    normalise: list[Any] | None
    kind: str
    version: int


class EvaluatorSpec(Value):
    """The network that judges reconstructions."""

    data: DataSpec
    arch: str
    recipe: dict[str, Any]
    seed: int
    kind: str
    version: int


class EnsembleSpec(Value):
    """Teachers on disjoint parts of the private records."""

    data: DataSpec
    shards: dict[str, Any]
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
    options: dict[str, Any]
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
    options: dict[str, Any]
    access: str
    aux: str
    seed: int
    variant: str
    kind: str


class RunSpec(Value):
    """Everything that identifies a run; its hash names the record."""

    release: ReleaseSpec
    attack: AttackSpec | None
    evaluator: EvaluatorSpec
    tier: str
    kind: str
    version: int


class RunRecord(Value):
    """What came of a run.

    Attributes:
        hash: of `spec`.
        status: "ok", "skipped" (the attack does not apply), "inconclusive" (the attack did not prove its power) or
            "failed".
        reason: a sentence for every status except "ok".
        options: what differs from the defaults of variant and tier, by group.
        student: the released network; "" where nothing was released.
        metrics: by name, None where a metric could not be computed, with the reason in `missing`.
        privacy: None for a failed run.
        provenance: versions, device and seconds; never compared.
        artifacts: name of a picture to its file next to the record.
    """

    hash: str
    status: Status
    reason: str
    spec: RunSpec
    options: dict[str, dict[str, Any]]
    student: str
    metrics: dict[str, int | float | None]
    missing: dict[str, str]
    privacy: PrivacyReport | None
    provenance: dict[str, Any]
    artifacts: dict[str, str]


class AuditTeacherSpec(TeacherSpec):
    """A teacher trained on the private part and on mislabelled canaries that coins chose."""

    canaries: int
    coins: int


class AuditSpec(Value):
    """Everything that identifies an audit: the release, the teacher with canaries, and how they are guessed."""

    tier: str
    release: ReleaseSpec
    teacher: AuditTeacherSpec
    score: str
    guesses: int
    confidence: float
    kind: str
    version: int


class AuditCanaries(Value):
    """The canaries of an audit: how many, how many of them were inserted, and which images they are."""

    number: int
    inserted: int
    source: str = Field(alias="from")


class AuditLine(Value):
    """Guesses from one network.

    Attributes:
        correct, guesses: right guesses of all.
        epsilon_lower: the bound that they give.
        accuracy: of the network on the test set.
        memorised_inserted, memorised_left_out: share of the canaries that the network answers with the wrong label
            that was taught; None of no canary.
    """

    correct: int
    guesses: int
    epsilon_lower: float
    accuracy: float
    memorised_inserted: float | None
    memorised_left_out: float | None


class AuditedPrivacy(Value):
    """The account of the audited release, as in its record."""

    claimed: Claim | None
    accounted: Accounted
    accounted_units: dict[str, Accounted]


class AuditRecord(Value):
    """The result of an end-to-end audit of a release.

    Attributes:
        hash: of `spec`.
        verdict: refuted, or not refuted; an audit verifies nothing.
        reasons: a sentence per number of the release: refuted, not exceeded, or why the audit cannot speak of it.
        ceiling: the bound if all guesses were right.
        delta: at which the bounds hold.
        lines: by network of `NETWORKS`.
        powerful: whether the bound of the undefended teacher is above 0; otherwise the audit shows nothing.
        provenance: versions, device and seconds; never compared.
    """

    hash: str
    verdict: Verdict
    reasons: list[str]
    spec: AuditSpec
    canaries: AuditCanaries
    ceiling: float
    delta: float
    lines: dict[Literal["student", "teacher", "null"], AuditLine]
    powerful: bool
    privacy: AuditedPrivacy
    provenance: dict[str, Any]


def decode(text: bytes, name: str) -> RunRecord:
    """Read a record strictly: no unknown field, no missing field, no field of another type.

    Args:
        name: of the file, for messages.

    Raises:
        BenchError: the text is not a record; the message gives the path of the field.
    """
    try:
        plain = orjson.loads(text)
        if isinstance(plain, dict) and plain.get("privacy") == {}:  # a failed run has released nothing
            plain["privacy"] = None
        return RunRecord.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where, what = ".".join(map(str, first["loc"])) or "the whole", first["msg"]
    except ValueError as error:
        where, what = "the text", str(error)
    raise BenchError(f"{name} is not a record of a run ({where}: {what}); give a record.json of `bench run`")


def read(path: Path) -> RunRecord:
    """The record in a file. Raises BenchError where it cannot be read or is not a record."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BenchError(f"{path} cannot be read ({error.strerror}); give a record.json of `bench run`") from None
    return decode(text, str(path))


def to_plain(record: RunRecord) -> dict[str, Any]:
    """The record as plain data, equal to what its file holds."""
    plain = record.to_plain()
    if plain["privacy"] is None:
        plain["privacy"] = {}
    return plain
