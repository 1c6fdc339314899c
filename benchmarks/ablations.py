"""The effect of each departure of a working variant: leaderboards/papers/ablations, from the records of a sweep.

bench sweep recipes/ablations.toml --out ABLATIONS
python benchmarks/ablations.py ABLATIONS

Students that `random-guess` alone attacked are rows of runs.csv; the undefended teachers that other attacks attacked,
of `no-defence` without a budget, rows of attacks.csv. A run that is made again with the same version replaces itself;
the others stay. `docs/tables` makes tables of docs/methods.md of it; `bench show NAME` reads what a departure is worth.
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
"""The attack of the recipes of ablations: it costs nothing, and nobody publishes it."""
VICTIM = "no-defence"
"""The method that attacks are tried on: its student is the teacher."""
SUCCESS = {"inversion": "teacher_attack_accuracy", "membership": "teacher_auc"}


def rows(runs: list[Path], kind: Kind = "method") -> list[dict[str, Any]]:
    """The rows of one file of what lies below some output folders.

    Raises:
        ValueError: a record that is damaged; the file is named.
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
    """None for an attack that has no score on the teacher."""
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
    """Both, each run once, the new ones in the place of the old; sorted."""
    found = {tuple(row[key] for key in (kind, *KEY)): row for row in (*old, *new)}
    return [found[key] for key in sorted(found)]


def main() -> None:
    """Read the runs, write the files."""
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
