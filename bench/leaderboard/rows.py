"""Records -> rows: a pure function, so that the same records give the same bytes.

One row per spec with only the seeds forgotten. `Rows` takes one record after the other and keeps of each only what its
row needs, so that a board of many records fits into memory.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pandas as pd

from bench import registry, reported
from bench.leaderboard.audited import audited_release, bounds, is_refuted
from bench.leaderboard.columns import AVERAGED, COLUMNS, REFERENCE, REFERENCES, SORT
from bench.leaderboard.flagged import flags
from bench.records import Audit, Record

SEED = b'"seed":'
VALUE = re.compile(rb"\d+|null")


def dataset(record: Record | Audit) -> str:
    """The data set a record or an audit is about."""
    return record.spec["release"]["teacher"]["data"]["dataset"]


def seed(record: Record) -> int:
    """The seed of a record's release."""
    return record.spec["release"]["seed"]


def without_seeds(spec: Any) -> Any:
    """A spec with every seed forgotten: what a row stands for."""
    if isinstance(spec, dict):
        return {key: without_seeds(value) for key, value in spec.items() if key != "seed"}
    return spec


def row_key(spec: dict[str, Any]) -> bytes:
    """Equal for two specs if and only if `without_seeds` is, and much faster.

    Within a JSON string every quote has a backslash before it, so what is cut out is keys alone, with one comma each.
    """
    kept, *rest = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS).split(SEED)
    for part in rest:
        value = VALUE.match(part)
        if value is None:
            kept += SEED + part
        elif part[value.end() :].startswith(b","):
            kept += part[value.end() + 1 :]
        else:
            kept = kept.removesuffix(b",") + part[value.end() :]
    return kept


@dataclass(frozen=True, slots=True)
class Member:
    """What a row needs of one of its records; `release` is the `audited_release` if anything was audited."""

    seed: int
    hash: str
    status: str
    setting: str
    student: str
    metrics: dict[str, float | None]
    claimed: dict[str, Any] | None
    accounted: dict[str, Any]
    flags: list[str]
    seconds: float
    device: str
    release: str


@dataclass
class Group:
    """The records of one row; `spec` is one of theirs, to be asked for what they share."""

    spec: dict[str, Any]
    members: list[Member] = field(default_factory=list)


class Rows:
    """The board of one data set, a record at a time.

    Args:
        audits: end-to-end audits, of which each row takes those of its own releases (`audited_release`).
    """

    def __init__(self, audits: Iterable[Audit] = ()) -> None:
        self._audits: dict[str, list[Audit]] = defaultdict(list)
        for audit in sorted(audits, key=lambda audit: audit.hash):
            self._audits[audited_release(audit.spec)].append(audit)
        self._groups: dict[bytes, Group] = {}
        self._references: dict[tuple[str, str, str, str], list[dict[str, float | None]]] = defaultdict(list)

    def add(self, record: Record) -> None:
        """Take a record of the same data set; the order makes no difference."""
        key = row_key(record.spec)
        if key not in self._groups:
            self._groups[key] = Group(record.spec)
        self._groups[key].members.append(self._member(record))
        where = (record.spec["tier"], record.spec["release"]["teacher"]["data"]["split"])
        for name in REFERENCES:
            if f"{REFERENCE}_{name}_attack_accuracy" in record.metrics:
                attack = record.spec["attack"]["attack"] if name == "prior" else ""
                self._references[*where, name, attack].append(record.metrics)

    def _member(self, record: Record) -> Member:
        done = record.status != "failed"
        return Member(
            seed(record),
            record.hash,
            record.status,
            record.setting,
            record.student,
            record.metrics,
            record.privacy["claimed"] if done else None,
            record.privacy["accounted"] if done else {},
            flags(record) if done else [],
            math.fsum(record.provenance.get("seconds", {}).values()),
            record.provenance["device"] if done else "",
            audited_release(record.spec) if done and self._audits else "",
        )

    def table(self) -> pd.DataFrame:
        """One row per spec-without-seeds and one per kind of reference images; columns as COLUMNS."""
        folders = {name: entry.folder for name, entry in registry.entries("method").items()}
        rows = [self._row(group, folders) for group in self._groups.values()]
        frame = pd.DataFrame(rows + list(self._reference_rows()), columns=COLUMNS)
        return frame.sort_values(SORT, kind="stable", na_position="first").reset_index(drop=True)

    def _reference_rows(self) -> Iterator[dict[str, Any]]:
        """A row per kind of reference images in each tier and split; those of random latents for each attack."""
        for (tier, split, name, attack), metrics in sorted(self._references.items()):
            row: dict[str, Any] = {"tier": tier, "split": split, "method": REFERENCE, "kind": REFERENCE}
            row |= {"setting": REFERENCES[name], "attack": attack or None}
            for key in ("attack_accuracy", *AVERAGED):
                row[key] = _mean([each.get(f"{REFERENCE}_{name}_{key}") for each in metrics])
            yield row

    def _row(self, group: Group, folders: dict[str, str]) -> dict[str, Any]:
        members = sorted(group.members, key=lambda member: (member.seed, member.hash))
        done = [member for member in members if member.status != "failed"]
        release, attack = group.spec["release"], group.spec["attack"]
        row: dict[str, Any] = {
            "tier": group.spec["tier"],
            "split": release["teacher"]["data"]["split"],
            "method": release["method"],
            "kind": folders.get(release["method"], "unknown"),
            "setting": members[0].setting,
            "teacher": release["teacher"]["arch"] + ("" if release["teacher"]["weights"] is None else "+weights"),
            "student": next((member.student for member in done if member.student), release["student"]),
            "attack": None if attack is None else attack["attack"],
            "access": None if attack is None else attack["access"],
            "seeds": " ".join(str(member.seed) for member in members),
            "failed": len(members) - len(done),
            "runs": " ".join(member.hash for member in members),
        }
        if not done:
            return row
        audits = [audit for key in sorted({m.release for m in done}) for audit in self._audits.get(key, [])]
        row |= _numbers(done) | _privacy(done, audits)
        return row | reported.join(row, group.spec["release"]["teacher"]["data"]["dataset"])


