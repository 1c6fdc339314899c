"""What the releases of the same records that lie in one folder promise together: less than each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BenchError
from bench.storage.records import Record

if TYPE_CHECKING:
    from bench.bundle.releases import Released


def together(made: Sequence[Record], folder: Path) -> list[str]:
    """A line for each unit with a finite epsilon, of the releases of this run and of earlier ones in the folder.

    None of one release, or where this run's noise is seeded: those who have the seed can draw it. Records in the folder
    that cannot be read, that failed, or whose noise is seeded are left out.

    Args:
        folder: `--out` of the runs.
    """
    done = [record for record in made if record.status != "failed"]
    if not done or any(record.spec["release"]["noise"] != "os" for record in done):
        return []
    from bench.bundle import releases  # here, as a seeded run that is there already is answered with torch alone

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
            continue  # a run that is being written, or another version's: it is not this run's to refuse
        if release is not None:
            found.append(release)
    return found
