"""`bench account`: the joint epsilon of several releases of the same private records, also printed after a run."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.parsing import Command, file_path
from bench.cli.settings import read_number
from bench.errors import BenchError

if TYPE_CHECKING:
    from bench.bundle.releases import Composed, Released, Scope
    from bench.storage.records import Record

MOST_NAMES = 10
"""Number of releases that a line names; the others are counted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench account`."""
    parser.add_argument(
        "--releases",
        nargs="+",
        type=file_path,
        metavar="DIR",
        required=True,
        help="folders of releases: the --out of runs, single runs, bundles, or folders of these",
    )
    parser.add_argument(
        "--delta", metavar="D", help="delta of the joint epsilons, in (0, 1) (default: the smallest of the releases)"
    )


def execute(given: argparse.Namespace) -> int:
    """Compose the releases and print a line for each data set, unit and grouping. Returns the exit status."""
    delta = None if given.delta is None else read_number("--delta", given.delta)
    from bench.interface.accounting import check_delta, read_releases

    check_delta(delta)
    found = read_releases(given.releases)
    from bench.bundle import releases
    from bench.progress import print_line

    for composed in releases.compose(found, delta):
        print_line(describe(composed))
    for data, scopes in releases.find_separate(found).items():
        print_line(f"{data}: {describe_separate(scopes)}")
    return 0


def describe(composed: Composed) -> str:
    """Return a line for one data set, unit and grouping: the joint epsilon, or releases without a finite account."""
    unit = f"{composed.unit} of grouping {composed.grouping[:8]}" if composed.grouping else str(composed.unit)
    where, proved = f"{composed.data}, per {unit}:", composed.proved
    if proved is not None:
        epsilon = f"epsilon {proved.epsilon:.4g} at delta {proved.delta:g}" if proved.finite else "no finite epsilon"
        how = f"{proved.relation}, {proved.accountant}"
        return f"{where} {_count(composed.of)}, {epsilon} ({how}): {_list_names(composed.of)}"
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in composed.left_out.items():
        by_reason[reason].append(name)
    reasons = "; ".join(f"{reason}: {_list_names(names)}" for reason, names in by_reason.items())
    return f"{where} {_count(composed.left_out)} without a finite account; {reasons}"


def describe_separate(scopes: Sequence[Scope]) -> str:
    """Return a sentence on releases that share no unit and grouping.

    >>> from bench.privacy import Unit
    >>> describe_separate([(Unit.EXAMPLE, ""), (Unit.GROUP, "1"), (Unit.GROUP, "2")])
    'releases protect different units (example, group in 2 groupings); their epsilons are not added'
    """
    counts = Counter(unit.value for unit, _ in scopes)
    units = ", ".join(unit + f" in {count} groupings" * (count > 1) for unit, count in counts.items())
    return f"releases protect different units ({units}); their epsilons are not added"


def _count(names: Collection[str]) -> str:
    return f"{len(names)} release{'s' * (len(names) != 1)}"


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"


def describe_joint_guarantee(made: Sequence[Record], folder: Path) -> list[str]:
    """Return a line for each unit with a finite joint epsilon of the releases of a run and of earlier ones in a folder.

    One more line says if releases of a data set share no unit and grouping, so that no epsilon covers all of them.
    The list is empty for a single release, and for seeded noise: anyone with the seed can subtract it.
    Records in the folder that are unreadable or failed, or whose noise is seeded, are left out.

    Args:
        made: the records of this run.
        folder: `--out` of the runs.
    """
    done = [record for record in made if record.status != "failed"]
    if not done or any(record.spec["release"]["noise"] != "os" for record in done):
        return []
    from bench.bundle import releases  # here, as a cached seeded run needs no further imports
    from bench.storage.records import Record

    mine = [release for record in done if (release := releases.of_record(record)) is not None]
    data = {release.data for release in mine}
    earlier: list[Released] = []
    for path in releases.record_files(folder):
        try:
            release = releases.of_record(Record.read(path))
        except (BenchError, OSError, ValueError):
            continue  # being written, or from another version: not an error of this run
        if release is not None and not release.seeded and release.data in data:
            earlier.append(release)
    lines = [
        f"joint guarantee: this folder has {len(composed.of)} releases of these private records; together they have an "
        f"epsilon of {composed.proved.epsilon:.4g} per {composed.unit} at delta {composed.proved.delta:g} "
        f"({composed.proved.relation}); publish only one, or account for all: `bench account --releases {folder}`"
        for composed in releases.compose([*mine, *earlier])
        if composed.proved is not None and composed.proved.finite and len(composed.of) > 1
    ]
    separate = releases.find_separate([*mine, *earlier])
    return lines + [f"joint guarantee: {data}: {describe_separate(scopes)}" for data, scopes in separate.items()]


ACCOUNT = Command(
    "Reads records and bundles, and composes their ledgers for each private data set and unit: several releases of the "
    "same records reveal more than one. Epsilons of different units, or of different groups of records, are not added. "
    "Releases without a finite account are listed with the reason, and so are those "
    "with seeded noise, which may share their noise.",
    add_arguments,
    execute,
)
