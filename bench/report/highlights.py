"""What the front page shows first: the most accurate releases of which a small epsilon is proved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.leaderboard.selection import Candidate, Constraints, choose
from bench.report.glossary import UNITS

EPSILON = 10.0
NUMBER = 3


def highlights(dataset: str, rows: Iterable[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """The `NUMBER` most accurate releases of a board's rows for every unit, tier and split.

    Only those count whose accounted epsilon is at most `EPSILON`; what papers claim has no say.
    """
    found = []
    rows = [{**row, "dataset": dataset} for row in rows]
    for unit in UNITS:
        for (_, tier, split), candidates in choose(rows, Constraints(unit, EPSILON, 0.0)).taken.items():
            found += [{"unit": unit, "tier": tier, "split": split} | _line(each) for each in candidates[:NUMBER]]
    return found


def _line(candidate: Candidate) -> dict[str, Any]:
    row, strongest = candidate.row, candidate.strongest
    return {
        "method": row["method"],
        "variant": row["variant"],
        "name": candidate.name,
        "run": str(row["runs"]).split()[0],
        "accuracy": candidate.accuracy,
        "seeds": len(str(row["seeds"]).split()),
        "epsilon": candidate.epsilon,
        "attack": None if strongest is None else strongest.attack,
        "success": None if strongest is None else strongest.success,
        "floor": None if strongest is None else strongest.floor,
        "on_teacher": None if strongest is None else strongest.on_teacher,
    }
