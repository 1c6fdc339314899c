"""`bench reproduce`: run the command of a published number again, and say whether the number holds."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.parsing import Command, file_path
from bench.cli.settings import read_whole
from bench.errors import BadOption, BenchError, NotFound, unknown

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
    parser.add_argument(
        "--list", action="store_true", help="print all claims and the time that their runs took, and run nothing"
    )
    parser.add_argument("--all", action="store_true", help="run all claims again, and print which of them hold")
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
    """Print the claims, or run published runs again and compare them. Returns 0 if all numbers hold, else 1."""
    from bench.boards.records import boards_folder
    from bench.boards.reproduction import find_run, read_claims

    boards = boards_folder(given.boards)
    claims = {claim.name: claim for claim in read_claims(boards)}
    if given.list or given.all:
        if given.name is not None or (given.list and given.all):
            raise BadOption("--list and --all are of all claims; give one of them, and no NAME")
        if not claims:
            raise NotFound(f"{boards}: no claims; give a folder of boards with the file claims.csv")
        by_run = group_by_run(claims.values())
        return _print_claims(boards, by_run) if given.list else _reproduce_all(boards, by_run, given)
    if given.name is None:
        raise BadOption("give a claim, such as C1, or the first digits of a run or a row; --list prints the claims")
    seed = None if given.seed is None else read_whole("--seed", given.seed, 0)
    claim = claims.get(given.name)
    if claim is None and given.name[:1] == "C":
        raise unknown("claim", given.name, claims)
    published = find_run(boards, claim.run if claim else given.name, seed)
    return 0 if _reproduce(published, [claim] if claim else [], given) else 1


def group_by_run(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    """Return the claims of each run, by its hash, in the order of the first claim."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        found.setdefault(claim.run, []).append(claim)
    return found


def _print_claims(boards: Path, by_run: Mapping[str, Sequence[Claim]]) -> int:
    """Print every claim with its run, and the time that the runs took. Returns the exit status."""
    from bench.boards.reproduction import find_run
    from bench.progress import print_line

    total = 0.0
    for run, claims in by_run.items():
        provenance = find_run(boards, run).provenance
        seconds = sum(provenance["seconds"].values())
        total += seconds
        for claim in claims:
            print_line(f"{claim.name:<4} {claim.statement} [{claim.dataset}, run {run}, {claim.metric}]")
        print_line(f"     took {seconds / 60:.1f} minutes on {provenance['device']}")
    print_line(f"{len(by_run)} runs, {total / 3600:.1f} hours in all; --all runs them one after the other")
    return 0


def _reproduce_all(boards: Path, by_run: Mapping[str, Sequence[Claim]], given: argparse.Namespace) -> int:
    """Run every run that a claim is about, and print which claims hold. Returns 0 if all do, else 1."""
    from bench.boards.reproduction import find_run
    from bench.progress import print_line

    states: dict[str, str] = {}
    for run, claims in by_run.items():
        names = " ".join(claim.name for claim in claims)
        try:
            holds = _reproduce(find_run(boards, run), claims, given)
        except BenchError as error:  # data that are not here must not stop the others
            print_line(f"{names}: not run: {error}")
            states[names] = "not run"
        else:
            states[names] = "reproduced" if holds else "NOT reproduced"
    for state in ("reproduced", "NOT reproduced", "not run"):
        found = [names for names, each in states.items() if each == state]
        print_line(f"{state}: {len(found)} of {len(states)} runs{''.join(f', {names}' for names in found)}")
    return 0 if set(states.values()) == {"reproduced"} else 1


def _reproduce(published: Record, claims: Sequence[Claim], given: argparse.Namespace) -> bool:
    """Run a published run again, compare it, and print whether the numbers and the claims hold; return this."""
    from bench.boards.reproduction import compare
    from bench.progress import print_line

    again = _run(_settings(published, given), published)
    found = compare(published, again)
    _print_compared(found)
    verdicts = [_print_verdict_of(claim, again, found) for claim in claims]
    holds = all(each.holds for each in found) and all(verdicts)
    print_line("reproduced: every number agrees" if holds else "NOT reproduced: see the numbers above")
    return holds


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
