"""`bench leaderboard`: show, publish and check boards."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli import paths
from bench.errors import BadOption, BenchError, NotFound, disk_is_full
from bench.progress import Screen, complain, out, plain_text, tell

if TYPE_CHECKING:
    from bench.boards.attacked import Attacked
    from bench.boards.tables import Board, ReleaseRow

HELP = "show the boards, publish records, check the committed CSV files"
DESCRIPTION = (
    "Without options: print the releases on the boards of the runs in --out. With --publish: copy runs to boards of "
    "your own, apart from the published boards of this project. "
    "Ranks are only meaningful inside one unit, tier, split and data set."
)
WIDTH = 120
"""Width of a line that a table may use."""
COLUMNS = {"release": 30, "teacher": 8, "accuracy": 21, "epsilon": 21, "nats ≤": 6, "seeds": 5, "flags": 14}
"""Columns in the terminal and their minimum widths."""
ATTACKS = {"release": 40, "attack on the student": 60}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench leaderboard`."""
    parser.add_argument("--dataset", metavar="NAME", help="one board only")
    parser.add_argument("--attacks", action="store_true", help="print what attacks on each release achieved, too")
    parser.add_argument(
        "--out", type=paths.named, default=Path("runs"), metavar="DIR", help="where your runs are (default runs)"
    )
    parser.add_argument(
        "--boards",
        type=paths.named,
        metavar="DIR",
        help="folder of boards to publish to (default boards), or to check (default leaderboards)",
    )
    parser.add_argument(
        "--publish",
        nargs="*",
        type=paths.named,
        metavar="RUN",
        help="copy these runs' records (none: those there already) into --boards and rebuild its tables",
    )
    parser.add_argument(
        "--check", action="store_true", help="fail unless every committed CSV is exactly what its records give"
    )


def execute(given: argparse.Namespace) -> int:
    """Show, publish or check. Returns the exit status."""
    if given.check and given.publish is not None:
        raise BadOption("--check changes nothing and --publish rebuilds the boards; give one of them")
    if given.dataset is not None and (given.check or given.publish is not None):
        raise BadOption(f"--dataset {given.dataset}: --check and --publish look at all boards; leave it out")
    if given.attacks and (given.check or given.publish is not None):
        raise BadOption("--attacks is for printing boards; leave it out with --check and --publish")
    if given.publish is not None or given.check:
        from bench.boards.records import OWN, PUBLISHED

        if given.check:
            return _check(given.boards or PUBLISHED)
        return _publish(given.boards or OWN, given.publish)
    return _show(given.out, given.dataset, given.attacks)


def _show(out: Path, dataset: str | None, with_attacks: bool) -> int:
    """Print the boards of a folder of runs; boards of an older version are rebuilt from the records first."""
    from bench.boards.tables import RELEASES, read_boards

    folder = out / "leaderboards"
    for older in sorted(folder.glob("*.csv")):
        if not (folder / RELEASES / older.name).exists():
            from bench.boards.publish import refresh

            refresh(out, older.stem)
    found = [path.stem for path in (folder / RELEASES).glob("*.csv") if dataset in (None, path.stem)]
    if not found:
        which = f"for data set '{dataset}' " if dataset else ""
        raise NotFound(
            f"no board {which}in {folder}; make one with `bench run --method dpsd --attack gmi`, or give --out DIR"
        )
    for board in read_boards(folder, found):
        _print(board, folder / RELEASES / f"{board.dataset}.csv", with_attacks)
    return 0


def _publish(boards: Path, runs: list[Path]) -> int:
    from bench.boards.publish import publish

    if not runs:
        expect_boards(boards)
    try:
        written = publish(boards, runs)
    except (ValueError, OSError) as error:
        if disk_is_full(error):
            raise
        raise BenchError(f"--boards {boards}: {error}; repair or remove it, or name another directory") from None
    for path in written:
        out.print(f"wrote {path}", markup=False)
    return 0


