"""Privacy statements as records and bundles store them: claimed, accounted and measured epsilon, and information.

An epsilon always comes with its delta, its unit and, where an accountant computed it, the relation between neighbours.
Epsilons of different units are never compared. `docs/privacy.md` explains the three numbers.

The classes `...Record` are read strictly, and keep which fields a file had: hashes depend on that. Methods and the
accountant compute with `bench.privacy.Claim` and `bench.privacy.accountant.Accounted`, which check ranges and have
enums for unit and relation; their `to_json` returns the fields of these classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema

from bench.core import JsonObject
from bench.core.epsilon import INFINITE, epsilon_from_json, epsilon_to_json

Extended = Annotated[
    float,
    Field(ge=0, allow_inf_nan=True),
    BeforeValidator(epsilon_from_json),
    PlainSerializer(epsilon_to_json, return_type=float | str, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": INFINITE}]}),
]
"""A number >= 0 that may be `math.inf`; files write infinity as "inf", since JSON has none."""


def _check_number(value: object) -> int | float:
    """Return a finite number unchanged in type. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value) if isinstance(value, float) else value  # NumPy's float64 is a float too


Number = Annotated[int | float, PlainValidator(_check_number), WithJsonSchema({"type": "number"})]
"""A finite number that stays an int or a float, as the hash of a record's text depends on it."""


class Value(BaseModel):
    """Immutable data of a file, read without conversions: an unknown or missing field or another type is an error."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", defer_build=True)

    def to_plain(self) -> JsonObject:
        """Return plain data as stored in files: fields that were not given are left out."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


class ClaimRecord(Value):
    """Epsilon that the method's own paper promises at the settings of a run.

    Attributes:
        epsilon: >= 0 or infinite.
        delta: in [0, 1).
        unit: the unit that the paper's proof covers: "example", "label", "query", "client" or "group".
        source: paper and theorem.
        disputed: why the proof does not cover the algorithm, words joined by "-"; "" where nothing is known.
    """

    epsilon: Extended
    delta: float
    unit: str
    source: str
    disputed: str = ""


class AccountedRecord(Value):
    """Upper bound on epsilon that the accountant computed from the ledger of a release.

    Attributes:
        epsilon: >= 0; infinite where nothing finite can be proved.
        delta: in [0, 1); 0 for pure differential privacy.
        unit: the unit whose change is covered.
        relation: how neighbours differ: "add-or-remove" or "replace".
        accountant: the accountant with the smallest bound.
        version: the version of the accountant.
        note: why epsilon is infinite or a looser bound was taken; "" otherwise.
    """

    epsilon: Extended
    delta: float
    unit: str
    relation: str
    accountant: str
    version: str
    note: str = ""


class LowerBound(Value):
    """Empirical lower bound on epsilon, measured by audits with canaries on releases of the same settings.

    Attributes:
        epsilon_lower: >= 0; the release's true epsilon is at least this, at `confidence`.
        delta, unit: delta and unit of the bound.
        canaries: number of canaries that were inserted or left out.
        ceiling: the largest bound that this audit can report: if every guess had been right.
        confidence: in (0, 1).
        null_run: the bound of a run without canaries, which should be about 0.
        teacher: the bound of the unprotected teacher; 0 means that the audit has no power.
        powerful: whether the bound on the unprotected teacher is above 0.
        audits: hashes of the audits.
    """

    epsilon_lower: float
    delta: float
    unit: str
    canaries: int
    ceiling: float
    confidence: float
    null_run: float
    teacher: float
    powerful: bool
    audits: list[str]


class InformationRecord(Value):
    """Upper bound on the information about the private data in all responses of a release.

    Attributes:
        nats: the upper bound in nats; None if it is not known.
        classes: number of classes of the responses.
        why: the ledger entries whose sum is the bound, or why there is none.
    """

    nats: Extended | None
    classes: int
    why: str


class LedgerEntry(Value):
    """One kind of use of private data.

    Attributes:
        event: the mechanism as dp-accounting describes it, with its name and parameters.
        count: number of uses.
        unit: the unit of the entry.
        why: description of the release.
        relation: "add-or-remove" or "replace" if the entry covers only that; None = as the accountant reads it.
    """

    event: JsonObject
    count: int
    unit: str
    why: str
    relation: str | None = None


class Account(Value):
    """The privacy of one release as its method reports it.

    Attributes:
        claimed: the paper's epsilon; None for a method that claims none.
        accounted: the accountant's epsilon for the unit of the budget.
        accounted_units: the accounted epsilon for every unit of the ledger.
        audited: the empirical lower bound; None where no audit was made.
        events: the ledger.
        covers: the released parts that the account covers, of "student", "generator", "synthetic"; None in records of
            older versions.
        information: None in records of older versions.
        noise_version: version of the noise generator; None in records of older versions.
    """

    claimed: ClaimRecord | None
    accounted: AccountedRecord
    accounted_units: dict[str, AccountedRecord]
    audited: LowerBound | None
    events: list[LedgerEntry]
    covers: list[str] | None = None
    information: InformationRecord | None = None
    noise_version: int | None = None

    def report(self, noise: str, solved: Mapping[str, int | float]) -> PrivacyReport:
        """Add the source of the noise and the parameters that were solved from the budget."""
        known = {name: getattr(self, name) for name in self.model_fields_set}
        return PrivacyReport(**known, noise=noise, solved=dict(solved))


class PrivacyReport(Account):
    """All privacy statements about one release.

    Attributes:
        noise: "seeded" (the epsilon holds only for someone without the seed) or "os".
        solved: parameters that were solved from the budget, such as {"sigma": 5.1}.
    """

    noise: str
    solved: dict[str, Number]
