"""What a row needs of a record: which row it belongs to, and the little that is kept of it there."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, NamedTuple

import orjson

from bench.boards.columns import NUMBERS
from bench.boards.flags import flags
from bench.boards.information import information
from bench.boards.standing import Standing, standing
from bench.privacy.budget import epsilon_from_json
from bench.storage.options import Changed
from bench.storage.provenance import devices
from bench.storage.records import Audit, Record


def dataset(record: Record | Audit) -> str:
    """The data set a record or an audit is about."""
    return record.spec["release"]["teacher"]["data"]["dataset"]


def seed(record: Record) -> int:
    """The seed of a record's release."""
    return record.spec["release"]["seed"]


def identity(spec: Any) -> Any:
    """What a row stands for: a spec with every seed forgotten and every variant named.

    Records that are older than variants do not name theirs: what the paper prints.
    """
    if not isinstance(spec, dict):
        return spec
    unnamed = {"variant": "printed"} if spec.get("kind") in ("release", "attack") else {}
    return unnamed | {key: identity(value) for key, value in spec.items() if key != "seed"}


def row_key(spec: dict[str, Any]) -> bytes:
    """16 bytes, equal for two specs if and only if `identity` is (SHA-256 of its JSON with sorted keys)."""
    return hashlib.sha256(orjson.dumps(identity(spec), option=orjson.OPT_SORT_KEYS)).digest()[:16]


def versions(record: Record) -> str:
    """The versions of the libraries that made a record, as text."""
    return " ".join(f"{name}={version}" for name, version in sorted(record.provenance.get("versions", {}).items()))


def _epsilon(promise: dict[str, Any]) -> float | None:
    """The epsilon of a claim or an account, infinity included; None where nothing is promised."""
    return epsilon_from_json(promise["epsilon"]) if promise else None


def options_json(options: Changed) -> str:
    """The options of a record in a cell of a board: JSON of the groups that hold any; "" for none."""
    return json.dumps(given, sort_keys=True) if (given := {k: v for k, v in options.items() if v}) else ""


class Member(NamedTuple):
    """What a row needs of one of its records.

    Attributes:
        seed, hash, status, setting, student: the record's.
        options: the setting as data (`options_json`).
        numbers: its metrics in the order of `NUMBERS`, None where it has none.
        power: whether the attack has shown its power, by today's gate; "" without an attack.
        claimed, claim_unit: of the claim, infinity included; both None where nothing is claimed.
        accounted, unit, relation, delta: what is proved, infinity included; all None where the run failed.
        information: nats that its answers carry at most, infinity included; None where that is not known.
        flags: `flags` of the record, in one string.
        seconds, device: what it took, and where.
        versions: of the libraries, as text; "" where the run failed.
        release: its `audited_release` if that was audited, else "".
    """

    seed: int
    hash: str
    status: str
    setting: str
    options: str
    student: str
    numbers: tuple[float | None, ...]
    power: Standing
    claimed: float | None
    claim_unit: str | None
    accounted: float | None
    unit: str | None
    relation: str | None
    delta: float | None
    information: float | None
    flags: str
    seconds: float
    device: str
    versions: str
    release: str

    @classmethod
    def of(cls, record: Record, release: str) -> Member:
        """What is kept of a record."""
        done, metrics = record.status != "failed", record.metrics
        claim = (record.privacy["claimed"] if done else None) or {}
        proved = record.privacy["accounted"] if done else {}
        return cls(
            seed(record),
            record.hash,
            record.status,
            record.setting,
            options_json(record.options),
            record.student,
            tuple([metrics.get(key) for key in NUMBERS]),
            standing(record),
            _epsilon(claim),
            claim.get("unit"),
            _epsilon(proved),
            proved.get("unit"),
            proved.get("relation"),
            proved.get("delta"),
            information(record).nats if done else None,
            " ".join(flags(record)) if done else "",
            math.fsum(record.provenance.get("seconds", {}).values()),
            ", ".join(devices(record.provenance)) if done else "",
            versions(record) if done else "",
            release,
        )
