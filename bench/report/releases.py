"""Releases of the boards as plain data: what each promises, costs, risks, and what nobody measured of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bench.boards.board_cells import number
from bench.boards.selection import Candidate, asks_teachers, attacked, candidates, finished, lacking
from bench.privacy.budget import INFINITE
from bench.report.names import apart


def lines(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line per release of the rows of boards, in their order; an infinite number is "inf".

    `apart` is what tells a release from others of its name in the same place, such as "teacher=resnet34".

    Args:
        rows: with "dataset" in each.
    """
    found = candidates(rows)
    told = apart([(each.place, each.name) for each in found], [_fields(each) for each in found])
    return [line(each) | {"apart": words} for each, words in zip(found, told, strict=True)]


def _fields(candidate: Candidate) -> dict[str, str]:
    """What a release's name does not say. The teacher of a method that asks none was there for an attack alone."""
    row = candidate.row
    return {
        "teacher": f"teacher={text(row['teacher'])}" if asks_teachers(row) else "",
        "student": f"student={text(row['student'])}",
        "version": f"version {number(row['version']):g}" if candidate.older else "",
        "delta": f"delta={text(row['delta'])}",
        "unit": f"accounted per {text(row['unit'])}",
        "noise": "float32 noise" if "float32-noise" in candidate.flags else "",
    }


def line(candidate: Candidate) -> dict[str, Any]:
    """One release: who it is, its numbers, and what is known of attacks on it."""
    row, strongest = candidate.row, candidate.strongest
    texts = ("dataset", "tier", "split", "method", "variant", "device")
    numbers = {
        "std": "accuracy_std",
        "delta": "delta",
        "claimed": "epsilon_claimed",
        "information": "information",
        "seconds": "seconds",
    }
    return {
        **{key: text(row[key]) for key in texts},
        **{key: plain(number(row[column])) for key, column in numbers.items()},
        "audited": None if candidate.audited is None else plain(number(candidate.audited["epsilon_audited"])),
        "name": candidate.name,
        "setting": candidate.name.partition(") ")[2],
        "accuracy": candidate.accuracy,
        "epsilon": plain(candidate.epsilon),
        "unit": text(row["unit"]),
        "claim_unit": text(row["claim_unit"]),
        "relation": text(row["relation"]),
        "seeds": finished(row),
        "runs": str(row["runs"]).split(),
        "attacks": [[attacked(each), str(each["runs"]).split()[0]] for each in candidate.attacked],
        "strongest": None if strongest is None else str(strongest),
        "flags": sorted(candidate.flags),
        "older": candidate.older,
        "lacking": lacking(candidate),
    }


def plain(value: float | None) -> float | str | None:
    """A number for JSON."""
    return INFINITE if value == math.inf else value


def text(value: Any) -> str:
    """A cell of a board as text, "" where it is empty."""
    return "" if value is None or value != value else str(value)