def expect_boards(boards: Path) -> None:
    """Raise BenchError unless a directory of boards exists."""
    if not boards.is_dir():
        raise NotFound(
            f"--boards {boards}: no such directory; run from the project's directory or give its leaderboards/"
        )


def _check(boards: Path) -> int:
    from bench.boards.publish import differences
    from bench.boards.records import has_records

    expect_boards(boards)
    if not any(boards.glob("*/*.csv")) and not has_records(boards):
        raise NotFound(f"--boards {boards}: neither boards nor records there to check")
    try:
        lines = differences(boards)
    except (ValueError, OSError) as error:
        raise BenchError(f"--boards {boards}: {error}; repair or remove it") from None
    for line in lines:
        complain(line)
    tell(
        f"the boards in {boards} are what their records give"
        if not lines
        else f"run `bench leaderboard --publish --boards {boards}` to rebuild them"
    )
    return 1 if lines else 0


def _print(board: Board, path: Path, with_attacks: bool) -> None:
    """Print the releases of a board, a table for each tier and split, with their attacks if wanted."""
    from bench.boards.attacked import attacks

    on = attacks(board) if with_attacks else {}
    for (tier, split), rows in groupby(board.releases, key=lambda row: (row.tier, row.split)):
        shown = list(rows)
        _table(f"{board.dataset}, tier {tier}, split {split}  ({path})", COLUMNS, map(_cells, shown))
        lines = [((_name(row),), (_attack(each),)) for row in shown for each in on.get(row.release, ())]
        if lines:
            _table("attacks on these releases", ATTACKS, lines)


def _table(title: str, widths: Mapping[str, int], rows: Iterable[Sequence[Sequence[str]]]) -> None:
    """Print a table whose cells have several lines."""
    from rich.table import Table

    table = Table(title=plain_text(title), title_justify="left", box=None, header_style="bold")
    for name, width in widths.items():
        table.add_column(name, min_width=width, overflow="fold")
    for cells in rows:
        table.add_row(*(plain_text(*lines) for lines in cells))
    Screen(width=WIDTH, highlight=False, emoji=False).print(table)


def _name(row: ReleaseRow) -> str:
    from bench.boards.tables import read_options
    from bench.storage.options import described

    return f"{row.method} ({row.variant}) {described(read_options(row.options))}".strip()


def _cells(row: ReleaseRow) -> list[tuple[str, ...]]:
    """Format a release for the terminal, one cell per column of `COLUMNS`."""
    accuracy = "-" if row.accuracy is None else f"{row.accuracy:.4f}"
    if row.accuracy_low is not None and row.accuracy_high is not None:
        accuracy += f" [{row.accuracy_low:.3f}, {row.accuracy_high:.3f}]"
    claimed, accounted, lower = row.epsilon_claimed, row.epsilon_accounted, row.epsilon_lower
    epsilons = [] if claimed is None else [f"claimed {_number(claimed)} per {row.claimed_unit}"]
    epsilons += [] if accounted is None else [f"accounted {_number(accounted)} per {row.unit}"]
    epsilons += [] if lower is None else [f"at least {_number(lower)} per example"]
    nats = "-" if row.information is None else _number(row.information)
    flags = row.flags.split() or ["-"]
    return [
        (_name(row),),
        (row.teacher,),
        (accuracy,),
        (*(epsilons or ["-"]),),
        (nats,),
        (row.seeds or "-",),
        (*flags,),
    ]


def _attack(attacked: Attacked) -> str:
    """Format an attack for the terminal, with its success on an untrained network."""
    metric = "attack_accuracy" if "attack_accuracy" in attacked.rows else "auc"
    row = attacked.rows.get(metric)
    baseline = "" if row is None or row.untrained is None else f"; untrained network {row.untrained:.3f}"
    return f"{attacked}{baseline}"


def _number(value: float) -> str:
    return f"{value:.4g}".replace("inf", "infinite")
