"""`bench leaderboard --coverage`: which attacks ran on the releases that `bench choose` recommends."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import unknown
from bench.progress import Screen, out, plain_text, print_line

if TYPE_CHECKING:
    from bench.boards.coverage import Cell, CoveredRelease

WIDTH = 180
"""Smallest width of the tables."""


def show_coverage(folder: Path | None, dataset: str | None) -> int:
    """Print a table for each data set, tier and split, and the reasons of its cells below it. Returns the exit status.

    Raises:
        NotFound: no board in the folder.
        UnknownName: no board of the data set.
    """
    from bench.boards.coverage import EXPLAINED
    from bench.boards.gaps import covered, read_gaps
    from bench.boards.records import boards_folder
    from bench.boards.tables import data_sets, read_boards

    boards = boards_folder(folder)
    known = data_sets(boards)
    if dataset is not None and dataset not in known:
        raise unknown("leaderboard", dataset, known)
    gaps = read_gaps(boards) or []
    for board in read_boards(boards, None if dataset is None else [dataset]):
        for place, found in groupby(covered(board, gaps), key=lambda each: each.release.place):
            _print_table(place, list(found))
    print_line("value / baseline without the target; no power: the attack fails on the unprotected teacher too")
    for kind, words in EXPLAINED.items():
        print_line(f"  {kind:<10} {words}")
    return 0


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
