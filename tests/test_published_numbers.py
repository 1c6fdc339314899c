"""Every number of the README's results and of the measured tables in docs/ stands on a board or in a record."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from bench import leaderboard
from bench.records import Record

BOARDS = ROOT / "leaderboards"
PERCENT = re.compile(r"(\d+\.\d)(?: ± (\d+\.\d))? %")


def tables(path: Path, heading: str) -> Iterator[dict[str, str]]:
    """The rows of all tables below a heading, up to the next heading of the same rank; column to cell."""
    rank = heading.split()[0]
    text = path.read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    head: list[str] = []
    for line in text.splitlines():
        if re.match(rf"#{{1,{len(rank)}}} ", line):
            return
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            head = []
        elif not head:
            head = cells
        elif not set(line) <= set("|-: "):
            yield dict(zip(head, cells, strict=True))


def board(name: str) -> list[dict[str, str]]:
    with (BOARDS / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def share(cell: str) -> str:
    return f"{100 * float(cell):.1f}" if cell else ""


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return leaderboard.read((BOARDS / "records").glob("*.json"))


@pytest.mark.parametrize(("column", "name"), [("digits", "digits"), ("MNIST", "mnist")])
def test_accuracies_of_the_readme_are_on_the_boards(column: str, name: str) -> None:
    rows = board(name)
    checked = 0
    for row in tables(ROOT / "README.md", "### Results so far"):
        method = re.split(r"[,\s]", row["method, options"])[0]
        known = {(share(r["accuracy_mean"]), share(r["accuracy_std"])) for r in rows if r["method"] == method}
        for mean, spread in PERCENT.findall(row[column]):
            assert (mean, spread) in known, (row, known)
            checked += 1
    assert checked > 8


def test_attacks_of_the_readme_are_on_the_board() -> None:
    rows, checked = board("digits"), 0
    for row in tables(ROOT / "README.md", "### Results so far"):
        method = re.split(r"[,\s]", row["method, options"])[0]
        values = [part.strip() for part in row["attacked on digits: gmi / mi-face / ami"].split("/")]
        for attack, value in zip(("gmi", "mi-face", "ami"), values, strict=bool(values[0])):
            mine = [r for r in rows if (r["method"], r["attack"]) == (method, attack) and r["attack_accuracy"]]
            if value not in ("", "-"):
                assert value in {f"{100 * float(r['attack_accuracy']):.0f}" for r in mine}, (row, attack)
                checked += 1
    assert checked > 20


@pytest.mark.parametrize(("heading", "name"), [("### Digits", "digits"), ("### MNIST", "mnist")])
def test_the_matrix_of_attacks_is_what_the_records_say(heading: str, name: str, records: list[Record]) -> None:
    columns = {
        "teacher": "teacher_attack_accuracy",
        "random net": "random_attack_accuracy",
        "student: dpsd, data": "attack_accuracy",
        "student: dpsd, label": "attack_accuracy",
        "no-defence": "attack_accuracy",
        "AUC teacher": "teacher_auc",
        "AUC random net": "random_auc",
        "AUC dpsd, data": "auc",
        "AUC dpsd, label": "auc",
    }
    checked = 0
    for row in tables(ROOT / "docs" / "attacks.md", heading):
        attack = row["attack"].strip("`")
        mine = [
            r for r in records if leaderboard.dataset(r) == name and (r.spec["attack"] or {}).get("attack") == attack
        ]
        for column in columns.keys() & row.keys():
            found = [value for r in mine if (value := r.metrics.get(columns[column])) is not None]
            known = {f"{value:.3f}" if "AUC" in column else f"{100 * value:.1f}" for value in found}
            number = row[column].split()[0] if row[column] else ""
            if number:
                assert number in known, (row, column, known)
                checked += 1
    assert checked > 40
