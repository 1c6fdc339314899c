"""Releases of the boards as plain data: guarantees, costs, risks, and missing measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from bench.boards.selection import Candidate, candidates, lacking, queries_teachers
from bench.boards.tables import ACCURACY, Board
from bench.privacy.budget import INFINITE
from bench.report.names import apart


def lines(boards: Iterable[Board]) -> list[dict[str, Any]]:
    """Return one entry per release of boards, in their order; an infinite number is "inf".

    `apart` distinguishes a release from others of its name in the same place, such as "teacher=resnet34".
    """
    found = candidates(boards)
    told = apart([(each.place, each.name) for each in found], [_fields(each) for each in found])
    return [line(each) | {"apart": words} for each, words in zip(found, told, strict=True)]


def _fields(candidate: Candidate) -> dict[str, str]:
    """Return fields that a release's name omits. A method without queries uses its teacher only for an attack."""
    row = candidate.row
    return {
        "teacher": f"teacher={row.teacher}" if queries_teachers(row) else "",
        "student": f"student={row.student}",
        "version": f"version {row.version:g}" if candidate.older else "",
        "delta": f"delta={text(row.delta)}",
        "unit": f"accounted per {row.unit}",
        "noise": "float32 noise" if "float32-noise" in candidate.flags else "",
    }


def line(candidate: Candidate) -> dict[str, Any]:
    """Return one release: its name, its numbers, and the known attacks on it."""
    row, strongest = candidate.row, candidate.strongest
    return {
        "dataset": row.dataset,
        "tier": row.tier,
        "split": row.split,
        "method": row.method,
        "variant": row.variant,
        "device": candidate.device,
        "std": candidate.measured[ACCURACY].deviation if ACCURACY in candidate.measured else None,
        "delta": row.delta,
        "claimed": plain(row.epsilon_claimed),
        "information": plain(row.information),
        "seconds": candidate.seconds,
        "audited": plain(row.epsilon_lower),
        "name": candidate.name,
        "setting": candidate.name.partition(") ")[2],
        "accuracy": candidate.accuracy,
        "epsilon": plain(candidate.epsilon),
        "unit": row.unit,
        "claim_unit": row.claimed_unit,
        "relation": row.relation,
        "seeds": candidate.finished,
        "runs": [run.run for run in candidate.counted],
        "attacks": [[str(each), each.runs[0]] for each in candidate.attacked],
        "strongest": None if strongest is None else str(strongest),
        "flags": sorted(candidate.flags),
        "older": candidate.older,
        "lacking": lacking(candidate),
    }


def plain(value: float | None) -> float | str | None:
    """Convert a number for JSON."""
    return INFINITE if value == math.inf else value


def text(value: Any) -> str:
    """Format a cell of a board as text, "" where it is empty."""
    return "" if value is None or value != value else str(value)
