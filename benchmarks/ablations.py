"""The effect of each departure of a working variant: leaderboards/papers/ablations, from the records of a sweep.

bench sweep recipes/ablations.toml --out ABLATIONS
python benchmarks/ablations.py ABLATIONS

Students attacked only by `random-guess` are rows of runs.csv; undefended teachers attacked by other attacks
(`no-defence` without a budget) are rows of attacks.csv. A repeated run of the same version replaces its row; other rows
stay. `docs/tables` makes tables of docs/methods.md from it; `bench show NAME` reads the effect of a departure.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from bench.escape import csv_cell
from bench.papers.effects import FILES, KEY, SCORES, Kind, read
from bench.storage.records import RECORD, Record

ATTACK = "random-guess"
"""The attack of the recipes of ablations: it costs nothing and is not shown on boards."""
VICTIM = "no-defence"
"""The method for trying attacks: its student is the teacher."""
SUCCESS = {"inversion": "teacher_attack_accuracy", "membership": "teacher_auc"}


def rows(runs: list[Path], kind: Kind = "method") -> list[dict[str, Any]]:
    """Return the rows of one file from the records below some output folders.

    Raises:
        ValueError: a record is damaged; the message names the file.
    """
    records = [Record.read(path) for run in runs for path in sorted(run.glob(f"records/[!.]*/{RECORD}"))]
    attacked = [record for record in records if record.status not in ("failed", "skipped") and record.spec["attack"]]
    if kind == "method":
        return [_student(record) for record in attacked if record.spec["attack"]["attack"] == ATTACK]
    return [
        row
        for record in attacked
        if record.spec["attack"]["attack"] != ATTACK and record.spec["release"]["method"] == VICTIM
        if (row := _attacked(record)) is not None
    ]


def _student(record: Record) -> dict[str, Any]:
    release = record.spec["release"]
    return {"method": release["method"], "version": str(release["version"])} | _common(record, "accuracy", "accuracy")


def _attacked(record: Record) -> dict[str, Any] | None:
    """Return the row of an attack; None if it has no score on the teacher."""
    attack = record.spec["attack"]
    measure = next((name for name in SUCCESS.values() if record.metrics.get(name) is not None), None)
    if measure is None:
        return None
    return {"attack": attack["attack"], "version": str(attack["version"])} | _common(record, "success", measure)


def _common(record: Record, column: str, measure: str) -> dict[str, Any]:
    return {
        "dataset": record.spec["release"]["teacher"]["data"]["dataset"],
        "options": json.dumps(record.options, sort_keys=True),
        "seed": str(record.spec["release"]["seed"]),
        column: f"{record.metrics[measure]:.4f}",
        "teacher_accuracy": f"{record.metrics['teacher_accuracy']:.4f}",
    }


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]], kind: Kind = "method") -> list[dict[str, Any]]:
    """Merge old and new rows, sorted; a new row replaces an old one of the same run."""
    found = {tuple(row[key] for key in (kind, *KEY)): row for row in (*old, *new)}
    return [found[key] for key in sorted(found)]


def main() -> None:
    """Read the runs and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="output folders of a sweep")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="folder of the tables (default leaderboards/papers/ablations)"
    )
    given = parser.parse_args()
    for kind, usual in FILES.items():
        path = usual if given.into is None else given.into / usual.name
        old, new = read(path), rows(given.runs, kind)
        if new:
            with path.open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, (kind, *KEY, SCORES[kind], "teacher_accuracy"), lineterminator="\n")
                table.writeheader()
                table.writerows({key: csv_cell(cell) for key, cell in row.items()} for row in merged(old, new, kind))
        print(f"{path}: {len(new)} runs read")


if __name__ == "__main__":
    main()
