"""`bench choose`: the releases of the boards that meet a user's limits on accounted epsilon and accuracy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bench.cli.parsing import Command, file_path
from bench.core.epsilon import PROTECTED
from bench.interface.boards import UNITS
from bench.progress import Screen, out, plain_text, print_line

if TYPE_CHECKING:
    from bench.boards.selection import Candidate, Choice, Constraints
    from bench.boards.tables import ReleaseRow
    from bench.interface.boards import Chosen

WIDTH = 200
MOST_LINES = 25
"""Number of lines printed without --all."""
FEW_ROWS, FEW_LINES = 5, 2
"""Without --all: rows of the table of one place, and lines of each part of the recommendation."""
ATTACKS = "attacks on the student"
UNBROKEN = ("over seeds", "eps accounted", ATTACKS)
"""Columns without line breaks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench choose`."""
    parser.add_argument(
        "--unit",
        choices=UNITS,
        default="example",
        help="the data that the epsilon must protect (default example: one private record)",
    )
    parser.add_argument(
        "--max-epsilon", type=float, required=True, metavar="E", help="largest accounted epsilon (required)"
    )
    parser.add_argument(
        "--min-accuracy", type=float, default=0.0, metavar="A", help="smallest accuracy, in [0, 1] (default 0)"
    )
    parser.add_argument(
        "--max-delta", type=float, default=1e-4, metavar="D", help="largest delta of that epsilon (default 1e-4)"
    )
    parser.add_argument("--dataset", metavar="NAME", help="only the board of this data set")
    parser.add_argument(
        "--boards",
        type=file_path,
        metavar="DIR",
        help="published boards (default: the folder leaderboards, else the installed ones)",
    )
    parser.add_argument(
        "--own",
        type=file_path,
        metavar="DIR",
        help="your own boards, read too, such as runs/leaderboards (default: the folder boards, if it exists)",
    )
    parser.add_argument(
        "--all", action="store_true", help=f"print every row and every reason (default: at most {MOST_LINES} lines)"
    )


def execute(given: argparse.Namespace) -> int:
    """Choose and print. Returns the exit status, 0 also if no release qualifies."""
    from bench.boards.selection import Constraints, objection
    from bench.interface.boards import choose

    chosen = choose(
        given.max_epsilon,
        unit=given.unit,
        min_accuracy=given.min_accuracy,
        max_delta=given.max_delta,
        dataset=given.dataset,
        boards=given.boards,
        own=given.own,
        with_attacks=False,  # attacks are printed only for recommendations, which concern few data sets
    )
    limits = Constraints(given.unit, given.max_epsilon, given.min_accuracy, given.max_delta)
    print_line(f"boards: {', '.join(chosen.read)}")
    if not given.all:
        show_briefly(chosen, limits, given.dataset is not None)
        return 0
    if chosen.choice.excluded:
        print_line("excluded")
    for candidate in chosen.choice.excluded:
        print_line(f"  {' '.join(candidate.place)}  {_name(candidate)}: {objection(candidate, limits)}")
    print_line("")
    _print_if_none_qualifies(chosen.choice, limits)
    for place, taken in chosen.choice.taken.items():
        found = chosen.add_attacks(taken)
        _print_table(place, found)
        _recommend(found, limits)
    return 0


def show_briefly(chosen: Chosen, limits: Constraints, one_dataset: bool) -> None:
    """Print at most `MOST_LINES` lines: a table, and for one data set the recommendation of its most accurate place."""
    choice = chosen.choice
    _print_if_none_qualifies(choice, limits)
    places = sorted(choice.taken.values(), key=lambda found: -(found[0].accuracy or 0.0)) if one_dataset else []
    places = places or list(choice.taken.values())
    if len(places) == 1:
        shown = places[0][:FEW_ROWS]
        _print_brief_table(" ".join(shown[0].place), shown)
    else:
        shown = [found[0] for found in places[: FEW_ROWS if one_dataset else MOST_LINES - 6]]
        _print_brief_table("the most accurate of each data set, tier and split", shown)
    if len(places) == 1 or (one_dataset and places):
        _recommend(chosen.add_attacks(places[0]), limits, FEW_LINES)
    elif places:
        print_line("for cost, attacks and risks give a data set with --dataset")
    left = len(choice.excluded) + sum(map(len, places)) - len(shown)
    if left:
        print_line(f"{left} more rows, of which {len(choice.excluded)} do not qualify: --all prints all with reasons")


def _print_if_none_qualifies(choice: Choice, limits: Constraints) -> None:
    """Print that no release qualifies, and the nearest ones."""
    if choice.taken:
        return
    accuracy = f", and an accuracy of at least {limits.accuracy:g}" if limits.accuracy else ""
    print_line(
        f"no release on the boards has an accounted epsilon of at most {limits.epsilon:g} per {limits.unit} at a delta "
        f"of at most {limits.delta:g}{accuracy}"
    )
    for line in choice.nearest:
        print_line(line)


def _recommend(found: list[Candidate], limits: Constraints, most_lines: int | None = None) -> None:
    """Print which candidate of a place to take, why, its cost and risks, and its missing measurements.

    Args:
        most_lines: limit for each of these parts; None = all.
    """
    from bench.boards.selection import least_epsilon, missing_measurements

    best, row, lower = found[0], found[0].row, found[0].row.epsilon_lower
    rank = f"the most accurate of {len(found)}" if len(found) > 1 else "the only release"
    print_line(f"take {_name(best)}: {rank} whose accounted epsilon per {limits.unit} is at most {limits.epsilon:g}")
    least = least_epsilon(found)
    if limits.accuracy and least is not best:
        epsilon = f"{least.epsilon:.4g} at a delta of {least.row.delta}"
        print_line(f"or {least.name}: the least epsilon, {epsilon}, with an accuracy of {least.accuracy:.4f}")
    parts = {
        "accuracy": [f"{best.accuracy:.4f} ({best.spread})"],
        "protects": [
            f"{PROTECTED[limits.unit]}: epsilon {best.epsilon:.4g}, delta {row.delta}, {row.relation}",
            "one release; each further release of the same records adds to it",
        ],
        "command": [describe_command(row)],
        "cost": [describe_cost(best)],
        "attacks": best.attacks or ["none was run"],
        "audited": ["no" if lower is None else f"at least {lower:.2g} per example"],
        "risks": [explain_flag(name) for name in sorted(best.flags)] or ["no flag"],
        "not measured": missing_measurements(best) or ["nothing is missing"],
    }
    for label, lines in parts.items():
        shown = list(lines[:most_lines])
        if more := len(lines) - len(shown):
            shown[-1] += f"; and {more} more"
        for number, line in enumerate(shown):
            print_line(f"  {label if number == 0 else '':<13} {line}")
    print_line("")


def describe_command(row: ReleaseRow) -> str:
    """Return the command that makes the release again, with one seed and with noise from the system's generator."""
    from bench.boards.results import release_command
    from bench.boards.tables import read_options
    from bench.data import typed

    budget = {"epsilon": 10, **read_options(row.options)["budget"]}
    return f"{release_command(row, typed(row.dataset), budget)} --noise os"


def explain_flag(name: str) -> str:
    """Return a flag with its meaning; a flag of another version, which is not known here, without one."""
    from bench.report.glossary import flag

    try:
        return f"{name}: {flag(name)}"
    except KeyError:
        return name


def describe_cost(candidate: Candidate) -> str:
    """Return seconds and device of a release, as far as they were recorded."""
    seconds = "" if candidate.seconds is None else f"{candidate.seconds:.0f} s"
    device = f"on {candidate.device}" if candidate.device else ""
    return f"{seconds} {device}".strip() or "not recorded"


def _name(candidate: Candidate) -> str:
    """Return the name of a release, with a mark if it is on the user's own boards."""
    return f"{candidate.name} (yours)" if candidate.whose == "yours" else candidate.name


def _print_brief_table(title: str, found: list[Candidate]) -> None:
    """Print a line for each candidate, with its place if the places differ; nothing without candidates."""
    if not found:
        return
    from rich.table import Table
    from rich.text import Text

    has_places = len({candidate.place for candidate in found}) > 1
    table = Table(title=Text(title), title_justify="left", box=None, header_style="bold")
    for column in (
        *(("data set", "tier", "split") if has_places else ()),
        *("take", "accuracy", "over seeds", "eps", "whose"),
    ):
        table.add_column(column, no_wrap=True)
    for each in found:
        numbers = f"{each.accuracy:.4f}", each.spread, f"{each.epsilon:.4g} per {each.row.unit}"
        table.add_row(*map(Text, (*(each.place if has_places else ()), each.name, *numbers, each.whose)))
    Screen(width=max(out.width, WIDTH), highlight=False, emoji=False).print(table)


def _print_table(place: tuple[str, str, str], found: list[Candidate]) -> None:
    """Print all facts of the candidates of a place."""
    from rich.table import Table

    dataset, tier, split = place
    table = Table(title=f"{dataset}, tier {tier}, split {split}", title_justify="left", box=None, header_style="bold")
    table.add_column("take", min_width=18)
    for column in ("accuracy", "over seeds", "eps accounted", "delta", "seconds", "device", ATTACKS, "flags"):
        table.add_column(column, no_wrap=column in UNBROKEN, overflow="fold")
    for candidate in found:
        row = candidate.row
        table.add_row(
            _name(candidate),
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


CHOOSE = Command(
    "Names for each data set, tier and split the release of the boards to take: the most accurate one whose accounted "
    "epsilon is at most --max-epsilon and whose accuracy is at least --min-accuracy; with --min-accuracy also the one "
    "with the least epsilon. Its cost, the results of attacks, its risks and its missing measurements are printed "
    "too. With --all also the other releases that qualify, and the reasons why the rest do not. Claimed epsilons are "
    "ignored. Your own boards are read too, and their rows are marked.",
    add_arguments,
    execute,
)
