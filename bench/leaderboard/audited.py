"""What end-to-end audits say of a row: the bound that stands in it, and whether a number of the row is refuted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.files import write_atomically
from bench.privacy.one_run import CONFIDENCE, one_run_epsilon, refutes
from bench.records import Audit, Record, canonical


def audited_release(spec: dict[str, Any]) -> str:
    """What an audit and a run must share for the audit's bound to stand in the run's row.

    That is the tier and the release: method, its version and options, student, budget, noise, data set, split, teacher
    network and seed. The teacher's training recipe is left out, so that an audit on an overfitted teacher counts: a
    promise of privacy holds for every teacher.
    """
    release = dict(spec["release"])
    release["teacher"] = {key: release["teacher"][key] for key in ("data", "arch", "weights", "normalise", "seed")}
    return canonical({"tier": spec["tier"], "release": release})


def note(record: Record, audits: list[Audit], path: Path) -> None:
    """Write the strongest audit of a record's release into the record, if that is news."""
    mine = [audit for audit in audits if audited_release(audit.spec) == audited_release(record.spec)]
    if not mine or not record.privacy:
        return
    bound, audit = max(zip(bounds(mine), mine, strict=True), key=lambda pair: pair[0])
    found = {
        "epsilon_lower": bound,
        "confidence": CONFIDENCE,
        "unit": "example",
        "delta": audit.delta,
        "ceiling": audit.ceiling,
        "canaries": audit.canaries["number"],
        "null_run": audit.lines["null"]["epsilon_lower"],
        "audits": [each.hash for each in mine],
    }
    if record.privacy.get("audited") != found:
        record.privacy["audited"] = found
        write_atomically(path, record.to_json())


def bounds(audits: list[Audit]) -> list[float]:
    """The student's lower bound from each audit, all holding together at 95 %: Bonferroni over their number."""
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(audits))
    return [
        one_run_epsilon(
            audit.spec["guesses"],
            audit.lines["student"]["correct"],
            audit.canaries["number"],
            audit.delta,
            confidence,
        )
        for audit in audits
    ]


def is_refuted(audits: list[Audit]) -> bool:
    """Whether one of the bounds is above the audited release's claim, or accounted epsilon, for one example."""
    return any(
        refutes(bound, audit.delta, number)
        for bound, audit in zip(bounds(audits), audits, strict=True)
        for number in (audit.privacy["claimed"], audit.privacy["accounted_units"].get("example"))
    )
