"""`bench choose`: the releases of the boards that meet a user's limits, judged by accounted epsilon."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bench.cli import paths
from bench.interface.boards import UNITS
from bench.progress import Screen, out, plain_text

if TYPE_CHECKING:
    from bench.boards.selection import Candidate, Choice, Constraints
    from bench.boards.tables import ReleaseRow
    from bench.interface.boards import Chosen

HELP = "which method to take for a privacy budget and an accuracy, from the boards"
DESCRIPTION = (
    "Says for each data set, tier and split which release of the boards to take: the most accurate whose accounted "
    "epsilon of one UNIT is at most --max-epsilon and whose accuracy is at least --min-accuracy; where an accuracy "
    "is asked for, also the one of the least epsilon. With it: what it costs, how attacks fared, its risks, and what "
    "no one measured of it. With --all also the others that qualify, and every release that does not, with the reason. "
    "Claims of the papers play no part. Rows of your own boards are read too, and are marked as yours."
)
WIDTH = 200
MOST_LINES = 25
"""Number of lines printed without --all."""
FEW_ROWS, FEW_LINES = 5, 2
"""Without --all: rows of the table of one place, and lines of each part of the answer."""
ATTACKS = "attacks on the student"
WHOLE = ("over seeds", "eps accounted", ATTACKS)
"""Columns without line breaks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench choose`."""
    parser.add_argument("--unit", choices=UNITS, default="example", help="what is to be protected (default example)")
    parser.add_argument(
        "--max-epsilon", type=float, required=True, metavar="E", help="largest accounted epsilon (required)"
    )
    parser.add_argument(
        "--min-accuracy", type=float, default=0.0, metavar="A", help="least accuracy, in [0, 1] (default 0)"
    )
    parser.add_argument(
        "--max-delta", type=float, default=1e-4, metavar="D", help="largest delta of the account (default 1e-4)"
    )
    parser.add_argument("--dataset", metavar="NAME", help="one board only")
    parser.add_argument(
        "--boards",
        type=paths.named,
        metavar="DIR",
        help="published boards (default leaderboards, else the installed ones)",
    )
    parser.add_argument(
        "--own",
        type=paths.named,
        metavar="DIR",
        help="your own boards, read too, such as runs/leaderboards (default boards, where there is one)",
    )
    parser.add_argument(
        "--all", action="store_true", help=f"print every row and every reason (default: at most {MOST_LINES} lines)"
    )


def execute(given: argparse.Namespace) -> int:
    """Choose and print. Returns the exit status, 0 also if no release qualifies."""
    from bench.boards.selection import Constraints
    from bench.interface.boards import choose

    found = choose(
        given.max_epsilon,
        unit=given.unit,
        min_accuracy=given.min_accuracy,
        max_delta=given.max_delta,
        dataset=given.dataset,
        boards=given.boards,
        own=given.own,
        with_attacks=False,  # attacks matter only for the answers, which concern few data sets
    )
    limits = Constraints(given.unit, given.max_epsilon, given.min_accuracy, given.max_delta)
    _print(f"boards: {', '.join(found.read)}")
    if given.all:
        _show(found, limits)
    else:
        _show_briefly(found, limits, given.dataset is not None)
    return 0


def _show(chosen: Chosen, limits: Constraints) -> None:
    """Print everything: excluded rows, then the table and the answer of each place."""
    _excluded(chosen.choice, limits)
    _none(chosen.choice, limits)
    for place, taken in chosen.choice.taken.items():
        found = chosen.add_attacks(taken)
        _table(place, found)
        _answer(found, limits)


def _show_briefly(chosen: Chosen, limits: Constraints, one_dataset: bool) -> None:
    """Print at most `MOST_LINES` lines: a table, and for one data set the answer of the most accurate row's place."""
    choice = chosen.choice
    _none(choice, limits)
    places = sorted(choice.taken.values(), key=lambda found: -(found[0].accuracy or 0.0)) if one_dataset else []
    places = places or list(choice.taken.values())
    if len(places) == 1:
        shown = places[0][:FEW_ROWS]
        _brief_table(" ".join(shown[0].place), shown)
    else:
        shown = [found[0] for found in places[: FEW_ROWS if one_dataset else MOST_LINES - 6]]
        _brief_table("the most accurate of each data set, tier and split", shown)
    if len(places) == 1 or (one_dataset and places):
        _answer(chosen.add_attacks(places[0]), limits, FEW_LINES)
    elif places:
        _print("cost, attacks and risks: name a data set with --dataset")
    left = len(choice.excluded) + sum(map(len, places)) - len(shown)
    if left:
        _print(f"{left} more rows, of which {len(choice.excluded)} do not qualify: --all prints them with the reasons")


def _none(choice: Choice, limits: Constraints) -> None:
    """Print that no release qualifies, and the nearest ones."""
    asked = f"epsilon of at most {limits.epsilon:g} per {limits.unit} at a delta of at most {limits.delta:g}"
    asked += f", and an accuracy of at least {limits.accuracy:g}" if limits.accuracy else ""
    if not choice.taken:
        _print(f"no row of the boards has a proved {asked}")
        for line in choice.nearest:
            _print(line)


def _excluded(choice: Choice, limits: Constraints) -> None:
    from bench.boards.selection import objection

    if choice.excluded:
        out.print("excluded")
    for candidate in choice.excluded:
        where = " ".join(candidate.place)
        _print(f"  {where}  {candidate.name}{_yours(candidate)}: {objection(candidate, limits)}")
    out.print()


def _answer(found: list[Candidate], limits: Constraints, most_lines: int | None = None) -> None:
    """Print which candidate of a place to take, why, its cost and risks, and its missing measurements.

    Args:
        most_lines: limit for each of these parts; None = all.
    """
    from bench.boards.selection import least_epsilon, missing_measurements
    from bench.report.glossary import UNITS as PROTECTED

    best, row, lower = found[0], found[0].row, found[0].row.epsilon_lower
    most = f"the most accurate of {len(found)}" if len(found) > 1 else "the only row"
    most += f" whose accounted epsilon per {limits.unit} is at most {limits.epsilon:g}"
    lines = {
        "accuracy": [f"{best.accuracy:.4f} ({best.spread})"],
        "protects": [
            f"{PROTECTED[limits.unit]}: epsilon {best.epsilon:.4g}, delta {row.delta}, {row.relation}",
            "one release; every other one of the same records adds to it",
        ],
        "command": [_command(row)],
        "cost": [_cost(best)],
        "attacks": best.attacks or ["none was run"],
        "audited": ["no" if lower is None else f"at least {lower:.2g} per example"],
        "risks": [_risk(name) for name in sorted(best.flags)] or ["no flag"],
        "not measured": missing_measurements(best) or ["nothing is missing"],
    }
    _print(f"take {best.name}{_yours(best)}: {most}")
    least = least_epsilon(found)
    if limits.accuracy and least is not best:
        promise = f"{least.epsilon:.4g} at a delta of {least.row.delta}"
        _print(f"or {least.name}: the least epsilon, {promise}, with an accuracy of {least.accuracy:.4f}")
    for label, every_line in lines.items():
        shown = list(every_line[:most_lines])
        if more := len(every_line) - len(shown):
            shown[-1] += f"; and {more} more"
        for first, line in enumerate(shown):
            _print(f"  {'' if first else label:<13} {line}")
    out.print()


def _command(row: ReleaseRow) -> str:
    """Return the command that makes the release again, with one seed and with noise from the system's generator."""
    from bench.boards.results import release_command
    from bench.boards.tables import read_options
    from bench.config import STUDENT
    from bench.data import typed

    budget = {"epsilon": 10, **read_options(row.options)["budget"]}
    words = release_command(row, typed(row.dataset), budget)
    words += f" --student {row.student}" * (row.student != STUDENT) + f" --split {row.split}" * (row.split != "iid")
    return f"{words} --noise os"


def _risk(name: str) -> str:
    """Return a flag with its meaning; boards of other versions may have flags without one here."""
    from bench.report.glossary import flag

    try:
        return f"{name}: {flag(name)}"
    except KeyError:
        return name


def _print(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def _yours(candidate: Candidate) -> str:
    """Return the mark of rows on a user's boards."""
    return " (yours)" if candidate.whose == "yours" else ""


def _brief_table(title: str, found: list[Candidate]) -> None:
    """Print a line for each candidate, with its place if the places differ; nothing without candidates."""
    if not found:
        return
    from rich.table import Table
    from rich.text import Text

    several = len({candidate.place for candidate in found}) > 1
    table = Table(title=Text(title), title_justify="left", box=None, header_style="bold")
    for column in (
        *(("data set", "tier", "split") if several else ()),
        "take",
        "accuracy",
        "over seeds",
        "eps",
        "whose",
    ):
        table.add_column(column, no_wrap=True)
    for each in found:
        numbers = f"{each.accuracy:.4f}", each.spread, f"{each.epsilon:.4g} per {each.row.unit}"
        cells = (*(each.place if several else ()), each.name, *numbers, each.whose)
        table.add_row(*map(Text, cells))
    Screen(width=max(out.width, WIDTH), highlight=False, emoji=False).print(table)


def _cost(candidate: Candidate) -> str:
    told = [] if candidate.seconds is None else [f"{candidate.seconds:.0f} s"]
    return " ".join([*told, *([f"on {candidate.device}"] if candidate.device else [])]) or "not recorded"


def _table(place: tuple[str, str, str], found: list[Candidate]) -> None:
    from rich.table import Table

    dataset, tier, split = place
    table = Table(title=f"{dataset}, tier {tier}, split {split}", title_justify="left", box=None, header_style="bold")
    table.add_column("take", min_width=18)
    for column in ("accuracy", "over seeds", "eps accounted", "delta", "seconds", "device", ATTACKS, "flags"):
        table.add_column(column, no_wrap=column in WHOLE, overflow="fold")
    for candidate in found:
        row = candidate.row
        table.add_row(
            f"{candidate.name}{_yours(candidate)}",
            f"{candidate.accuracy:.4f}",
            candidate.spread,
            plain_text(f"{candidate.epsilon:.4g} per {row.unit}", row.relation),
            str(row.delta),
            "-" if candidate.seconds is None else f"{candidate.seconds:.0f}",
            candidate.device or "-",
            plain_text(*candidate.attacks or ["not attacked"]),
            plain_text(*sorted(candidate.flags) or ["-"]),
        )
    Screen(width=max(out.width, WIDTH), highlight=False, markup=False, emoji=False).print(table)
