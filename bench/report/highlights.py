"""The front page's first table: the most accurate releases with a small accounted epsilon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.boards.board_cells import number
from bench.boards.selection import Candidate, Constraints, choose
from bench.boards.tables import Board
from bench.report.glossary import UNITS

EPSILON = 10.0
NUMBER = 3


def highlights(board: Board) -> list[dict[str, Any]]:
    """Return the `NUMBER` most accurate releases of a board for every unit, tier and split.

    Only releases with an accounted epsilon of at most `EPSILON` are ranked; claimed epsilons are ignored.
    """
    found = []
    for unit in UNITS:
        taken = choose([board], Constraints(unit, EPSILON, 0.0)).taken
        for (_, tier, split), candidates in sorted(taken.items(), key=lambda each: each[0][2] != "iid"):
            found += [{"unit": unit, "tier": tier, "split": split} | _line(each) for each in candidates[:NUMBER]]
    return found


def _line(candidate: Candidate) -> dict[str, Any]:
    row, strongest, member = candidate.row, candidate.strongest, candidate.best_membership
    return {
        "method": row.method,
        "variant": row.variant,
        "name": candidate.name,
        "run": candidate.counted[0].run,
        "accuracy": candidate.accuracy,
        "seeds": candidate.finished,
        "epsilon": candidate.epsilon,
        "attack": None if strongest is None else strongest.attack,
        "success": None if strongest is None else strongest.success,
        "floor": None if strongest is None else strongest.floor,
        "on_teacher": None if strongest is None else strongest.on_teacher,
        "membership": member and [member.any.attack, member.value("auc"), member.on_teacher("auc")],
        "attacks": len({each.any.attack for each in candidate.attacked if each.value("queries") != 0}),
    }


def attacks(rows: Iterable[Mapping[Any, Any]]) -> list[str]:
    """Return the attacks of rows, by name; attacks without queries are left out, as they are baselines."""
    return sorted({str(row["attack"]) for row in rows if row.get("attack") and number(row.get("queries")) != 0})
