"""Results of the cells of a sweep: accuracy, epsilon and the attack's success, one line each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from bench.core.epsilon import epsilon_from_json, format_epsilon
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
    """Return the result of each outcome, in the same order."""
    return [cell_result(outcome) for outcome in outcomes]


def cell_result(outcome: Outcome) -> CellResult:
    """Return the result of an outcome; without a readable record, the attack's column gives the reason."""
    path = Path(outcome.record)
    try:
        record = Record.read(path / RECORD if path.is_dir() else path)
    except (OSError, ValueError):  # an audit, whose reason has its bounds, or a cell that was not run
        return CellResult(outcome.name, outcome.state, attack=outcome.reason)
    accuracy, accounted, epsilon = record.metrics.get("accuracy"), record.privacy.get("accounted"), ""
    if accounted is not None:
        epsilon = f"{format_epsilon(epsilon_from_json(accounted['epsilon']))} per {accounted['unit']}"
    return CellResult(
        outcome.name, outcome.state, "" if accuracy is None else f"{accuracy:.4f}", epsilon, attack_success(record)
    )


def attack_success(record: Record) -> str:
    """Format the attack's success on the student and, in brackets, on the teacher or its baseline; "" without one."""
    if record.spec["attack"] is None:
        return ""
    name, metrics = record.spec["attack"]["attack"], record.metrics
    for key, label, form in (("attack_accuracy", "accuracy", ".1%"), ("auc", "AUC", ".3f")):
        if (student := metrics.get(key)) is not None:
            baselines = (metrics.get(f"{target}_{key}") for target in ("teacher", "memorising"))
            baseline = next((value for value in baselines if value is not None), None)
            compared = "" if baseline is None else f" (teacher {baseline:{form}})"
            return f"{name} {label} {student:{form}}{compared}"
    return f"{name} {record.status}"


def write_results(path: Path, results: Sequence[CellResult]) -> None:
    """Write all lines as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(CellResult)])
    writer.writerows(map(astuple, results))
    write_atomically(path, text.getvalue())
