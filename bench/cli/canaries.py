"""`bench canaries`: put canaries into a training set before the model is trained."""

from __future__ import annotations

import argparse

from bench.cli import paths
from bench.progress import tell

HELP = "canaries insert: mislabelled records in a training set, by which `bench assess --canaries` bounds epsilon"
DESCRIPTION = (
    "`bench canaries insert` writes train.npz, the training set in which each canary stays by a fair coin, and "
    "canaries.npz, which has the coins: keep it from everyone who trains the model."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench canaries`."""
    parser.add_argument("action", choices=("insert",), help="insert canaries into a training set")
    parser.add_argument("--data", type=paths.named, required=True, metavar="FILE", help="a .npz of images and labels")
    parser.add_argument("--count", type=int, default=500, metavar="N", help="canaries (default 500)")
    parser.add_argument("--out", type=paths.named, required=True, metavar="DIR", help="new folder to write")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of the coins (default: drawn by the system, which audits need)"
    )


def execute(given: argparse.Namespace) -> int:
    """Insert the canaries. Returns the exit status."""
    from bench.assess.canaries import insert

    records, inside = insert(given.data, given.count, given.out, given.seed)
    tell(f"{given.out / 'train.npz'}: {records} records, {inside} of {given.count} canaries among them")
    tell(f"{given.out / 'canaries.npz'}: the canaries and their coins; keep it from everyone who trains the model")
    return 0
