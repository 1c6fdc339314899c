"""`bench canaries`, `bench export` and `bench verify`: prepare an audit, write and check a bundle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.parsing import Command, file_path
from bench.errors import BadOption
from bench.progress import out, print_error, print_heading, print_line

if TYPE_CHECKING:
    from bench.bundle import Verified

MOST = 1_000_000
"""Largest limit of memory in MiB, and of seconds."""


def add_canary_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench canaries`."""
    parser.add_argument("action", choices=("insert",), help="insert canaries into a training set")
    parser.add_argument(
        "--data", type=file_path, required=True, metavar="PATH", help="an .npz of images and labels, or a folder"
    )
    parser.add_argument("--count", type=int, default=500, metavar="N", help="number of canaries (default 500)")
    parser.add_argument("--out", type=file_path, required=True, metavar="DIR", help="new folder to write")
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed of the coins; leave it out for an audit (default: drawn by the operating system)",
    )


def insert_canaries(given: argparse.Namespace) -> int:
    """Insert canaries into a training set. Returns the exit status."""
    from bench.assess.canaries import insert

    records, inside = insert(given.data, given.count, given.out, given.seed)
    suffix = "" if given.data.is_dir() else ".npz"
    print_line(f"{given.out / f'train{suffix}'}: {records} records, including {inside} of {given.count} canaries")
    print_line(
        f"{given.out / f'canaries{suffix}'}: the canaries with their coins; keep it secret while the model is trained"
    )
    return 0


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench export`."""
    parser.add_argument(
        "run",
        metavar="RUN",
        help="the run: its directory, its record.json, its hash or the beginning of it, or latest for the newest run",
    )
    parser.add_argument("folder", metavar="DIR", type=file_path, help="new directory to write; nothing is overwritten")
    parser.add_argument(
        "--out", type=file_path, default=Path("runs"), metavar="OUT", help="folder of your runs (default runs)"
    )
    parser.add_argument(
        "--allow-seeded",
        action="store_true",
        help="export a run with seeded noise; its epsilon holds only against those without the seed",
    )
    parser.add_argument(
        "--class-names",
        action="store_true",
        help="include the class names of your own data set, which may be private (default: left out)",
    )


def export(given: argparse.Namespace) -> int:
    """Write a bundle and check it. Returns the exit status."""
    from bench import bundle

    found = bundle.find(given.run, given.out)
    made = bundle.export(found, given.folder, allow_seeded=given.allow_seeded, own_names=given.class_names)
    show_verified(given.folder, made)
    return 0


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench verify`."""
    from bench.bundle.limits import Limits

    usual = Limits()
    parser.add_argument("folder", metavar="DIR", type=file_path, help="a directory that `bench export` wrote")
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=file_path,
        help="check of a contributed row: this record must state what the bundle has, and the student's accuracy is "
        "measured again on the public test images",
    )
    parser.add_argument(
        "--data-root", type=file_path, metavar="DIR", help="with --record: folder of the data sets, as of `bench run`"
    )
    parser.add_argument(
        "--mib",
        type=_limit,
        default=usual.mib,
        metavar="N",
        help=f"memory limit of the check in MiB, in addition to the libraries (default {usual.mib})",
    )
    parser.add_argument(
        "--seconds",
        type=_limit,
        default=usual.seconds,
        metavar="N",
        help=f"time limit of the computations in seconds (default {usual.seconds})",
    )


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:7]) <= MOST:
        raise argparse.ArgumentTypeError(f"is '{text}'; expected a whole number from 1 to {MOST}")
    return int(text)


def verify(given: argparse.Namespace) -> int:
    """Check a bundle and print the result. Returns the exit status."""
    from bench import bundle

    if given.data_root is not None and given.record is None:
        raise BadOption(f"--data-root {given.data_root}: only --record reads data; give it too, or leave this out")
    try:
        found = bundle.verify(given.folder, bundle.Limits(given.mib, given.seconds))
        checked = None
        if given.record is not None:
            checked = bundle.check_record(given.record, given.folder, found, given.data_root)
    except bundle.Failed as error:
        print_error(f"bench: not verified: {error}")
        return 1
    show_verified(given.folder, found)
    if checked is not None:
        stated, measured = f"{100 * checked.stated:.2f} %", f"{100 * checked.measured:.2f} %"
        print_line(f"record    accuracy {stated}, measured again on {checked.images} test images {measured}")
    return 0


def show_verified(folder: Path, found: Verified) -> None:
    """Print the table of epsilons, the student, the verdict and the warnings."""
    from rich.table import Table

    model, privacy = found.model, found.privacy
    print_heading(f"\n{model.architecture}, released by {privacy.method.name}")
    table = Table(box=None, header_style="bold")
    for column in ("epsilon", "published", "recomputed", "delta", "protects one", "neighbours"):
        table.add_column(column)
    verified = []
    for unit, recomputed in found.recomputed.items():
        published = privacy.accounted[unit]
        table.add_row(
            "accounted",
            published.displayed,
            recomputed.displayed,
            f"{published.delta:g}",
            unit,
            published.relation,
        )
        differs = any(note.startswith(f"unit {unit}:") for note in found.notes)
        how = "no more than published" if differs else "as published"
        verified.append(f"verified: epsilon {published.displayed} at delta {published.delta:g} per {unit}, {how}")
    if (claim := privacy.claimed) is not None:
        table.add_row("claimed", claim.displayed, "-", f"{claim.delta:g}", claim.unit, "")
    out.print(table)
    shape = "x".join(map(str, model.input.shape))
    print_line(f"files     {found.files} as in the manifest")
    print_line(f"student   computed {found.output_shape[1]} class scores for each of two {shape} images")
    for line in [
        *(f"note: {note}" for note in found.notes),
        *verified,
        *(f"warning: {each}" for each in found.warnings),
    ]:
        print_line(line)
    print_line(f"bundle    {folder}")


CANARIES = Command(
    "`bench canaries insert` writes a training set in which each canary is kept with probability 1/2, and all canaries "
    "with their coins: keep these secret while the model is trained.",
    add_canary_arguments,
    insert_canaries,
)
EXPORT = Command(
    "Writes a directory with only the parts of a run that the account covers: the student (and what else the method "
    "releases), the ledger with its epsilons, code to load it, a model card, and a manifest. It has no measurement on "
    "private data without noise, no seed and no fingerprint. Keep the run's record private; this directory may be "
    "published.",
    add_export_arguments,
    export,
)
VERIFY = Command(
    "Compares every file with the manifest, computes every epsilon again from the ledger with the installed "
    "accountant, writes the card again, and loads the student. Exit status 0: as published; 1: not as published; 2: "
    "not a bundle. A bundle cannot show whether the ledger describes what the method really did.",
    add_verify_arguments,
    verify,
)
