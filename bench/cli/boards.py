"""`bench leaderboard`: show, publish and check boards; and `bench records`, which converts older records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.parsing import Command, file_path
from bench.core.epsilon import format_epsilon
from bench.errors import BadOption, BenchError, NotFound, disk_is_full
from bench.progress import Screen, plain_text, print_error, print_line

if TYPE_CHECKING:
    from bench.boards.tables import ReleaseRow

WIDTH = 120
"""Width of the tables."""
COLUMNS = {"release": 30, "teacher": 8, "accuracy": 21, "epsilon": 21, "nats ≤": 6, "seeds": 5, "flags": 14}
"""Columns in the terminal and their minimum widths."""
ATTACKS = {"release": 40, "attack on the student": 60}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench leaderboard`."""
    parser.add_argument("--dataset", metavar="NAME", help="show only the board of this data set")
    parser.add_argument("--attacks", action="store_true", help="also print the results of attacks on each release")
    parser.add_argument(
        "--out", type=file_path, default=Path("runs"), metavar="DIR", help="folder of your runs (default runs)"
    )
    parser.add_argument(
        "--boards",
        type=file_path,
        metavar="DIR",
        help="boards to publish to (default boards), to check (default leaderboards), or whose coverage to print "
        "(default leaderboards, else the installed ones)",
    )
    parser.add_argument(
        "--publish",
        nargs="*",
        type=file_path,
        metavar="RUN",
        help="copy the records of these runs into --boards and rebuild its tables; without RUN only rebuild them",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail unless every CSV file is exactly the one computed from the records, and every attack that applies "
        "to a recommended release ran or is a known gap",
    )
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="print which attacks ran on the releases that `bench choose` recommends, and why the others did not",
    )
    parser.add_argument(
        "--best",
        action="store_true",
        help="print the most accurate release of each kind within an accounted epsilon of 1, 3, 8 and 10",
    )
    parser.add_argument(
        "--commands",
        action="store_true",
        help="with --coverage: print the commands that run the missing attacks, one line each, and nothing else",
    )
    parser.add_argument(
        "--archive",
        type=file_path,
        metavar="FILE",
        help="check the boards, and write them to this new zip file with schemas, metadata for Zenodo and checksums",
    )


def execute(given: argparse.Namespace) -> int:
    """Show, publish or check. Returns the exit status."""
    if given.check and given.publish is not None:
        raise BadOption("--check only compares and --publish rebuilds the boards; give one of them")
    if given.dataset is not None and (given.check or given.publish is not None):
        raise BadOption(f"--dataset {given.dataset}: --check and --publish process all boards; leave it out")
    if given.attacks and (given.check or given.publish is not None):
        raise BadOption("--attacks is for printing boards; leave it out with --check and --publish")
    if given.coverage or given.best:
        name = "--coverage" if given.coverage else "--best"
        if given.check or given.publish is not None or given.attacks or (given.coverage and given.best):
            raise BadOption(f"{name} is for printing; leave it out with --check, --publish, --attacks and others")
    if given.archive is not None:
        printed = given.dataset or given.attacks or given.coverage or given.best or given.commands
        if printed or given.check or given.publish is not None:
            raise BadOption(f"--archive {given.archive}: writes all boards; leave out the other options but --boards")
        return archive_boards(given.archive, given.boards)
    if given.commands and not given.coverage:
        raise BadOption("--commands prints the commands of attacks that --coverage misses; give --coverage too")
    if given.coverage or given.best:
        from bench.cli import coverage

        show = coverage.show_missing_commands if given.commands else coverage.show_coverage
        return (coverage.show_best if given.best else show)(given.boards, given.dataset)
    if given.publish is None and not given.check:
        return show_boards(given.out, given.dataset, given.attacks)
    from bench.boards.publish import publish
    from bench.boards.records import OWN, PUBLISHED

    if given.check:
        return check_boards(given.boards or PUBLISHED)
    boards = given.boards or OWN
    if not given.publish:
        expect_boards(boards)
    try:
        written = publish(boards, given.publish)
    except (ValueError, OSError) as error:
        if disk_is_full(error):
            raise
        raise BenchError(f"--boards {boards}: {error}; repair or remove it, or give another directory") from None
    for path in written:
        print_line(f"wrote {path}")
    return 0


def show_boards(out: Path, dataset: str | None, with_attacks: bool) -> int:
    """Print the boards of a folder of runs; boards of an older version are rebuilt from the records first."""
    from bench.boards.attacked import attacks
    from bench.boards.reproduction import CLAIMS
    from bench.boards.tables import RELEASES, read_boards

    folder = out / "leaderboards"
    for older in sorted(set(folder.glob("*.csv")) - {folder / CLAIMS}):
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
        by_release = attacks(board) if with_attacks else {}
        for (tier, split), rows in groupby(board.releases, key=lambda row: (row.tier, row.split)):
            shown, path = list(rows), folder / RELEASES / f"{board.dataset}.csv"
            title = f"{board.dataset}, tier {tier}, split {split}  ({path})"
            _print_table(title, COLUMNS, map(_cells, shown))
            lines = []
            for name, attack in ((_name(row), attack) for row in shown for attack in by_release.get(row.release, ())):
                scored = attack.rows.get("attack_accuracy" if "attack_accuracy" in attack.rows else "auc")
                untrained = None if scored is None else scored.untrained
                baseline = "" if untrained is None else f"; untrained network {untrained:.3f}"
                lines.append(((name,), (f"{attack}{baseline}",)))
            if lines:
                _print_table("attacks on these releases", ATTACKS, lines)
    return 0


