"""The rows of a board's page: every result, and the scores of reference images."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bench.boards.results import Reference, Result, references, results
from bench.boards.tables import Board
from bench.metrics.metric import REFERENCE, REFERENCES
from bench.report.columns import ALL
from bench.report.command import installed

Cell = str | float | list[str]
Row = dict[str, Cell]
"""Key of a column to cell; empty cells are left out."""
SORT = (
    "tier", "split", "method", "variant", "setting", "teacher", "student", "attack", "attack_variant", "delta", "runs",
)  # fmt: skip


def rows(board: Board) -> list[Row]:
    """Return the rows of a board's page, sorted by `SORT`; an empty cell comes first."""
    found = [*map(_result_row, results(board)), *map(_reference_row, references(board))]
    filled = [{key: cell for key, cell in row.items() if cell is not None and cell != ""} for row in found]
    filled.sort(key=lambda row: [(key in row, row.get(key)) for key in SORT])
    return filled


def _result_row(result: Result) -> dict[str, Cell | None]:
    release, attack, is_done = result.release, result.attack, bool(result.finished)
    given = {group: options for group, options in result.options.items() if options}
    found: dict[str, Cell | None] = {
        "tier": release.tier,
        "split": release.split,
        "method": release.method,
        "variant": release.variant,
        "version": str(release.version),
        "kind": installed("method").get(release.method, "unknown"),
        "setting": result.setting,
        "options": json.dumps(given, sort_keys=True) if given else "",
        "teacher": release.teacher,
        "student": release.student,
        "epsilon_claimed": result.claimed,
        "claim_unit": release.claimed_unit,
        "epsilon_accounted": result.accounted,
        "unit": release.unit,
        "relation": release.relation,
        "delta": release.delta,
        "information": result.information,
        "seeds": [str(run.seed) for run in result.runs],
        "failed": len(result.runs) - len(result.finished),
        "seconds": result.seconds,
        "device": result.device,
        "flags": sorted(result.flags),
        "runs": [run.run for run in result.runs],
    }
    if attack is not None:
        found |= {"attack": attack.attack, "attack_variant": attack.variant, "access": attack.access}
        found |= {"power": attack.power if is_done else None}
    measured = ((column, result.numbers.get(column.metric)) for column in ALL if column.metric)
    return found | {column.key: getattr(row, column.part) for column, row in measured if row is not None}


def _reference_row(reference: Reference) -> dict[str, Cell | None]:
    scores = {
        column.key: reference.numbers[column.metric]
        for column in ALL
        if column.part == "value" and column.metric in reference.numbers
    }
    return {
        "tier": reference.tier,
        "split": reference.split,
        "method": REFERENCE,
        "kind": REFERENCE,
        "setting": REFERENCES[reference.kind],
        "attack": reference.attack,
        "attack_variant": reference.variant,
        "seeds": [],
        "flags": [],
        "runs": [],
        **scores,
    }


def columns(found: Sequence[Row]) -> list[str]:
    """Return the keys of the columns with a value in at least one row, in order."""
    filled = {key for row in found for key, cell in row.items() if cell != []}
    return [column.key for column in ALL if not column.companion and column.key in filled]
