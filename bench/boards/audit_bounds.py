"""Results of end-to-end audits for a row of a board: its lower bound, and whether one of its numbers is refuted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from bench.boards.installed import defaults, needs, teacher_matters
from bench.privacy.one_run import CONFIDENCE, one_run_epsilon, refutes
from bench.storage.records import Audit, Record
from bench.storage.specs import canonical


def audited_release(spec: Mapping[str, Any]) -> str:
    """Return the key that the specs of an audit and a run must share for the audit's bound to apply to the run's row.

    The key is the tier and the release: method, its variant, version and options, student, budget, noise, data set,
    split, teacher network and seed. The teacher's training recipe is left out, so that an audit on an overfitted
    teacher counts: a privacy guarantee holds for every teacher. If the installed version of the method does not depend
    on its teacher, only the teacher's data is kept. Options that were added to the method later, without a new version,
    have their default values, which do not change the release.
    """
    tier = spec["tier"]
    release = with_all_options(spec["release"], tier)
    method, variant = release["method"], release["variant"]
    installed = defaults(method, variant, tier)
    is_known = installed is not None and installed.version == release["version"]
    matters = not is_known or teacher_matters(needs(method, variant, tier, release["options"]))
    fields = ("data", "arch", "weights", "normalise", "seed") if matters else ("data",)
    release["teacher"] = {key: release["teacher"][key] for key in fields}
    return canonical({"tier": tier, "release": release})


def with_all_options(release: Mapping[str, Any], tier: str) -> dict[str, Any]:
    """Return the spec of a release with its variant, and with default values for options that were added to its method
    later."""
    found = {"variant": "printed", **release}
    installed = defaults(found["method"], found["variant"], tier)
    if installed is None or installed.version != found["version"]:
        return found
    return found | {"options": {**installed.options, **found["options"]}}


def by_release(audits: Iterable[Audit]) -> dict[str, list[Audit]]:
    """Group audits by `audited_release`, sorted by hash; of a game with several versions, only the latest version's."""
    found: dict[str, list[Audit]] = {}
    for audit in sorted(audits, key=lambda audit: audit.hash):
        found.setdefault(audited_release(audit.spec), []).append(audit)
    latest = {release: max(each.spec.get("version", 1) for each in mine) for release, mine in found.items()}
    return {
        release: [audit for audit in mine if audit.spec.get("version", 1) == latest[release]]
        for release, mine in found.items()
    }


def with_audit_result(record: Record, audits: Mapping[str, list[Audit]]) -> Record | None:
    """Return a record with the result of the strongest audit of its release; None if it has it already, or there is no
    audit.

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
class JointBounds:
    """Joint result of the audits of some runs: lower bounds on student, unprotected teacher and a run without canaries,
    the bound if all guesses were right, and whether a number of the release is refuted."""

    student: float
    teacher: float
    null: float
    ceiling: float
    is_refuted: bool


def join_audits(runs: Iterable[Record], audits: Mapping[str, Audit]) -> JointBounds | None:
    """Combine the audits in the records of runs that differ in the seed; None without an audit.

    Args:
        audits: hash to audit; audits that a record names and that are missing here do not count.
    """
    notes = [note for run in runs if (note := run.privacy.get("audited"))]
    names = {name for note in notes for name in note["audits"]} & audits.keys()
    if not names:
        return None
    mine = [audits[name] for name in sorted(names)]
    same = next((note for note in notes if names == {*note["audits"]}), None)
    if same is None:  # several audits: their joint bound needs a higher confidence for each
        best = strongest(mine)
        found = best.student, best.teacher, best.null, best.ceiling
    else:
        found = same["epsilon_lower"], same["teacher"], same["null_run"], same["ceiling"]
    # No bound exceeds the strongest one; with a single audit, it is that audit's bound
    is_suspect = any(_refutes(found[0], audit) for audit in mine)
    student, teacher, null, ceiling = (round(bound, 6) for bound in found)
    return JointBounds(student, teacher, null, ceiling, is_suspect and (len(mine) == 1 or is_refuted(mine)))


@dataclass(frozen=True)
class Bounds:
    """An audit's lower bounds on student, unprotected teacher and null run, and the bound if all guesses were right."""

    audit: Audit
    student: float
    teacher: float
    null: float
    ceiling: float


def strongest(audits: Sequence[Audit]) -> Bounds:
    """Return the bounds of the audit with the largest bound on the student, then on the teacher.

    All bounds hold jointly, as in `bounds`.

    Args:
        audits: one or more.
    """
    found = []
    for audit in audits:
        correct = [audit.lines[name]["correct"] for name in ("student", "teacher", "null")]
        of_audit = [_bound(audit, count, len(audits)) for count in (*correct, audit.spec["guesses"])]
        found.append(Bounds(audit, *of_audit))
    return max(found, key=lambda each: (each.student, each.teacher))


def bounds(audits: Sequence[Audit]) -> list[float]:
    """Return the student's lower bound from each audit, jointly valid at 95 % (Bonferroni over their number)."""
    return [_bound(audit, audit.lines["student"]["correct"], len(audits)) for audit in audits]


def _bound(audit: Audit, correct: int, audits: int) -> float:
    """Return the lower bound from `correct` guesses, at the confidence that makes that many audits valid jointly."""
    confidence = 1 - (1 - CONFIDENCE) / audits
    return _epsilon(audit.spec["guesses"], correct, audit.canaries["number"], audit.delta, confidence)


_epsilon = cache(one_run_epsilon)


def is_refuted(audits: Sequence[Audit]) -> bool:
    """Whether a lower bound exceeds the audited release's claimed or accounted epsilon for one example."""
    return any(_refutes(bound, audit) for bound, audit in zip(bounds(audits), audits, strict=True))


def _refutes(bound: float, audit: Audit) -> bool:
    """Whether a lower bound exceeds the claimed or the accounted epsilon of an audited release for one example."""
    guarantees = (audit.privacy["claimed"], audit.privacy["accounted_units"].get("example"))
    return any(refutes(bound, audit.delta, guarantee) for guarantee in guarantees)
