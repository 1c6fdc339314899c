"""A board as one wide row per evaluation, for the report, the papers' comparison and the tables of docs/.

Wide rows are not stored: they are computed from the three tables. New code reads the three tables instead.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bench import registry
from bench.boards.board_cells import Row, blank, number, options
from bench.boards.build import mean
from bench.boards.columns import MEASURED, SORT, WIDE
from bench.boards.flags import OLDER, installed_version
from bench.boards.needs import needs as of_method
from bench.boards.needs import teacher_matters
from bench.boards.tables import (
    LOWER,
    LOWER_CEILING,
    LOWER_NULL,
    OF_RELEASE,
    AttackRow,
    Board,
    ReleaseRow,
    RunRow,
    joined,
    read_boards,
)
from bench.config import Variant
from bench.metrics.metric import REFERENCE, REFERENCES
from bench.storage.options import GROUPS, described

TEACHER = "teacher_"


def wide_rows(board: Board) -> list[dict[str, Any]]:
    """Return one row per evaluation and one per kind of reference images, sorted; None where a cell is empty."""
    releases = {row.release: row for row in board.releases}
    runs: dict[str, list[RunRow]] = defaultdict(list)
    measured: dict[str, dict[str, AttackRow]] = defaultdict(dict)
    references: dict[tuple[str, str, str], dict[str, AttackRow]] = defaultdict(dict)
    for run in board.runs:
        runs[run.evaluation].append(run)
    for row in board.attacks:
        held = measured[row.evaluation] if row.evaluation else references[row.release, row.attack, row.variant]
        held[row.metric] = row
    counted = {run.release: measured[run.evaluation] for run in board.runs if run.counted}
    kinds = {name: entry.folder for name, entry in registry.entries("method").items()}
    found = []
    for evaluation, of in runs.items():
        release = releases[of[0].release]
        usual = {name: row for name, row in counted[release.release].items() if not row.attack}
        own = measured[evaluation]
        found.append(_row(release, of, usual | own, kinds.get(release.method, "unknown")))
    found += [_reference_row(*key, rows) for key, rows in references.items()]
    return sorted((row | {"dataset": board.dataset} for row in found), key=_place)


def wide_texts(folder: Path) -> list[dict[str, str]]:
    """Return the wide rows of all boards in a folder as text, "" for an empty cell. Raises BenchError as
    `read_boards`."""
    return [
        {name: "" if value is None else str(value) for name, value in row.items()}
        for board in read_boards(folder)
        for row in wide_rows(board)
    ]


def _row(release: ReleaseRow, runs: Sequence[RunRow], rows: Mapping[str, AttackRow], kind: str) -> dict[str, Any]:
    done = [run for run in runs if run.status != "failed"]
    attack = next((row for row in rows.values() if row.attack), None)
    held = options(release.options) | options_of(rows.values())
    given = {name: held[name] for name in GROUPS if held.get(name)}
    found: dict[str, Any] = dict.fromkeys(WIDE)
    found |= {
        "tier": release.tier,
        "split": release.split,
        "method": release.method,
        "variant": release.variant,
        "version": str(release.version),
        "kind": kind,
        "setting": described(given),
        "options": json.dumps(given, sort_keys=True) if given else "",
        "teacher": release.teacher,
        "student": release.student,
        "seeds": " ".join(str(run.seed) for run in runs),
        "failed": len(runs) - len(done),
        "runs": " ".join(run.run for run in runs),
    }
    if attack is not None:
        found |= {"attack": attack.attack, "attack_variant": attack.variant, "access": attack.access}
    if not done:
        return found
    return found | {
        **{column.key: _cell(rows, column.metric, column.deviation) for column in MEASURED},
        **{name: rows[name].value if name in rows else getattr(release, name) for name in OF_RELEASE},
        "claim_unit": release.claimed_unit or None,
        "unit": release.unit,
        "relation": release.relation or None,
        "delta": release.delta,
        "epsilon_audited": _cell(rows, LOWER),
        "audited_teacher": _cell(rows, TEACHER + LOWER),
        "audited_null": _cell(rows, LOWER_NULL),
        "audited_ceiling": _cell(rows, LOWER_CEILING),
        "power": (attack.power or None) if attack is not None else None,
        "seconds": mean([run.seconds for run in done]),
        "device": " | ".join(sorted({run.device for run in done})),
        "flags": _flags(release, attack, runs[0].flags),
    }


def options_of(rows: Iterable[AttackRow]) -> dict[str, dict[str, Any]]:
    """Return the options of an evaluation's attack and evaluator, by group; empty groups are left out."""
    cell = next((row.options for row in rows if row.options), "")
    return {name: held for name, held in options(cell).items() if held}


def _cell(rows: Mapping[str, AttackRow], metric: str, is_deviation: bool = False) -> float | None:
    """Return the number of a column: of the student, of the teacher, or of a network with random weights."""
    if metric.startswith(TEACHER):
        row = rows.get(metric.removeprefix(TEACHER))
        return None if row is None else row.teacher
    if metric == "random_auc":
        return rows["auc"].untrained if "auc" in rows else None
    row = rows.get(metric)
    return None if row is None else row.deviation if is_deviation else row.value


def _flags(release: ReleaseRow, attack: AttackRow | None, flags: str) -> str:
    older = release.version < installed_version("method", release.method, release.variant)
    if attack is not None and attack.version is not None:
        older = older or attack.version < installed_version("attack", attack.attack, attack.variant)
    return joined([*flags.split(), *([OLDER] if older else [])])


def _reference_row(key: str, attack: str, variant: str, rows: Mapping[str, AttackRow]) -> dict[str, Any]:
    _, tier, split_and_kind = key.split("/", 2)
    split, _, kind = split_and_kind.rpartition("/")
    found: dict[str, Any] = dict.fromkeys(WIDE)
    found |= {"tier": tier, "split": split, "method": REFERENCE, "kind": REFERENCE, "setting": REFERENCES[kind]}
    found |= {"attack": attack or None, "attack_variant": variant or None}
    return found | {name: row.value for name, row in rows.items() if name in found}


def _place(row: Row) -> tuple[Any, ...]:
    """Return the sort key of a row: the columns SORT, empty cells first."""
    return tuple([(row[column] is not None, row[column]) for column in SORT])


def finished(row: Row) -> int:
    """Return the number of seeds of a wide row with a result."""
    return len(str(row["seeds"]).split()) - int(number(row["failed"]) or 0)


def released(row: Row) -> str:
    """Format the options of a wide row in a line, without those of the attack and its judge.

    Options of a teacher that the method does not query are left out too: it only served as the attack's baseline.
    """
    others: dict[str, Any] = {"attack": {}, "evaluator": {}}
    others |= {} if teacher_matters(needs(row)) else {"teacher": {}}
    return described(options(str(blank(row["options"]))) | others)


def needs(row: Row) -> frozenset[str] | None:
    """Return the needs of a wide row's method at its options; None if it is not installed."""
    given = row.get("options")
    held = options(given if isinstance(given, str) else "")["method"]
    return of_method(str(row["method"]), cast(Variant, row["variant"]), str(row["tier"]), held)
