"""`bench account`: the joint guarantee of several releases of the same private records."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from bench.cli import paths
from bench.cli.read_given import read_number

if TYPE_CHECKING:
    from bench.bundle.releases import Composed

HELP = "the epsilon of all releases of the same private records together"
DESCRIPTION = (
    "Reads records and bundles, and composes their ledgers for each private data set and unit. Who sees several "
    "releases of the same records learns more than from one. Releases without a finite account are named, as are those "
    "with seeded noise, which may share their draws."
)
NAMED = 10
"""Number of releases that a line names; the others are counted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench account`."""
    parser.add_argument(
        "--releases",
        nargs="+",
        type=paths.named,
        metavar="DIR",
        required=True,
        help="folders: the --out of runs, runs, bundles, or folders of these",
    )
    parser.add_argument(
        "--delta", metavar="D", help="of the composed epsilons (default the smallest that a release was made for)"
    )


def execute(given: argparse.Namespace) -> int:
    """Compose and print. Returns the exit status."""
    delta = None if given.delta is None else read_number("--delta", given.delta)
    from bench.interface.accounting import compose
    from bench.progress import out

    for composed in compose(given.releases, delta=delta):
        for line in lines(composed):
            out.print(line, markup=False, soft_wrap=True)
    return 0


def lines(composed: Composed) -> list[str]:
    """Return the printed lines for one data set and unit: the composed epsilon, or releases without a finite
    account."""
    where = f"{composed.data}, per {composed.unit}:"
    if composed.proved is not None:
        proved = composed.proved
        epsilon = f"epsilon {proved.epsilon:.4g} at delta {proved.delta:g}" if proved.finite else "no finite epsilon"
        how = f"{proved.relation}, {proved.accountant}"
        return [f"{where} {_count(composed.of)}, {epsilon} ({how}): {_named(composed.of)}"]
    of_reason: dict[str, list[str]] = defaultdict(list)
    for name, why in composed.left_out.items():
        of_reason[why].append(name)
    said = [f"{why}: {_named(names)}" for why, names in of_reason.items()]
    return [f"{where} {_count(composed.left_out)} without a finite account; {'; '.join(said)}"]


def _count(names: Collection[str]) -> str:
    return f"{len(names)} release{'s' * (len(names) != 1)}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
