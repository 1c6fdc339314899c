"""Boards and results from one wide row per evaluation, a mapping of columns; missing cells are empty."""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.boards import Board
from bench.boards.flags import pretrained_flag
from bench.boards.publish import _write
from bench.boards.results import Result, results
from bench.boards.tables import AttackRow, ReleaseRow, RunRow, columns
from bench.report.columns import ALL

NEWER = 99
"""A version that no installed plug-in has reached."""
OF_RELEASE = ("tier", "split", "method", "variant", "version", "teacher", "student", "delta", "unit")


def boards_of(rows: Iterable[dict[str, Any]], dataset: str = "mnist", whose: str = "") -> list[Board]:
    """The boards of wide rows, a board for each of their data sets.

    Args:
        dataset: of rows that name none.
    """
    named: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        plain = {key: None if value == "" or value != value else value for key, value in row.items()}
        named[str(row.get("dataset") or dataset)].append(plain)
    return [_board(name, of, whose) for name, of in named.items()]


def results_of(*rows: dict[str, Any], dataset: str = "mnist") -> list[Result]:
    """The results of wide rows, in the order of the rows within one board."""
    made = {result.runs[0].evaluation: result for board in boards_of(rows, dataset) for result in results(board)}
    return sorted(made.values(), key=lambda result: int(result.runs[0].evaluation.removeprefix("e")))


def write_boards(folder: Path, rows: Iterable[dict[str, Any]], dataset: str = "mnist") -> Path:
    """Write the tables of wide rows into a folder of boards."""
    for board in boards_of(rows, dataset):
        _write(folder, board)
    return folder


def spoil(path: Path, column: str, text: str) -> None:
    """Put another text into the first row of a table's column."""
    with path.open(newline="", encoding="utf-8") as stream:
        heads, first, *others = csv.reader(stream)
    first[heads.index(column)] = text
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([heads, first, *others])


def _board(name: str, rows: list[dict[str, Any]], whose: str) -> Board:
    groups: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for number, row in enumerate(rows):
        is_coarse = "float32-noise" in _text(row, "flags")
        weights = pretrained_flag(_text(row, "flags").split())
        groups[(*(row.get(key) for key in OF_RELEASE), _options(row, False), is_coarse, weights)].append((number, row))
    board = Board(name, [], [], [], whose)
    for key, (_, *_, options, _, _) in zip(range(len(groups)), groups, strict=True):
        of = list(groups.values())[key]
        first = min(of, key=lambda each: (-_finished(each[1]), bool(each[1].get("attack")), each[0]))
        board.releases.append(_release(name, f"r{key}", first[1], options, [row for _, row in of]))
        for number, row in of:
            _add(board, f"r{key}", f"e{number}", row, number == first[0])
    return board


def _release(name: str, key: str, row: dict[str, Any], options: str, rows: list[dict[str, Any]]) -> ReleaseRow:
    lower = [float(each["epsilon_audited"]) for each in rows if each.get("epsilon_audited") is not None]
    return ReleaseRow(
        key, _text(row, "tier"), _text(row, "split"), _text(row, "method"), _text(row, "variant"),
        NEWER if row.get("version") is None else int(row["version"]), _text(row, "teacher"), _text(row, "student"),
        options, _number(row, "epsilon_claimed"), _text(row, "claim_unit"), _number(row, "epsilon_accounted"),
        _text(row, "unit"), _text(row, "relation"), _number(row, "delta"), max(lower, default=None),
        _number(row, "information"), _number(row, "accuracy_mean"), None, None, _text(row, "seeds"),
        " ".join(sorted({flag for each in rows for flag in _text(each, "flags").split()})),
        dataset=name,
    )  # fmt: skip


