"""Find a finished run by its path or hash, and its release in the store, for `bench export`."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError, NotFound
from bench.storage.records import AUDIT, RECORD, Record
from bench.storage.specs import digest
from bench.storage.store import inspect

EXPORTED = ("events", "claimed", "accounted_units", "noise_version")
"""Fields that a record's account and its release's account share and that a bundle contains."""
LATEST = "latest"
"""Name of the run whose record was written last."""
AGAIN = "make it again with `bench run` and --fresh"


@dataclass(frozen=True)
class StudentInput:
    """Input and output of a student: (c, h, w) of its images, number of classes, class names if they are public."""

    shape: tuple[int, int, int]
    classes: int
    class_names: tuple[str, ...] | None


@dataclass(frozen=True)
class ReleaseResult:
    """The fields of a release's `result.json` that a bundle uses.

    Attributes:
        arch: name of the student's network.
        accuracy: accuracy of the student on the test images, in [0, 1].
        tested: number of test images.
        input: input and classes of the student; None in older releases.
    """

    arch: str
    accuracy: float
    tested: int
    input: StudentInput | None


@dataclass(frozen=True)
class FinishedRun:
    """A run that can be exported.

    Attributes:
        record: record of the run.
        step: directory of its release in the store, verified.
        result: result of the release.
    """

    record: Record
    step: Path
    result: ReleaseResult


def find(run: str, out: Path) -> FinishedRun:
    """Find a finished run and its release.

    Args:
        run: a directory with a record, a record's file, the hash (or its start) of a run below `out`, or "latest".
        out: folder with the runs, the `--out` of `bench run`.

    Raises:
        BenchError: no such run or more than one; a failed one; a release that is not in the store, is damaged there or
            does not belong to the record.
    """
    path = _find_record(run, out)
    try:
        record = Record.read(path)
    except (OSError, ValueError) as error:
        raise BenchError(f"RUN {run}: {error}; give the directory of a run, as in runs/records/HASH") from None
    if record.status == "failed":
        raise BenchError(f"RUN {run}: this run failed ({record.reason}) and released nothing; run it again")
    own = [path.resolve().parents[2]] if path.name == RECORD and len(path.resolve().parents) > 2 else []
    folders = [root / "steps" / "release" / digest(record.spec["release"]) for root in [*own, out]]
    step = next((folder for folder in folders if folder.exists()), None)
    if step is None:
        raise NotFound(f"RUN {record.hash}: its release is not in the store ({folders[0]}); {AGAIN}, or give --out")
    damaged, _ = inspect(step)
    if damaged:
        raise BenchError(f"RUN {record.hash}: {step} is damaged ({', '.join(damaged)}); {AGAIN}")
    stored = json.loads((step / "result.json").read_text(encoding="utf-8"))
    if any(record.privacy.get(key) != stored["privacy"].get(key) for key in EXPORTED):
        raise BenchError(f"RUN {run}: the record and the release in {step} have different accounts; {AGAIN}")
    stated, drawn = record.privacy.get("noise"), record.spec["release"]["noise"]
    if stated != drawn:
        raise BenchError(f"RUN {run}: its account says that its noise was '{stated}', and it was '{drawn}'; {AGAIN}")
    kept = stored.get("input")
    taken = None
    if kept is not None:
        names = tuple(kept["class_names"])
        taken = StudentInput(tuple(kept["shape"]), len(names), names)
    return FinishedRun(record, step, ReleaseResult(stored["arch"], stored["accuracy"], stored.get("tested", 0), taken))


def _find_record(run: str, out: Path) -> Path:
    """Return the file of the record of the run called `run`; arguments and errors as in `find`."""
    given = Path(run)
    if os.path.isfile(run):
        return given
    if os.path.isdir(run):
        if (given / AUDIT).exists():
            raise BenchError(f"RUN {run}: an audit, whose student had canaries in its data; give a run's directory")
        if not (given / RECORD).exists():
            raise NotFound(f"RUN {run}: no {RECORD} in this directory; give a run's, as in runs/records/HASH")
        return given / RECORD
    records = out / "records"
    files = sorted(records.glob(f"[!.]*/{RECORD}"))
    if run == LATEST and files:
        return max(files, key=lambda path: path.stat().st_mtime_ns)
    known = [path.parent.name for path in files]
    matching = [name for name in known if name.startswith(run)] if re.fullmatch("[0-9a-f]+", run) else []
    if len(matching) > 1:
        raise BenchError(f"RUN {run}: {len(matching)} runs in {records} begin so ({', '.join(matching)}); give more")
    if not matching:
        raise NotFound(
            f"RUN {run}: no such run in {records}, which has {len(known)}; give the directory of a run, its "
            f"{RECORD}, or the hash in its path that `bench run` printed, and --out if it is in another folder"
        )
    return records / matching[0] / RECORD
