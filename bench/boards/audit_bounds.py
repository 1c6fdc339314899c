"""Results of end-to-end audits for a row of a board: its lower bound, and whether one of its numbers is refuted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from bench import plugins, registry
from bench.boards.installed import needs, teacher_matters
from bench.config import Variant
from bench.privacy.one_run import CONFIDENCE, one_run_epsilon, refutes
from bench.storage.records import Audit, Record
from bench.storage.specs import canonical


def audited_release(spec: dict[str, Any]) -> str:
    """Return the key that an audit and a run must share for the audit's bound to apply to the run's row.

    The key is the tier and the release: method, its variant, version and options, student, budget, noise, data set,
    split, teacher network and seed. The teacher's training recipe is left out, so that an audit on an overfitted
    teacher counts: a privacy guarantee holds for every teacher. If today's version of the method does not depend on its
    teacher, only the teacher's data is kept. Options that were added to the method later, without a new version, have
    their default values, which do not change the release.
    """
    release = with_all_options(spec["release"], spec["tier"])
    kept = ("data", "arch", "weights", "normalise", "seed") if _depends_on_teacher(release, spec["tier"]) else ("data",)
    release["teacher"] = {key: release["teacher"][key] for key in kept}
    return canonical({"tier": spec["tier"], "release": release})


def _depends_on_teacher(release: dict[str, Any], tier: str) -> bool:
    """Whether a release depends on its teacher: decided by the installed version; True for other versions."""
    version, _ = _present(release["method"], release["variant"], tier)
    found = needs(release["method"], release["variant"], tier, release["options"])
    return release["version"] != version or teacher_matters(found)


def with_all_options(release: dict[str, Any], tier: str) -> dict[str, Any]:
    """Return a release with its variant, and with default values for options that were added to its method later."""
    release = {"variant": "printed"} | release
    version, usual = _present(release["method"], release["variant"], tier)
    return release | {"options": usual | release["options"]} if release["version"] == version else release


@cache
def _present(method: str, variant: Variant, tier: str) -> tuple[int | None, dict[str, Any]]:
    """Return the installed version of a method's variant and its default options; (None, {}) if it is not installed."""
    if method not in plugins.entries("method") or variant not in registry.variants("method", method):
        return None, {}
    described = registry.describe("method", method, variant)
    return described.facts["version"], described.values(tier, variant)


def by_release(audits: Iterable[Audit]) -> dict[str, list[Audit]]:
    """Group audits by `audited_release`, sorted by hash; of a game with several versions, only the latest version's."""
    found: dict[str, list[Audit]] = {}
    for audit in sorted(audits, key=lambda audit: audit.hash):
        found.setdefault(audited_release(audit.spec), []).append(audit)
    return {release: _of_last_version(each) for release, each in found.items()}


def _of_last_version(audits: list[Audit]) -> list[Audit]:
    versions = [audit.spec.get("version", 1) for audit in audits]
    return [audit for audit, version in zip(audits, versions, strict=True) if version == max(versions)]


def noted(record: Record, audits: Mapping[str, list[Audit]]) -> Record | None:
    """Return a record with the result of the strongest audit of its release; None if it has it already or there is
    none.

    Args:
        audits: as returned by `by_release`.
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
    """Joint result of the audits of some runs: lower bounds on student, unprotected teacher and a run without canaries,
    the bound if all guesses were right, and whether a number of the release is refuted."""

    student: float
    teacher: float
    null: float
    ceiling: float
    is_refuted: bool


def shown(runs: Iterable[Record], audits: Mapping[str, Audit]) -> Shown | None:
    """Combine the audits noted in the records of runs that differ in the seed; None without an audit.

    Args:
        audits: by hash; audits that a record names and that are missing here do not count.
    """
    notes = [note for run in runs if (note := run.privacy.get("audited"))]
    names = {name for note in notes for name in note["audits"]} & audits.keys()
    if not names:
        return None
    mine = [audits[name] for name in sorted(names)]
    alike = next((note for note in notes if names == {*note["audits"]}), None)
    if alike is None:  # several audits: their joint bound needs a higher confidence for each
        best = strongest(mine)
        found = best.student, best.teacher, best.null, best.ceiling
    else:
        found = alike["epsilon_lower"], alike["teacher"], alike["null_run"], alike["ceiling"]
    # No bound exceeds the strongest one; with a single audit, it is that audit's bound
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
    """Return the bounds of the audit with the largest bound on the student, then on the teacher. Needs one audit or
    more.

    All bounds hold jointly, as in `bounds`.
    """
    found = [_bounds(audit, _sure(audits)) for audit in audits]
    return max(found, key=lambda each: (each.student, each.teacher))


def bounds(audits: Sequence[Audit]) -> list[float]:
    """Return the student's lower bound from each audit, jointly valid at 95 % (Bonferroni over their number)."""
    return [_bound(audit, audit.lines["student"]["correct"], _sure(audits)) for audit in audits]


def _bounds(audit: Audit, confidence: float) -> Bounds:
    student, teacher, null = (
        _bound(audit, audit.lines[name]["correct"], confidence) for name in ("student", "teacher", "null")
    )
    return Bounds(audit, student, teacher, null, _bound(audit, audit.spec["guesses"], confidence))


def _sure(audits: Sequence[Audit]) -> float:
    """Return the confidence of each audit for joint validity at 95 %."""
    return 1 - (1 - CONFIDENCE) / max(1, len(audits))


def _bound(audit: Audit, correct: int, confidence: float) -> float:
    return _epsilon(audit.spec["guesses"], correct, audit.canaries["number"], audit.delta, confidence)


_epsilon = cache(one_run_epsilon)
"""Cached: every run and row of a release needs the audits of that release."""


def is_refuted(audits: list[Audit]) -> bool:
    """Whether a lower bound exceeds the audited release's claimed or accounted epsilon for one example."""
    return any(
        refutes(bound, audit.delta, number)
        for bound, audit in zip(bounds(audits), audits, strict=True)
        for number in _promised(audit)
    )


def _promised(audit: Audit) -> tuple[dict[str, Any] | None, ...]:
    """Return the audited release's claim and accounted epsilon for one example; None where there is none."""
    return audit.privacy["claimed"], audit.privacy["accounted_units"].get("example")
