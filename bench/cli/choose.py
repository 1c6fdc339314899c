"""`bench choose`: the releases of the boards that keep a user's limits, by what is proved of them."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BenchError
from bench.progress import out

if TYPE_CHECKING:
    from bench.leaderboard.selection import Candidate, Choice, Constraints

HELP = "which method to take for a privacy budget and an accuracy, from the boards"
DESCRIPTION = (
    "Lists the rows of the boards whose accounted epsilon of one UNIT is finite and at most --max-epsilon and whose "
    "accuracy is at least --min-accuracy, best first within a data set, tier and split, with what they cost and how "
    "attacks fared; then every other row with the reason against it. Claims of the papers play no part."
)
UNITS = ("example", "label", "query", "client")
WIDTH = 200
ATTACKS = "attacks on the student"
WHOLE = ("over seeds", "eps accounted", ATTACKS)
"""Columns whose lines are not broken."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench choose`."""
    parser.add_argument("--unit", choices=UNITS, default="example", help="what is to be protected (default example)")
    parser.add_argument(
        "--max-epsilon", type=float, required=True, metavar="E", help="largest accounted epsilon (required)"
    )
    parser.add_argument(
        "--min-accuracy", type=float, default=0.0, metavar="A", help="least accuracy, in [0, 1] (default 0)"
    )
    parser.add_argument("--dataset", metavar="NAME", help="one board only")
    parser.add_argument(
        "--boards", type=Path, metavar="DIR", help="the boards (default leaderboards, else the installed ones)"
    )


def execute(given: argparse.Namespace) -> int:
    """Choose and show. Returns the exit status, 0 also where nothing qualifies."""
    if not (given.max_epsilon > 0 and math.isfinite(given.max_epsilon)):
        raise BenchError(f"--max-epsilon {given.max_epsilon}: expected a finite number above 0")
    if not 0 <= given.min_accuracy <= 1:
        raise BenchError(f"--min-accuracy {given.min_accuracy}: expected a fraction in [0, 1], as in 0.9")
    from bench.leaderboard import reported
    from bench.leaderboard.selection import Constraints, choose

    folder = reported.boards_folder(given.boards)
    rows = reported.boards(folder)
    known = sorted({row["dataset"] for row in rows})
    if given.dataset is not None and given.dataset not in known:
        raise BenchError(f"--dataset {given.dataset}: no such board in {folder}; it has {', '.join(known)}")
    limits = Constraints(given.unit, given.max_epsilon, given.min_accuracy)
    _show(choose([row for row in rows if given.dataset in (None, row["dataset"])], limits), limits)
    return 0


def _show(choice: Choice, limits: Constraints) -> None:
    asked = f"epsilon of at most {limits.epsilon:g} per {limits.unit}, accuracy of at least {limits.accuracy:g}"
    if not choice.taken:
        out.print(f"no row of the boards has a proved {asked}", markup=False, soft_wrap=True)
        for line in choice.nearest or [f"no row has a finite accounted epsilon per {limits.unit}"]:
            out.print(f"nearest: {line}" if choice.nearest else line, markup=False, soft_wrap=True)
    for place, found in choice.taken.items():
        _table(place, found)
        out.print(_why(found, limits), markup=False, soft_wrap=True)
    if choice.excluded:
        out.print("\nexcluded")
    for candidate, reason in choice.excluded:
        where = " ".join(candidate.place)
        out.print(f"  {where}  {candidate.name}: {reason}", markup=False, soft_wrap=True)


def _why(found: list[Candidate], limits: Constraints) -> str:
    """What to take of a place's candidates, and the reason."""
    most = f"the most accurate of {len(found)}" if len(found) > 1 else "the only row"
    return f"take {found[0].name}: {most} whose accounted epsilon per {limits.unit} is at most {limits.epsilon:g}\n"


def _table(place: tuple[str, str, str], found: list[Candidate]) -> None:
    from rich.console import Console
    from rich.table import Table

    dataset, tier, split = place
    table = Table(title=f"{dataset}, tier {tier}, split {split}", title_justify="left", box=None, header_style="bold")
    table.add_column("take", min_width=18)
    for column in ("accuracy", "over seeds", "eps accounted", "delta", "seconds", "device", ATTACKS, "flags"):
        table.add_column(column, no_wrap=column in WHOLE, overflow="fold")
    for candidate in found:
        row = candidate.row
        table.add_row(
            candidate.name,
            f"{candidate.accuracy:.4f}",
            candidate.spread,
            f"{candidate.epsilon:.4g} per {row['unit']}\n{row['relation']}",
            str(row["delta"]),
            f"{float(row['seconds']):.0f}" if row["seconds"] else "-",
            str(row["device"]) or "-",
            "\n".join(candidate.attacks) or "not attacked",
            "\n".join(sorted(candidate.flags)) or "-",
        )
    Console(width=max(out.width, WIDTH), highlight=False, markup=False).print(table)
