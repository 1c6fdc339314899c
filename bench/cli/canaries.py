"""`bench canaries`: put canaries into a training set before the model is trained."""

from __future__ import annotations

import argparse

from bench.cli import paths
from bench.progress import tell

HELP = "insert mislabelled records into a training set, by which `bench assess --canaries` bounds epsilon"
DESCRIPTION = (
    "`bench canaries insert` writes a training set, in which each canary stays if its coin shows heads, and the "
    "canaries with their coins. Keep the canaries from everyone who trains the model."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench canaries`."""
    parser.add_argument("action", choices=("insert",), help="insert canaries into a training set")
    parser.add_argument(
        "--data",
        type=paths.named,
        required=True,
        metavar="PATH",
        help="a .npz file of images and labels, or a folder with one folder per class",
    )
    parser.add_argument("--count", type=int, default=500, metavar="N", help="canaries (default 500)")
    parser.add_argument("--out", type=paths.named, required=True, metavar="DIR", help="new folder to write")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of the coins (default: drawn by the system, which audits need)"
    )


def execute(given: argparse.Namespace) -> int:
    """Insert the canaries. Returns the exit status."""
    from bench.assess.canaries import insert

    records, inside = insert(given.data, given.count, given.out, given.seed)
    suffix = "" if given.data.is_dir() else ".npz"
    tell(f"{given.out / f'train{suffix}'}: {records} records, {inside} of {given.count} canaries among them")
    tell(f"{given.out / f'canaries{suffix}'}: the canaries and their coins; keep it from everyone who trains the model")
    return 0
