"""What each departure of a working variant is worth: leaderboards/ablations/runs.csv, from the records of a sweep.

bench sweep recipes/ablations.toml --out ABLATIONS
python benchmarks/ablations.py ABLATIONS

A run that is made again with the same version of the method replaces itself; the others stay.
`docs/tables` makes the table of docs/methods.md of the file, and `bench show NAME` reads what a departure is worth.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from bench.storage.records import RECORD, Record
from bench.worth import FILE, KEY, read

FIELDS = (*KEY, "accuracy", "teacher_accuracy")
ATTACK = "random-guess"
"""The attack of the recipes of ablations: it costs nothing, and nobody publishes it."""


def rows(runs: list[Path]) -> list[dict[str, Any]]:
    """The students below some output folders that nothing but `random-guess` attacked.

    Raises:
        ValueError: a record that is damaged; the file is named.
    """
    records = [Record.read(path) for run in runs for path in sorted(run.glob(f"records/[!.]*/{RECORD}"))]
    return [_row(record) for record in records if record.status != "failed" and _attack(record) == ATTACK]


def _attack(record: Record) -> str | None:
    attack = record.spec["attack"]
    return attack["attack"] if attack else None


def _row(record: Record) -> dict[str, Any]:
    release = record.spec["release"]
    return {
        "method": release["method"],
        "version": str(release["version"]),
        "dataset": release["teacher"]["data"]["dataset"],
        "options": json.dumps(record.options, sort_keys=True),
        "seed": str(release["seed"]),
        "accuracy": f"{record.metrics['accuracy']:.4f}",
        "teacher_accuracy": f"{record.metrics['teacher_accuracy']:.4f}",
    }


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both, each run once, the new ones in the place of the old; sorted."""
    found = {tuple(row[key] for key in KEY): row for row in (*old, *new)}
    return [found[key] for key in sorted(found)]


def main() -> None:
    """Read the runs, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="output folders of a sweep")
    parser.add_argument(
        "--into", type=Path, default=FILE, metavar="FILE", help="the table (default leaderboards/ablations/runs.csv)"
    )
    given = parser.parse_args()
    old, new = read(given.into), rows(given.runs)
    with given.into.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(merged(old, new))
    print(f"{given.into}: {len(new)} runs read")


if __name__ == "__main__":
    main()
