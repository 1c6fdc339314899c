"""`bench reproduce`: run the command of a published number again, and say whether the number holds."""

from __future__ import annotations

import argparse
import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.parsing import Command, file_path
from bench.cli.settings import read_whole
from bench.errors import BadOption, unknown

if TYPE_CHECKING:
    from bench.boards.reproduction import Claim, Compared
    from bench.pipeline.settings import Settings
    from bench.storage.records import Record

OUT = Path("reproduced")
PLACEHOLDERS = {"PATH": "", "FILE": "--teacher-weights", "WEIGHTS": "--pretrained"}
"""Words of a record's command that stand for a user's own files, and the option that gives them here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench reproduce`."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a claim, such as C1, or the first digits of a run or a row of a board"
    )
    parser.add_argument("--list", action="store_true", help="print all claims, and run nothing")
    parser.add_argument("--seed", metavar="N", help="seed of a row of several seeds (default: the smallest)")
    parser.add_argument(
        "--boards",
        type=file_path,
        metavar="DIR",
        help="folder of boards (default leaderboards, else installed)",
    )
    parser.add_argument(
        "--out", type=file_path, default=OUT, metavar="DIR", help=f"folder of the new run (default {OUT})"
    )
    parser.add_argument("--data-root", type=file_path, metavar="DIR", help="folder of the data sets, as of `bench run`")
    parser.add_argument("--teacher-weights", type=file_path, metavar="FILE", help="weights of the run's own teacher")
    parser.add_argument("--pretrained", type=file_path, metavar="FILE", help="public weights of the run's features")
    parser.add_argument("--device", metavar="DEVICE", help="device, as of `bench run`")


def execute(given: argparse.Namespace) -> int:
    """Print the claims, or run a published run again and compare it. Returns 0 if its numbers hold, else 1."""
    from bench.boards.records import boards_folder
    from bench.boards.reproduction import compare, find_run, read_claims
    from bench.progress import print_line

    boards = boards_folder(given.boards)
    claims = {claim.name: claim for claim in read_claims(boards)}
    if given.list:
        return _print_claims(list(claims.values()))
    if given.name is None:
        raise BadOption("give a claim, such as C1, or the first digits of a run or a row; --list prints the claims")
    seed = None if given.seed is None else read_whole("--seed", given.seed, 0)
    claim = claims.get(given.name)
    if claim is None and given.name[:1] == "C":
        raise unknown("claim", given.name, claims)
    published = find_run(boards, claim.run if claim else given.name, seed)
    settings = _settings(published, given)
    again = _run(settings, published)
    found = compare(published, again)
    _print_compared(found)
    holds = all(each.holds for each in found)
    if claim is not None:
        holds = _print_verdict_of(claim, again, found) and holds
    print_line("reproduced: every number agrees" if holds else "NOT reproduced: see the numbers above")
    return 0 if holds else 1


def _print_claims(claims: list[Claim]) -> int:
    """Print every claim with its run. Returns the exit status."""
    from bench.progress import print_line

    for claim in claims:
        print_line(f"{claim.name:<4} {claim.statement} [{claim.dataset}, run {claim.run}, {claim.metric}]")
    return 0


def _settings(published: Record, given: argparse.Namespace) -> Settings:
    """Return the settings of a published run, with files and folders of this machine. Raises BadOption for a file that
    the run needs and that was not given."""
    from bench.cli import parse
    from bench.cli.run import read_run
    from bench.progress import print_line
    from bench.report.command import command, notes

    line = command(published)
    print_line(line)
    for note in notes(published):
        print_line(f"  {note}")
    words = shlex.split(line)[1:]
    for word, option in PLACEHOLDERS.items():
        if word not in words:
            continue
        if not option:
            raise BadOption(f"run {published.hash} is of a user's own data, which are not published; type its command")
        value = getattr(given, option.removeprefix("--").replace("-", "_"))
        if value is None:
            raise BadOption(f"run {published.hash} used weights that are not published; give {option} FILE")
        words[words.index(word)] = str(value)
    words += ["--out", str(given.out)]
    words += [] if given.data_root is None else ["--data-root", str(given.data_root)]
    words += [] if given.device is None else ["--device", given.device]
    return read_run(parse(words))[0]


def _run(settings: Settings, published: Record) -> Record:
    """Run once, with the seed of the published run, and return the record. Raises RunFailed if it fails."""
    from bench.boards.records import seed
    from bench.pipeline.resolve import load_job
    from bench.pipeline.run import run
    from bench.progress import print_line

    with closing(load_job(settings)) as job:
        made = run(job, seed(published))
    if made.cached:
        print_line(f"  {made.path} holds this run already; give another --out to run it again")
    if made.record.hash != published.hash:
        print_line("  not the published setting: a version or a default has changed since, so that numbers may differ")
    return made.record


def _print_compared(found: list[Compared]) -> None:
    """Print a table: published, again, and the difference that the intervals explain."""
    from rich.table import Table

    from bench.progress import out

    table = Table(box=None, header_style="bold")
    for name in ("number", "published", "again", "tolerance", ""):
        table.add_column(name, justify="left" if name in ("number", "") else "right")
    for each in found:
        state = "holds" if each.holds else "DIFFERS"
        table.add_row(each.metric, *(f"{v:.6g}" for v in (each.published, each.again, each.tolerance)), state)
    out.print(table)


def _print_verdict_of(claim: Claim, again: Record, found: list[Compared]) -> bool:
    """Print a claim and whether the new number is in its limits, widened by the tolerance; return this."""
    from bench.boards.reproduction import number_of
    from bench.progress import print_line

    value = number_of(again, claim.metric)
    tolerance = next((each.tolerance for each in found if each.metric == claim.metric), 0.0)
    holds = value is not None and claim.low - tolerance <= value <= claim.high + tolerance
    shown = "not measured" if value is None else f"{value:.6g}"
    print_line(f"{claim.name}: {claim.statement}")
    print_line(f"  {claim.metric} {shown}; claimed [{claim.low:g}, {claim.high:g}]: {'holds' if holds else 'FAILS'}")
    return holds


REPRODUCE = Command(
    "Runs the command of a claim or of a published run again, with the same seed, and compares both epsilons and every "
    "number that has a 95 % interval. Exit status 0: all agree within the intervals; 1: one does not; 2: bad input. "
    "On the same device and versions the numbers are equal.",
    add_arguments,
    execute,
    is_resumable=True,
)