def table(records: Iterable[Record], audits: Iterable[Audit] = ()) -> pd.DataFrame:
    """The board of `records`, which must be of one data set, as `Rows` makes it."""
    rows = Rows(audits)
    for record in records:
        rows.add(record)
    return rows.table()


def to_csv(frame: pd.DataFrame) -> str:
    """The CSV text of a board."""
    return frame.to_csv(index=False, lineterminator="\n")


def _numbers(done: list[Member]) -> dict[str, Any]:
    def mean(key: str) -> float | None:
        return _mean([member.metrics.get(key) for member in done])

    return {
        "teacher_accuracy": mean("teacher_accuracy"),
        "accuracy_mean": mean("accuracy"),
        "accuracy_std": _std([member.metrics.get("accuracy") for member in done]),
        "attack_accuracy": mean("attack_accuracy"),
        "attack_accuracy_std": _std([member.metrics.get("attack_accuracy") for member in done]),
        "teacher_attack_accuracy": mean("teacher_attack_accuracy"),
        "power": _power(done),
        **{key: mean(key) for key in AVERAGED},
        "seconds": _mean([member.seconds for member in done]),
        "device": " | ".join(sorted({member.device for member in done})),
    }


def _power(done: list[Member]) -> str | None:
    if any(member.status == "inconclusive" for member in done):
        return "inconclusive"
    return "pass" if any("attack_accuracy" in m.metrics or "auc" in m.metrics for m in done) else None


def _privacy(done: list[Member], audits: list[Audit]) -> dict[str, Any]:
    claims = [member.claimed for member in done]
    claim, accounted = claims[0], done[0].accounted
    found = {flag for member in done for flag in member.flags} | ({"refuted"} if is_refuted(audits) else set())
    return {
        "epsilon_claimed": _mean([None if each is None else each["epsilon"] for each in claims]),
        "claim_unit": None if claim is None else claim["unit"],
        "epsilon_accounted": _mean([member.accounted["epsilon"] for member in done]),
        "unit": accounted["unit"],
        "relation": accounted["relation"],
        "delta": accounted["delta"],
        "epsilon_audited": max((round(bound, 6) for bound in bounds(audits)), default=None),
        "flags": " ".join(sorted(found)),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return round(math.fsum(known) / len(known), 6) if known and len(known) == len(values) else None


def _std(values: list[float | None]) -> float | None:
    """The sample standard deviation over seeds; None with fewer than two."""
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return None
    centre = math.fsum(known) / len(known)
    return round(math.sqrt(math.fsum((v - centre) ** 2 for v in known) / (len(known) - 1)), 6)
