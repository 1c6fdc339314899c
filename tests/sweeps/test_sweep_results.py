"""The results that a sweep prints of its cells: accuracy, epsilon and the attack's success."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from board_records import record

from bench.cli import sweep
from bench.storage.records import RECORD
from bench.sweeps.results import CellResult, cell_results, write_results
from bench.sweeps.run_sweep import Outcome


def saved(folder: Path, seed: int, **metrics: float) -> Path:
    """The directory of a record with these metrics of its attack."""
    one = record(seed, 0.5)
    one.metrics = {"accuracy": 0.5, **metrics}
    place = folder / one.hash
    place.mkdir(parents=True)
    (place / RECORD).write_text(one.to_json(), encoding="utf-8")
    return place


def test_cell_results_have_accuracy_epsilon_and_attack(tmp_path: Path) -> None:
    attacked = saved(tmp_path, 0, attack_accuracy=0.25, teacher_attack_accuracy=0.75)
    followed = saved(tmp_path, 1, auc=0.52, teacher_auc=0.61)
    published = followed / RECORD
    outcomes = [
        Outcome("inversion", "ok", record=str(attacked)),
        Outcome("membership", "published", record=str(published)),
        Outcome("refused", "refused", "no budget can be met"),
    ]
    first, second, third = cell_results(outcomes)
    assert (first.accuracy, first.attack) == ("0.5000", "gmi accuracy 25.0% (teacher 75.0%)")
    assert first.epsilon.endswith(" per example") and first.epsilon == second.epsilon
    assert second.attack == "gmi AUC 0.520 (teacher 0.610)"
    assert third == CellResult("refused", "refused", attack="no budget can be met")


def test_results_are_written_in_full_and_printed_in_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [CellResult(f"cell{i}", "ok", "0.5000", "1 per example", "gmi accuracy 25.0%") for i in range(100)]
    path = tmp_path / "table.csv"
    write_results(path, results)
    with path.open(newline="", encoding="utf-8") as stream:
        assert [row["cell"] for row in csv.DictReader(stream)] == [each.cell for each in results]
    sweep.show_results(results, path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and lines[-1].startswith("70 more cells") and lines[-1].endswith(str(path))
