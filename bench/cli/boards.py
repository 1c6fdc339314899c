"""`bench leaderboard`: show, publish and check boards."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import extensions
from bench.cli import paths
from bench.errors import BadOption, BenchError, NotFound, disk_is_full
from bench.progress import Screen, complain, out, plain_text, tell

if TYPE_CHECKING:
    from bench.boards.columns import Column
    from bench.boards.rows import Published

HELP = "show the boards, publish records, check the committed CSV files"
DESCRIPTION = (
    "Without options: print the boards of the runs in --out. With --publish: copy runs to boards of your own, apart "
    "from the published boards of this project. "
    "Ranks are only meaningful inside one unit, tier, split and data set."
)
WIDTH = 300
UNITS = {"epsilon_claimed": "claim_unit", "epsilon_accounted": "unit"}
"""An epsilon's column to that of what it protects one of, which stands in the same cell."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench leaderboard`."""
    parser.add_argument("--dataset", metavar="NAME", help="one board only")
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
        help="copy these runs' records (none: those there already) into --boards and rebuild its CSV files",
    )
    parser.add_argument(
        "--check", action="store_true", help="fail unless every committed CSV is exactly what its records give"
    )


def execute(given: argparse.Namespace) -> int:
    """Show, publish or check. Returns the exit status."""
    from bench.boards import board_files

    if given.check and given.publish is not None:
        raise BadOption("--check changes nothing and --publish rebuilds the boards; give one of them")
    if given.dataset is not None and (given.check or given.publish is not None):
        raise BadOption(f"--dataset {given.dataset}: --check and --publish look at all boards; leave it out")
    if given.publish is not None:
        return _publish(given.boards or board_files.OWN, given.publish)
    if given.check:
        return _check(given.boards or board_files.PUBLISHED)
    folder = given.out / "leaderboards"
    found = sorted(folder.glob("*.csv"))
    if given.dataset is not None:
        found = [path for path in found if path.stem == given.dataset]
    if not found:
        which = f"for data set '{given.dataset}' " if given.dataset else ""
        raise NotFound(
            f"no board {which}in {folder}; make one with `bench run --method dpsd --attack gmi`, or give --out DIR"
        )
    for path in found:
        _print(path)
    return 0


def _publish(boards: Path, runs: list[Path]) -> int:
    from bench.boards import publish

    if not runs:
        expect_boards(boards)
    try:
        written = publish(boards, runs, _published(boards))
    except (ValueError, OSError) as error:
        if disk_is_full(error):
            raise
        raise BenchError(f"--boards {boards}: {error}; repair or remove it, or name another directory") from None
    for path in written:
        out.print(f"wrote {path}", markup=False)
    return 0


def _published(boards: Path) -> Published | None:
    """What fills the columns of published numbers, in a folder that holds such numbers."""
    found = extensions.load("board columns")
    return next((found[name] for name in found if (boards / name).is_dir()), None)


def expect_boards(boards: Path) -> None:
    """Raises BenchError unless a directory of boards is there."""
    if not boards.is_dir():
        raise NotFound(
            f"--boards {boards}: no such directory; run from the project's directory or give its leaderboards/"
        )


def _check(boards: Path) -> int:
    from bench.boards import differences

    expect_boards(boards)
    if not any(boards.glob("*.csv")) and not any(boards.glob("records/*.json")):
        raise NotFound(f"--boards {boards}: neither boards nor records there to check")
    try:
        lines = differences(boards, _published(boards))
    except (ValueError, OSError) as error:
        raise BenchError(f"--boards {boards}: {error}; mend or remove it") from None
    for line in lines:
        complain(line)
    tell(
        f"the boards in {boards} are what their records give"
        if not lines
        else f"run `bench leaderboard --publish --boards {boards}` to rebuild them"
    )
    return 1 if lines else 0


def _print(path: Path) -> None:
    from rich.table import Table

    from bench.boards.board_csv import read_board
    from bench.boards.columns import ALL

    rows = read_board(path)
    table = Table(title=plain_text(f"{path.stem}  ({path})"), title_justify="left", box=None, header_style="bold")
    core = [column for column in ALL if (column.core or column.key == "tier") and column.kind != "runs"]
    shown = [column for column in core if any(row.get(column.key) for row in rows)]
    for column in shown:
        table.add_column(column.label)
    table.add_column("seeds")
    for row in rows:
        table.add_row(*[plain_text(_cell(column, row)) for column in shown], plain_text(str(row["seeds"]) or "-"))
    Screen(width=max(out.width, WIDTH), highlight=False, emoji=False).print(table)


def _cell(column: Column, row: Mapping[Any, Any]) -> str:
    text, unit = str(row[column.key]), str(row.get(UNITS.get(column.key, ""), ""))
    if text and unit:
        return f"{float(text):.4g} per {unit}".replace("inf ", "infinite ")
    if text and column.kind in ("number", "percent", "epsilon"):
        return f"{float(text):.4g}"
    return text or "-"
