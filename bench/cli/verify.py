"""`bench verify`: check that a bundle is valid."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli import paths
from bench.progress import complain, head, out, tell

if TYPE_CHECKING:
    from bench.bundle import Verified
    from bench.bundle.schema import AccountedEpsilon

MOST = 1_000_000
HELP = "check a bundle of `bench export`: its files, its epsilon from its ledger, its student"
DESCRIPTION = (
    "Compares every file with the manifest, computes every epsilon again from the ledger with the installed "
    "accountant, writes the card again, and loads the student. Exit status 0: as published; 1: it is not; 2: no "
    "bundle. Whether the ledger is what the method did, no one can see from a bundle."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench verify`."""
    from bench.bundle.limits import Limits

    usual = Limits()
    parser.add_argument("folder", metavar="DIR", type=paths.named, help="a directory that `bench export` wrote")
    parser.add_argument(
        "--mib",
        type=_whole,
        default=usual.mib,
        metavar="N",
        help=f"MiB of memory that the check may take beyond the libraries (default {usual.mib})",
    )
    parser.add_argument(
        "--seconds",
        type=_whole,
        default=usual.seconds,
        metavar="N",
        help=f"seconds that the computations may take (default {usual.seconds})",
    )


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:7]) <= MOST:
        raise argparse.ArgumentTypeError(f"is '{text}'; expected a whole number from 1 to {MOST}")
    return int(text)


def execute(given: argparse.Namespace) -> int:
    """Verify and print. Returns the exit status."""
    from bench import bundle

    try:
        found = bundle.verify(given.folder, bundle.Limits(given.mib, given.seconds))
    except bundle.Failed as error:
        complain(f"bench: not verified: {error}")
        return 1
    show(given.folder, found)
    return 0


def show(folder: Path, found: Verified) -> None:
    """Print the table of epsilons, the student, the verdict and the warnings."""
    from rich.table import Table

    from bench.bundle.account import format_epsilon

    model, privacy = found.model, found.privacy
    head(f"\n{model.architecture}, released by {privacy.method.name}")
    table = Table(box=None, header_style="bold")
    for column in ("epsilon", "published", "recomputed", "delta", "protects one", "neighbours"):
        table.add_column(column)
    for unit, ours in found.recomputed.items():
        theirs = privacy.accounted[unit]
        table.add_row(
            "accounted", format_epsilon(theirs), format_epsilon(ours), f"{theirs.delta:g}", unit, theirs.relation
        )
    if (claim := privacy.claimed) is not None:
        table.add_row("claimed", format_epsilon(claim), "-", f"{claim.delta:g}", claim.unit, "")
    out.print(table)
    shape = "x".join(map(str, model.input.shape))
    lines = [
        f"files     {found.files} as in the manifest",
        f"student   answers two {shape} images with {found.output_shape[1]} classes each",
        *(f"note: {note}" for note in found.notes),
        *(f"verified: epsilon {_promise(privacy.accounted[unit], found)}" for unit in found.recomputed),
        *(f"warning: {line}" for line in found.warnings),
        f"bundle    {folder}",
    ]
    for line in lines:
        tell(line)


def _promise(theirs: AccountedEpsilon, found: Verified) -> str:
    from bench.bundle.account import format_epsilon

    differs = any(note.startswith(f"unit {theirs.unit}:") for note in found.notes)
    how = "no more than published" if differs else "as published"
    return f"{format_epsilon(theirs)} at delta {theirs.delta:g} per {theirs.unit}, {how}"