def expect_boards(boards: Path) -> None:
    """Raise BenchError unless a directory of boards exists."""
    if not boards.is_dir():
        raise NotFound(
            f"--boards {boards}: no such directory; run the command in the project's directory, or give its folder "
            "leaderboards"
        )


def check_boards(boards: Path) -> int:
    """Compare every table with the records; print the differences. Returns the exit status."""
    from bench.boards.publish import check
    from bench.boards.records import has_records
    from bench.workers import cores

    expect_boards(boards)
    if not any(boards.glob("*/*.csv")) and not has_records(boards):
        raise NotFound(f"--boards {boards}: this folder has neither boards nor records to check")
    try:
        found = check(boards, cores() if sys.platform == "linux" else 1)
    except (ValueError, OSError) as error:
        raise BenchError(f"--boards {boards}: {error}; repair or remove it") from None
    for line in (*found.differences, *found.uncovered):
        print_error(line)
    if found.differences:
        print_line(f"run `bench leaderboard --publish --boards {boards}` to rebuild them")
    if found.uncovered:
        print_line(f"`bench leaderboard --coverage --boards {boards}` prints the attacks on all recommended releases")
    if not (found.differences or found.uncovered):
        print_line(f"the boards in {boards} agree with their records")
    return 1 if found.differences or found.uncovered else 0


def archive_boards(path: Path, boards: Path | None) -> int:
    """Check the boards and write their archive. Returns the exit status."""
    from bench.boards.archive import write_archive
    from bench.boards.records import PUBLISHED

    folder = boards or PUBLISHED
    status = check_boards(folder)
    if status:
        return status
    found = write_archive(path, folder)
    print_line(f"wrote {path}: {found.files} files, {found.size / 1e6:.1f} MB, sha256 {found.sha256}")
    return 0


def _print_table(title: str, widths: Mapping[str, int], rows: Iterable[Sequence[Sequence[str]]]) -> None:
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
    from bench.storage.records import described

    return f"{row.method} ({row.variant}) {described(read_options(row.options))}".strip()


def _cells(row: ReleaseRow) -> list[tuple[str, ...]]:
    """Format a release for the terminal, one cell per column of `COLUMNS`."""
    accuracy = "-" if row.accuracy is None else f"{row.accuracy:.4f}"
    if row.accuracy_low is not None and row.accuracy_high is not None:
        accuracy += f" [{row.accuracy_low:.3f}, {row.accuracy_high:.3f}]"
    claimed, accounted, lower = row.epsilon_claimed, row.epsilon_accounted, row.epsilon_lower
    epsilons = [] if claimed is None else [f"claimed {format_epsilon(claimed)} per {row.claimed_unit}"]
    epsilons += [] if accounted is None else [f"accounted {format_epsilon(accounted)} per {row.unit}"]
    epsilons += [] if lower is None else [f"at least {format_epsilon(lower)} per example"]
    nats = "-" if row.information is None else format_epsilon(row.information)
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


def add_records_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench records`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    migrate = actions.add_parser(
        "migrate", help="convert a folder", description=RECORDS.description, allow_abbrev=False
    )
    migrate.add_argument("--debug", action="store_true", help="print the traceback of an error")
    migrate.add_argument("folder", type=file_path, metavar="FOLDER", help="a folder of boards, such as leaderboards")
    migrate.set_defaults(parser=migrate)


def migrate_records(given: argparse.Namespace) -> int:
    """Convert the records of a folder of boards. Returns the exit status."""
    from bench.boards.records import migrate

    folder: Path = given.folder
    try:
        records, audits = migrate(folder)
    except (ValueError, OSError) as error:
        if isinstance(error, BenchError) or disk_is_full(error):
            raise
        raise BenchError(f"{folder}: {error}; nothing was changed: repair or remove it") from None
    print_line(f"{folder}: converted {records} records and {audits} audits into lines")
    return 0


LEADERBOARD = Command(
    "Without options: print the releases on the boards of the runs in --out. With --publish: copy runs to boards of "
    "your own, separate from the published boards of this project. Compare releases only within one unit, tier, split "
    "and data set.",
    add_arguments,
    execute,
)
RECORDS = Command(
    "Older boards have one file for each record and audit (records/HASH.json); now these are lines of one file for "
    "each data set and method. This command converts the files; converted folders are left unchanged.",
    add_records_arguments,
    migrate_records,
)
