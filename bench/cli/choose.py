"""`bench choose`: the releases of the boards that keep a user's limits, by what is proved of them."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from bench.cli import paths
from bench.errors import BenchError
from bench.progress import Screen, out, plain_text

if TYPE_CHECKING:
    from bench.leaderboard.selection import Candidate, Choice, Constraints, Row

HELP = "which method to take for a privacy budget and an accuracy, from the boards"
DESCRIPTION = (
    "Says for each data set, tier and split which release of the boards to take: the most accurate whose accounted "
    "epsilon of one UNIT is at most --max-epsilon and whose accuracy is at least --min-accuracy; where an accuracy "
    "is asked for, also the one of the least epsilon. With it: what it costs, how attacks fared, its risks, and what "
    "nobody measured of it. Above stand the others that qualify, and every release that does not, with the reason. "
    "Claims of the papers play no part."
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
    parser.add_argument(
        "--max-delta", type=float, default=1e-4, metavar="D", help="largest delta of the account (default 1e-4)"
    )
    parser.add_argument("--dataset", metavar="NAME", help="one board only")
    parser.add_argument(
        "--boards", type=paths.named, metavar="DIR", help="the boards (default leaderboards, else the installed ones)"
    )


def execute(given: argparse.Namespace) -> int:
    """Choose and show. Returns the exit status, 0 also where nothing qualifies."""
    if not (given.max_epsilon > 0 and math.isfinite(given.max_epsilon)):
        raise BenchError(f"--max-epsilon {given.max_epsilon}: expected a finite number above 0")
    if not 0 <= given.min_accuracy <= 1:
        raise BenchError(f"--min-accuracy {given.min_accuracy}: expected a fraction in [0, 1], as in 0.9")
    if not 0 <= given.max_delta < 1:
        raise BenchError(f"--max-delta {given.max_delta}: expected a number in [0, 1), below one over the records")
    from bench.leaderboard import reported
    from bench.leaderboard.selection import Constraints, choose

    folder = reported.boards_folder(given.boards)
    rows = reported.boards(folder)
    known = sorted({row["dataset"] for row in rows})
    if given.dataset is not None and given.dataset not in known:
        raise BenchError(f"--dataset {given.dataset}: no such board in {folder}; it has {', '.join(known)}")
    limits = Constraints(given.unit, given.max_epsilon, given.min_accuracy, given.max_delta)
    _show(choose([row for row in rows if given.dataset in (None, row["dataset"])], limits), limits)
    return 0


def _show(choice: Choice, limits: Constraints) -> None:
    _excluded(choice)
    asked = f"epsilon of at most {limits.epsilon:g} per {limits.unit} at a delta of at most {limits.delta:g}"
    asked += f", and an accuracy of at least {limits.accuracy:g}" if limits.accuracy else ""
    if not choice.taken:
        _print(f"no row of the boards has a proved {asked}")
        for line in choice.nearest:
            _print(line)
    for place, found in choice.taken.items():
        _table(place, found)
        _answer(found, limits)


def _excluded(choice: Choice) -> None:
    if choice.excluded:
        out.print("excluded")
    for candidate, reason in choice.excluded:
        where = " ".join(candidate.place)
        _print(f"  {where}  {candidate.name}: {reason}")
    out.print()


def _answer(found: list[Candidate], limits: Constraints) -> None:
    """What to take of a place's candidates, why, what it costs and risks, and what was not measured of it."""
    from bench.leaderboard.selection import lacking, least_epsilon
    from bench.report.glossary import UNITS as PROTECTED

    best, row, audit = found[0], found[0].row, found[0].audited
    most = f"the most accurate of {len(found)}" if len(found) > 1 else "the only row"
    lines = {
        "accuracy": [f"{best.accuracy:.4f} ({best.spread})"],
        "protects": [
            f"{PROTECTED[limits.unit]}: epsilon {best.epsilon:.4g}, delta {row['delta']}, {row['relation']}",
            "one release; every other one of the same records adds to it",
        ],
        "command": [_command(row)],
        "cost": [_cost(best)],
        "attacks": best.attacks or ["none was run"],
        "audited": ["no" if audit is None else f"at least {float(audit['epsilon_audited']):.2g} per example"],
        "risks": [_risk(name) for name in sorted(best.flags)] or ["no flag"],
        "not measured": lacking(best) or ["nothing is missing"],
    }
    _print(f"take {best.name}: {most} whose accounted epsilon per {limits.unit} is at most {limits.epsilon:g}")
    least = least_epsilon(found)
    if limits.accuracy and least is not best:
        promise = f"{least.epsilon:.4g} at a delta of {least.row['delta']}"
        _print(f"or {least.name}: the least epsilon, {promise}, with an accuracy of {least.accuracy:.4f}")
    for label, told in lines.items():
        for first, line in enumerate(told):
            _print(f"  {'' if first else label:<13} {line}")
    out.print()


def _command(row: Row) -> str:
    """What makes the release again, of one seed, with noise that nobody can draw again."""
    from bench.config import STUDENT
    from bench.data import typed
    from bench.leaderboard.board_cells import options
    from bench.leaderboard.reasons import command

    words = command(row, typed(str(row["dataset"])), {"epsilon": 10, **options(str(row["options"]))["budget"]})
    for name, usual in (("student", STUDENT), ("split", "iid")):
        words += f" --{name} {row[name]}" * (row[name] != usual)
    return f"{words} --noise os"


def _risk(name: str) -> str:
    """A flag with its meaning; a board of another version may have flags that this one has no sentence for."""
    from bench.report.glossary import flag

    try:
        return f"{name}: {flag(name)}"
    except KeyError:
        return name


def _print(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def _cost(candidate: Candidate) -> str:
    seconds, device = candidate.row["seconds"], candidate.row["device"]
    told = [f"{float(seconds):.0f} s"] if seconds else []
    return " ".join([*told, *([f"on {device}"] if device else [])]) or "not recorded"


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
            candidate.name,
            f"{candidate.accuracy:.4f}",
            candidate.spread,
            plain_text(f"{candidate.epsilon:.4g} per {row['unit']}", str(row["relation"])),
            str(row["delta"]),
            f"{float(row['seconds']):.0f}" if row["seconds"] else "-",
            str(row["device"]) or "-",
            plain_text(*candidate.attacks or ["not attacked"]),
            plain_text(*sorted(candidate.flags) or ["-"]),
        )
    Screen(width=max(out.width, WIDTH), highlight=False, markup=False, emoji=False).print(table)
