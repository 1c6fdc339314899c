"""The joint guarantee of releases of the same records in one folder: weaker than that of each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BenchError
from bench.storage.records import Record

if TYPE_CHECKING:
    from bench.bundle.releases import Released


def together(made: Sequence[Record], folder: Path) -> list[str]:
    """Return a line for each unit with a finite epsilon, over the releases of this run and of earlier ones in the
    folder.

    No lines for a single release, or if this run's noise is seeded: those with the seed can subtract it. Records in the
    folder that are unreadable or failed, or whose noise is seeded, are left out.

    Args:
        folder: `--out` of the runs.
    """
    done = [record for record in made if record.status != "failed"]
    if not done or any(record.spec["release"]["noise"] != "os" for record in done):
        return []
    from bench.bundle import releases  # here, as a cached seeded run needs no further imports

    mine = [release for record in done if (release := releases.of_record(record)) is not None]
    same = [each for each in _in(folder) if not each.seeded and each.data in {one.data for one in mine}]
    return [
        f"together: {len(composed.of)} releases of these private records exist here; who sees all of them has an "
        f"epsilon of {composed.proved.epsilon:.4g} per {composed.unit} at delta {composed.proved.delta:g} "
        f"({composed.proved.relation}); release one, or count all: `bench account --releases {folder}`"
        for composed in releases.compose([*mine, *same])
        if composed.proved is not None and composed.proved.finite and len(composed.of) > 1
    ]


def _in(folder: Path) -> list[Released]:
    from bench.bundle import releases

    found = []
    for path in releases.record_files(folder):
        try:
            release = releases.of_record(Record.read(path))
        except (BenchError, OSError, ValueError):
            continue  # being written, or from another version: not an error of this run
        if release is not None:
            found.append(release)
    return found
