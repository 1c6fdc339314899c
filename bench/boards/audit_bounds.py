"""What end-to-end audits say of a row: the bound that stands in it, and whether a number of the row is refuted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench import plugins, registry
from bench.boards.needs import needs, teacher_matters
from bench.config import Variant
from bench.privacy.one_run import CONFIDENCE, one_run_epsilon, refutes
from bench.storage.atomic_write import write_atomically
from bench.storage.records import Audit, Record
from bench.storage.specs import canonical


def audited_release(spec: dict[str, Any]) -> str:
    """What an audit and a run must share for the audit's bound to stand in the run's row.

    That is the tier and the release: method, its variant, version and options, student, budget, noise, data set,
    split, teacher network and seed. The teacher's training recipe is left out, so that an audit on an overfitted
    teacher counts: a promise of privacy holds for every teacher. So is all of a teacher but its data on which the
    release of today's version does not depend. Options that the method has got since, without a new version, are there
    as they are where none is given, which leaves it as it was.
    """
    release = with_all_options(spec["release"], spec["tier"])
    kept = ("data", "arch", "weights", "normalise", "seed") if _depends_on_teacher(release, spec["tier"]) else ("data",)
    release["teacher"] = {key: release["teacher"][key] for key in kept}
    return canonical({"tier": spec["tier"], "release": release})


def _depends_on_teacher(release: dict[str, Any], tier: str) -> bool:
    """Whether a release depends on its teacher, as far as today's version tells; one of another version may."""
    version, _ = _present(release["method"], release["variant"], tier)
    found = needs(release["method"], release["variant"], tier, release["options"])
    return release["version"] != version or teacher_matters(found)


def with_all_options(release: dict[str, Any], tier: str) -> dict[str, Any]:
    """A release with its variant, and with the options that its method has got since, without a new version, as they
    are where none is given."""
    release = {"variant": "printed"} | release
    version, usual = _present(release["method"], release["variant"], tier)
    return release | {"options": usual | release["options"]} if release["version"] == version else release


@cache
def _present(method: str, variant: Variant, tier: str) -> tuple[int | None, dict[str, Any]]:
    """The version of a method's variant as it is today, and its options where none is given; (None, {}) if it is not
    here."""
    if method not in plugins.entries("method") or variant not in registry.variants("method", method):
        return None, {}
    described = registry.describe("method", method, variant)
    return described.facts["version"], described.values(tier, variant)


def by_release(audits: Iterable[Audit]) -> dict[str, list[Audit]]:
    """The audits of each `audited_release`, sorted by hash; of a game that was mended, its last version's."""
    found: dict[str, list[Audit]] = {}
    for audit in sorted(audits, key=lambda audit: audit.hash):
        found.setdefault(audited_release(audit.spec), []).append(audit)
    return {release: _of_last_version(each) for release, each in found.items()}


def _of_last_version(audits: list[Audit]) -> list[Audit]:
    versions = [audit.spec.get("version", 1) for audit in audits]
    return [audit for audit, version in zip(audits, versions, strict=True) if version == max(versions)]


def note(record: Record, audits: Mapping[str, list[Audit]], path: Path) -> None:
    """Write the strongest audit of a record's release into the record, if that is news.

    Args:
        audits: as from `by_release`.
        path: of the record.
    """
    mine = audits.get(audited_release(record.spec)) if audits else None
    if not mine or not record.privacy:
        return
    best = strongest(mine)
    found = {
        "epsilon_lower": best.student,
        "confidence": CONFIDENCE,
        "unit": "example",
        "delta": best.audit.delta,
        "ceiling": best.ceiling,
        "canaries": best.audit.canaries["number"],
        "null_run": best.null,
        "teacher": best.teacher,
        "powerful": best.teacher > 0,
        "audits": [each.hash for each in mine],
    }
    if record.privacy.get("audited") != found:
        record.privacy["audited"] = found
        write_atomically(path, record.to_json())


@dataclass(frozen=True)
class Bounds:
    """An audit's lower bounds on student, undefended teacher and null run, and the bound if all guesses were right."""

    audit: Audit
    student: float
    teacher: float
    null: float
    ceiling: float


def strongest(audits: Sequence[Audit]) -> Bounds:
    """The audit that shows most on the student, of equals the one that shows most on the teacher; of at least one.

    Every bound holds together with those of the other audits, as in `bounds`.
    """
    found = [_bounds(audit, _sure(audits)) for audit in audits]
    return max(found, key=lambda each: (each.student, each.teacher))


def bounds(audits: Sequence[Audit]) -> list[float]:
    """The student's lower bound from each audit, all holding together at 95 %: Bonferroni over their number."""
    return [_bound(audit, audit.lines["student"]["correct"], _sure(audits)) for audit in audits]


def _bounds(audit: Audit, confidence: float) -> Bounds:
    student, teacher, null = (
        _bound(audit, audit.lines[name]["correct"], confidence) for name in ("student", "teacher", "null")
    )
    return Bounds(audit, student, teacher, null, _bound(audit, audit.spec["guesses"], confidence))


def _sure(audits: Sequence[Audit]) -> float:
    """The confidence of each of several audits if all are to hold together at 95 %."""
    return 1 - (1 - CONFIDENCE) / max(1, len(audits))


def _bound(audit: Audit, correct: int, confidence: float) -> float:
    return _epsilon(audit.spec["guesses"], correct, audit.canaries["number"], audit.delta, confidence)


_epsilon = cache(one_run_epsilon)
"""Audits of one release are asked about by each of its runs and rows."""


def is_refuted(audits: list[Audit]) -> bool:
    """Whether one of the bounds is above the audited release's claim, or accounted epsilon, for one example."""
    return any(
        refutes(bound, audit.delta, number)
        for bound, audit in zip(bounds(audits), audits, strict=True)
        for number in (audit.privacy["claimed"], audit.privacy["accounted_units"].get("example"))
    )