def _add(board: Board, release: str, evaluation: str, row: dict[str, Any], counted: bool) -> None:
    """Add an evaluation: its runs, and a row of attacks for each of its numbers."""
    seeds, finished = _text(row, "seeds").split() or ["0"], _finished(row)
    hashes = _text(row, "runs").split()
    spread = (_number(row, "accuracy_std") or 0.0) * ((finished - 1) / 2) ** 0.5 if finished > 1 else 0.0
    for number, seed in enumerate(seeds):
        done = number < finished
        accuracy = _number(row, "accuracy_mean") if done else None
        if accuracy is not None:
            accuracy += {0: spread, 1: -spread}.get(number, 0.0)
        name = hashes[number] if number < len(hashes) else f"{evaluation}-{seed}"
        seconds, device = _number(row, "seconds"), _text(row, "device")
        status = "ok" if done else "failed"
        board.runs.append(RunRow(
            name, release, evaluation, "yes" if counted else "", int(seed), status, accuracy,
            seconds if done else None, device if done else "", _text(row, "flags"), dataset=board.dataset,
        ))  # fmt: skip
    prefixes = {"value": "", "teacher": "teacher_"}
    numbers = {
        prefixes[column.part] + column.metric: _number(row, column.key)
        for column in ALL
        if column.metric and column.part in prefixes
    }
    named = ("attack", "attack_variant", "access", "power")
    attack, variant, access, power = (_text(row, key) for key in named)
    own = {"retrieval_accuracy": "attack_accuracy", "retrieval_judge_accuracy": "judge_accuracy"}

    def add(metric: str, value: float | None, **more: Any) -> None:
        of = (attack, variant, NEWER, access, _options(row, True)) if metric not in WITHOUT else ("", "", None, "", "")
        strong = power if metric not in WITHOUT else ""
        given = {"deviation": None, "teacher": None, "untrained": None, "public_images": None} | more
        board.attacks.append(AttackRow(
            release, evaluation, *of, metric, value, None, None, *given.values(), strong, "", _text(row, "seeds"),
            dataset=board.dataset,
        ))  # fmt: skip

    add("accuracy", numbers["accuracy"], deviation=_number(row, "accuracy_std"), teacher=numbers["teacher_accuracy"])
    if row.get("epsilon_audited") is not None:
        add("epsilon_lower", _number(row, "epsilon_audited"), teacher=_number(row, "audited_teacher"))
    if not counted:
        add("epsilon_claimed", _number(row, "epsilon_claimed"))
    scores = {name: value for name, value in numbers.items() if value is not None and name not in WITHOUT}
    for name, value in scores.items():
        if not name.startswith("teacher_"):
            public = next((scores.get(mine) for mine, whose in own.items() if whose == name), None)
            add(name, value, teacher=scores.get(f"teacher_{name}"), public_images=public)
    if attack and not any(not name.startswith("teacher_") for name in scores):
        add("", None)


WITHOUT = {"accuracy", "epsilon_lower", "epsilon_lower_null", "epsilon_lower_ceiling", "epsilon_claimed"}


def _finished(row: dict[str, Any]) -> int:
    return len(_text(row, "seeds").split() or ["0"]) - int(row.get("failed") or 0)


def _options(row: dict[str, Any], of_attack: bool) -> str:
    given = row.get("options")
    if given is None:
        return ""
    held = {name: of for name, of in json.loads(given).items() if of and (name in ("attack", "evaluator")) == of_attack}
    return json.dumps(held, sort_keys=True) if held else ""


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value)


def _number(row: dict[str, Any], key: str) -> float | None:
    value = row.get(key)
    return None if value is None else float(value)


def heads(kind: type[Any]) -> str:
    """The first line of a table's file."""
    return ",".join(columns(kind)) + "\n"


def cells(method: str, **more: Any) -> dict[str, Any]:
    """A row of a board; fields that are not given are empty, as in a real one."""
    usual = {
        "tier": "quick", "split": "iid", "variant": "printed", "kind": "methods", "teacher": "resnet18",
        "student": "datalens",
        "accuracy_mean": 0.95, "epsilon_claimed": 10.0, "claim_unit": "query", "unit": "example",
        "epsilon_accounted": "inf", "relation": "add-or-remove", "delta": 1e-5, "seeds": "0 1", "failed": 0,
        "seconds": 12.3, "device": "cpu",
    }  # fmt: skip
    return usual | {"method": method} | more


def proved(method: str = "pate", epsilon: float | str = 2.0, accuracy: float = 0.93, **more: Any) -> dict[str, Any]:
    """A row with an accounted epsilon and no claim."""
    nothing = {"epsilon_claimed": "", "claim_unit": ""}
    return cells(method, **nothing | {"epsilon_accounted": epsilon, "accuracy_mean": accuracy} | more)


def execute(module: ModuleType, *arguments: object) -> int:
    """Run a command of a module with arguments."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    module.add_arguments(parser)
    return int(module.execute(parser.parse_args([str(a) for a in arguments])))
