"""Rows and columns of the boards, as plain data for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["text", "percent", "number", "epsilon", "seconds", "runs", "flags"]
INFINITE = "inf"
"""How an infinite epsilon is written in the page's JSON."""


@dataclass(frozen=True)
class Column:
    """A column as readers see it.

    Attributes:
        key: of `bench.leaderboard.COLUMNS`.
        kind: how it is written and sorted.
        core: shown before a reader asks for all columns.
        within: columns whose values are never mixed when sorting by this one.
        tip: what the number is.
    """

    key: str
    label: str
    kind: Kind
    core: bool = False
    within: list[str] = field(default_factory=list)
    tip: str = ""


ATTACK = ["attack"]
SHOWN = [
    Column("method", "method", "text", True),
    Column("setting", "setting", "text", True, tip="what differs from the tier's defaults"),
    Column("kind", "kind", "text"),
    Column("teacher", "teacher", "text"),
    Column("student", "student", "text"),
    Column(
        "accuracy_mean", "accuracy", "percent", True, tip="of the student on the test set, mean ± deviation of seeds"
    ),
    Column("teacher_accuracy", "teacher's accuracy", "percent"),
    Column("epsilon_claimed", "ε claimed", "epsilon", True, ["claim_unit"], "by the paper's own theorem"),
    Column("epsilon_accounted", "ε accounted", "epsilon", True, ["unit"], "what can be proved from the ledger"),
    Column("epsilon_audited", "ε audited ≥", "epsilon", True, tip="a lower bound per record that an attack measured"),
    Column("audited_teacher", "on teacher ≥", "epsilon", True, tip="what the audit shows where nothing defends"),
    Column("audited_null", "null run ≥", "epsilon", True, tip="what the audit shows where there is nothing to find"),
    Column("audited_ceiling", "could show", "epsilon", True, tip="what the audit would show if every guess were right"),
    Column("delta", "δ", "number"),
    Column("relation", "neighbours", "text"),
    Column("attack", "attack", "text", True),
    Column("access", "access", "text"),
    Column("attack_accuracy", "attack on student", "percent", True, ATTACK, "reconstructions of the right class"),
    Column("teacher_attack_accuracy", "on teacher", "percent", True, ATTACK, "the same attack, nothing defended"),
    Column("power", "power", "text", True, tip="whether the attack works where nothing defends"),
    Column("target_accuracy", "target's own view", "percent", within=ATTACK),
    Column("inception_score", "IS", "number", within=ATTACK, tip="inception score by the data set's evaluator"),
    Column("inception_e6", "(IS-1) 10⁶", "number", within=ATTACK),
    Column("inception_within_class", "IS within class", "number", within=ATTACK),
    Column("knn_distance", "KNN distance", "number", within=ATTACK),
    Column("knn_gap", "KNN gap", "number", within=ATTACK, tip="how much nearer to private than to unseen images"),
    Column("fid", "FID", "number", within=ATTACK),
    Column("density", "density", "number", within=ATTACK),
    Column("coverage", "coverage", "number", within=ATTACK),
    Column("ssim", "SSIM", "number", within=ATTACK),
    Column("ssim_gap", "SSIM gap", "number", within=ATTACK),
    Column("auc", "AUC", "number", True, ATTACK, "of a membership attack on the student; 0.5 is guessing"),
    Column("teacher_auc", "AUC on teacher", "number", True, ATTACK),
    Column("tpr_at_1pct", "TPR at FPR 1 %", "percent", within=ATTACK),
    Column("tpr_at_01pct", "TPR at FPR 0.1 %", "percent", within=ATTACK),
    Column("queries", "queries", "number", within=ATTACK),
    Column("reported_accuracy", "printed by the paper", "percent", True),
    Column("reported_difference", "ours less theirs", "percent", True),
    Column("reported_source", "printed where", "text"),
    Column("runs", "seeds", "runs", True, tip="a run each; follow the number"),
    Column("failed", "failed", "number"),
    Column("seconds", "time", "seconds", tip="mean of the runs, all steps"),
    Column("device", "device", "text"),
    Column("flags", "flags", "flags", True, tip="what must be known before a row is used"),
]
HIDDEN = {"tier", "split", "accuracy_std", "attack_accuracy_std", "claim_unit", "unit", "seeds"}
"""Columns of a board that are shown with another one, or as headings."""


def rows(table: Iterable[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """The rows of a board: column to value, with empty cells left out and infinite epsilons as "inf"."""
    return [_row(row) for row in table]


def _row(row: Mapping[Any, Any]) -> dict[str, Any]:
    found = {str(key): value for key, value in row.items() if not _empty(value)}
    for number, unit in (("epsilon_claimed", "claim_unit"), ("epsilon_accounted", "unit")):
        if unit in found and number not in found:
            found[number] = INFINITE
    for key in ("runs", "flags", "seeds"):
        found[key] = str(found[key]).split() if key in found else []
    return found


def _empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def columns(found: list[dict[str, Any]]) -> list[str]:
    """The keys of the columns in which at least one row says something, in order."""
    return [column.key for column in SHOWN if any(row.get(column.key) not in (None, []) for row in found)]
