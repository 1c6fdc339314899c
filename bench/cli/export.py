"""`bench export`: write the releasable part of a run to a separate directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cli import paths

HELP = "write what may leave of a run: the student with its account and a model card, and nothing else"
DESCRIPTION = (
    "Writes a directory that holds only what the account covers: the student (and what else the method releases), the "
    "ledger with its epsilons, how to load it, a model card, and a manifest. Nothing that was measured on private data "
    "without noise, no seed and no fingerprint. A record is for the laboratory; this is for the world."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench export`."""
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run's directory, its record.json, its hash or the start of it, or latest: the run finished last",
    )
    parser.add_argument(
        "folder", metavar="DIR", type=paths.named, help="new directory to write; nothing is overwritten"
    )
    parser.add_argument(
        "--out", type=paths.named, default=Path("runs"), metavar="OUT", help="where your runs are (default runs)"
    )
    parser.add_argument(
        "--allow-seeded",
        action="store_true",
        help="export a run whose noise came from a seed; its epsilon holds only for those who do not know the seed",
    )
    parser.add_argument(
        "--class-names",
        action="store_true",
        help="name the classes of your own data set too; left out otherwise, as they may be private",
    )


def execute(given: argparse.Namespace) -> int:
    """Export and print. Returns the exit status."""
    from bench import bundle
    from bench.cli import verify

    found = bundle.find(given.run, given.out)
    made = bundle.export(found, given.folder, allow_seeded=given.allow_seeded, own_names=given.class_names)
    verify.show(given.folder, made)
    return 0
