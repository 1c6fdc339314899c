"""What end-to-end audits say of a row: the bound that stands in it, and whether a number of the row is refuted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from bench import plugins, registry
from bench.boards.needs import needs, teacher_matters
from bench.config import Variant
from bench.privacy.one_run import CONFIDENCE, one_run_epsilon, refutes
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


def noted(record: Record, audits: Mapping[str, list[Audit]]) -> Record | None:
    """A record with what the strongest audit of its release shows; None where it says so already, or none was made.

    Args:
        audits: as from `by_release`.
    """
    mine = audits.get(audited_release(record.spec)) if audits else None
    if not mine or not record.privacy:
        return None
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
    same = record.privacy.get("audited") == found
    return None if same else replace(record, privacy=record.privacy | {"audited": found})


@dataclass(frozen=True)
class Shown:
    """What audits of some runs show together: lower bounds on student, unprotected teacher and a run without canaries,
    the bound if all guesses were right, and whether a number of the release is refuted."""

    student: float
    teacher: float
    null: float
    ceiling: float
    is_refuted: bool


def shown(runs: Iterable[Record], audits: Mapping[str, Audit]) -> Shown | None:
    """What audits show of runs that differ in the seed, from what is noted in their records; None without an audit.

    Args:
        audits: by hash; those that a record names and that are not here do not count.
    """
    notes = [note for run in runs if (note := run.privacy.get("audited"))]
    names = {name for note in notes for name in note["audits"]} & audits.keys()
    if not names:
        return None
    mine = [audits[name] for name in sorted(names)]
    alike = next((note for note in notes if names == {*note["audits"]}), None)
    if alike is None:  # several seeds were audited: the bounds hold together at a higher confidence of each
        best = strongest(mine)
        found = best.student, best.teacher, best.null, best.ceiling
    else:
        found = alike["epsilon_lower"], alike["teacher"], alike["null_run"], alike["ceiling"]
    # No bound is above the strongest one; that of a single audit is the strongest
    is_suspect = any(refutes(found[0], audit.delta, number) for audit in mine for number in _promised(audit))
    student, teacher, null, ceiling = (round(bound, 6) for bound in found)
    return Shown(student, teacher, null, ceiling, is_suspect and (len(mine) == 1 or is_refuted(mine)))


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
        for number in _promised(audit)
    )


def _promised(audit: Audit) -> tuple[dict[str, Any] | None, ...]:
    """The audited release's claim and accounted epsilon for one example; None where there is none."""
    return audit.privacy["claimed"], audit.privacy["accounted_units"].get("example")
