"""A run from its settings to its record: what is there already is answered at once, anything else is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError, RunFailed, disk_is_full
from bench.pipeline.failures import one_line
from bench.pipeline.job import Job
from bench.pipeline.run_spec import run_spec
from bench.storage.records import RECORD, Record
from bench.storage.specs import RunSpec

END_OF_PNG = b"IEND\xaeB`\x82"


@dataclass(frozen=True)
class Outcome:
    """A record, the directory it was published in, and whether it was there already."""

    record: Record
    path: Path
    cached: bool


def run(job: Job, seed: int) -> Outcome:
    """Walk all steps of one run and publish its record; a failure is a record too.

    Raises:
        BenchError: the input was bad after all (corrupt weights, an impossible budget); nothing is published.
        RunFailed: a step failed; the record with status `failed` has been published.
    """
    spec = run_spec(job, seed)
    final = _final(job, spec)
    if not job.settings.fresh and (known := published(final)) is not None:
        return Outcome(known, final, cached=True)
    job.check()
    from bench.pipeline import walk

    with job.following() as made:
        try:
            finished = walk.walk(job, spec, made)
            walk.publish_run(job, finished, final)
        except (BenchError, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as error:
            # Whatever a plug-in of anybody's raises is its run's failure, told with its place and recorded below; by
            # SystemExit it would end the command as if all were done
            if disk_is_full(error):
                raise
            reason = one_line(error)
            # With --fresh, or beside another process, a good record may stand there; a failure does not replace it
            kept = published(final) is not None
            if not kept:
                walk.publish_run(job, walk.failed(job, spec, reason, made), final)
            told = "not recorded: a run that ended well stays" if kept else "recorded"
            raise RunFailed(f"{reason} ({told} in {final / RECORD})") from error
    return Outcome(finished.record, final, cached=False)


def is_published(job: Job, seed: int) -> bool:
    """Whether the run of this seed has a finished record, which `run` would return."""
    return not job.settings.fresh and published(_final(job, run_spec(job, seed))) is not None


def _final(job: Job, spec: RunSpec) -> Path:
    return job.store.root / "records" / spec.hash


def published(final: Path) -> Record | None:
    """The finished record in `final`, unless it failed, is damaged or lacks a picture, or a part of one."""
    try:
        record = Record.read(final / RECORD)
    except (OSError, ValueError):
        return None
    # A failed run is tried again: its cause may lie outside of the spec, such as memory or a library
    complete = all(_is_whole(final / name) for name in record.artifacts.values())
    return record if complete and record.status != "failed" else None


def _is_whole(picture: Path) -> bool:
    """Whether a PNG file is there and ends as one does."""
    try:
        return picture.read_bytes().endswith(END_OF_PNG)
    except OSError:
        return False
