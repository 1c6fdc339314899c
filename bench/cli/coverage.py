"""`bench leaderboard --coverage` and `--best`: attacks on recommended releases, and the best release of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import unknown
from bench.progress import Screen, out, plain_text, print_line

if TYPE_CHECKING:
    from bench.boards.coverage import AttackKind, Cell, CoveredRelease
    from bench.boards.tables import Board

WIDTH = 180
"""Smallest width of the tables."""
INVERSION = "pca-mi"
"""Inversion that needs no trained generator: minutes on two cores."""


def show_coverage(folder: Path | None, dataset: str | None) -> int:
    """Print a table for each data set, tier and split, and the reasons of its cells below it. Returns the exit status.

    Raises:
        NotFound: no board in the folder.
        UnknownName: no board of the data set.
    """
    from bench.boards.coverage import EXPLAINED

    for place, found in groupby(_read(folder, dataset), key=lambda each: each.release.place):
        _print_table(place, list(found))
    print_line("value / baseline without the target; no power: the attack fails on the unprotected teacher too")
    for kind, words in EXPLAINED.items():
        print_line(f"  {kind:<10} {words}")
    return 0


def show_missing_commands(folder: Path | None, dataset: str | None) -> int:
    """Print a command for each missing attack: the release with seed 0, and the first attack of the kind. Returns the
    exit status.

    Raises:
        NotFound: no board in the folder.
        UnknownName: no board of the data set.
    """
    from bench.boards.coverage import State

    for each in _read(folder, dataset):
        for cell in each.cells:
            if cell.state is State.MISSING:
                print_line(_command(each, cell.kind))
    return 0


def show_best(folder: Path | None, dataset: str | None) -> int:
    """Print the best release of each kind within each epsilon. Returns the exit status.

    Raises:
        NotFound: no board in the folder.
        UnknownName: no board of the data set.
    """
    from rich.table import Table

    from bench.boards.best import best_releases

    table = Table(box=None, header_style="bold")
    for name in ("data set", "kind", "within", "accuracy", "release", "attacks: value / baseline without it"):
        table.add_column(name, overflow="fold")
    for board in _boards(folder, dataset):
        for each in best_releases(board):
            accuracy = f"{100 * (each.release.accuracy or 0.0):.1f} %"
            words = (board.dataset, each.kind, f"{each.limit:g}", accuracy, each.release.name, each.attacks)
            table.add_row(*map(plain_text, words))
    Screen(width=max(out.width, WIDTH), highlight=False, emoji=False).print(table)
    return 0


def _read(folder: Path | None, dataset: str | None) -> Iterator[CoveredRelease]:
    """Yield the recommended releases of one data set, or of all."""
    from bench.boards.gaps import covered, read_gaps
    from bench.boards.records import boards_folder

    gaps = read_gaps(boards_folder(folder)) or []
    for board in _boards(folder, dataset):
        yield from covered(board, gaps)


def _boards(folder: Path | None, dataset: str | None) -> list[Board]:
    """Return the board of one data set, or all. Raises UnknownName for a data set without a board."""
    from bench.boards.records import boards_folder
    from bench.boards.tables import data_sets, read_boards

    boards = boards_folder(folder)
    known = data_sets(boards)
    if dataset is not None and dataset not in known:
        raise unknown("leaderboard", dataset, known)
    return read_boards(boards, None if dataset is None else [dataset])


def _command(found: CoveredRelease, kind: AttackKind) -> str:
    """Return the command that runs a kind of attack on a release with seed 0."""
    from bench.boards.coverage import MEMBERSHIP, AttackKind
    from bench.boards.results import release_command
    from bench.boards.tables import read_options
    from bench.data import typed

    row = found.release.row
    command = release_command(row, typed(row.dataset), {"epsilon": 10, **read_options(row.options)["budget"]})
    if kind is AttackKind.AUDIT:  # its split is always iid
        return command.replace("bench run", "bench audit release", 1) + " --seeds 0"
    return f"{command} --seeds 0 --attack {INVERSION if kind is AttackKind.INVERSION else MEMBERSHIP[kind][0]}"


def _print_table(place: tuple[str, str, str], found: list[CoveredRelease]) -> None:
    """Print the releases of a place, a column for each kind of attack, and the numbered reasons."""
    from rich.table import Table

    from bench.boards.coverage import AttackKind, numbered_reasons

    dataset, tier, split = place
    reasons = numbered_reasons(found)
    title = plain_text(f"{dataset}, tier {tier}, split {split}")
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for name in ("release", "eps", *AttackKind):
        table.add_column(name, overflow="fold")
    for each in found:
        epsilon = f"{each.release.epsilon:.3g} per {each.release.row.unit}"
        table.add_row(*(plain_text(text) for text in (each.release.name, epsilon, *_texts(each.cells, reasons))))
    Screen(width=max(out.width, WIDTH), highlight=False, emoji=False).print(table)
    for reason, number in reasons.items():
        print_line(f"  ({number}) {reason}")
    print_line("")


def _texts(cells: tuple[Cell, ...], reasons: Mapping[str, int]) -> list[str]:
    """Format cells, each with the number of its reason."""
    return [f"{cell} ({reasons[cell.reason]})" if cell.reason else str(cell) for cell in cells]
