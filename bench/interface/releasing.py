"""Check a published release: `verify`, as `bench verify`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.bundle import Verified

Given = str | os.PathLike[str]


def verify(folder: Given, *, record: Given | None = None, data_root: Given | None = None) -> Verified:
    """Check a bundle of `RunResult.export`, as `bench verify`: its files, its epsilons from its ledger, its student.

    The bundle may come from anyone: it has no code, and its check has limits of memory and time. Only with `record` the
    student then runs on all public test images, without limits.

    Args:
        folder: the directory of the bundle.
        record: the `record.json` of a run, which must state what the bundle has; the accuracy of the student is then
            measured again on the public test images.
        data_root: folder of the data sets for `record`; None = $BENCH_DATA.

    Returns:
        The recomputed epsilons, how to load the student, and warnings for its users.

    Raises:
        bench.bundle.Failed: not as published.
        BenchError: not a bundle, or not a record.
    """
    from bench import bundle

    found = bundle.verify(Path(folder))
    if record is not None:
        bundle.check_record(Path(record), Path(folder), found, None if data_root is None else Path(data_root))
    return found
