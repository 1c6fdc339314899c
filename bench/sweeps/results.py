"""Results of the cells of a sweep: accuracy, epsilon and the attack's success, one line each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from bench.privacy.budget import INFINITE
from bench.storage.atomic_write import write_atomically
from bench.storage.records import RECORD, Record
from bench.sweeps.run_sweep import Outcome


@dataclass(frozen=True)
class CellResult:
    """A cell's name and state, and its numbers as text; "" where it has none."""

    cell: str
    state: str
    accuracy: str = ""
    epsilon: str = ""
    attack: str = ""


def cell_results(outcomes: Iterable[Outcome]) -> list[CellResult]:
    """Return a line for each outcome; without a readable record, the attack's column gives the reason."""
    return [_result(outcome) for outcome in outcomes]


def _result(outcome: Outcome) -> CellResult:
    path = Path(outcome.record)
    try:
        record = Record.read(path / RECORD if path.is_dir() else path)
    except (OSError, ValueError):  # an audit, whose reason has its bounds, or a cell that was not run
        return CellResult(outcome.name, outcome.state, attack=outcome.reason)
    accuracy = record.metrics.get("accuracy")
    return CellResult(
        outcome.name,
        outcome.state,
        "" if accuracy is None else f"{accuracy:.4f}",
        _epsilon(record.privacy.get("accounted")),
        _attack(record),
    )


def _epsilon(accounted: dict[str, Any] | None) -> str:
    if accounted is None:
        return ""
    epsilon = accounted["epsilon"]
    return f"{'infinite' if epsilon == INFINITE else f'{epsilon:.4g}'} per {accounted['unit']}"


def _attack(record: Record) -> str:
    """Format the attack's success on the student and, in brackets, on the teacher or its baseline; "" without an
    attack."""
    if record.spec["attack"] is None:
        return ""
    name, metrics = record.spec["attack"]["attack"], record.metrics
    for key, label, form in (("attack_accuracy", "accuracy", ".1%"), ("auc", "AUC", ".3f")):
        if (student := metrics.get(key)) is not None:
            control = next((v for p in ("teacher", "memorising") if (v := metrics.get(f"{p}_{key}")) is not None), None)
            compared = "" if control is None else f" (teacher {control:{form}})"
            return f"{name} {label} {student:{form}}{compared}"
    return f"{name} {record.status}"


def write_results(path: Path, results: Sequence[CellResult]) -> None:
    """Write all lines as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(CellResult)])
    writer.writerows(map(astuple, results))
    write_atomically(path, text.getvalue())
