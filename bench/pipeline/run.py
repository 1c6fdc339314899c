"""Make a run: teacher, release, utility, attack, record. A finished run is not made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from bench import registry
from bench.core import records
from bench.core.records import Provenance, RunRecord
from bench.errors import BenchError, RunFailed, disk_is_full, location_of
from bench.pipeline.job import Job, changed_options, run_spec
from bench.storage import provenance
from bench.storage.provenance import StepLog
from bench.storage.records import RECORD, Record
from bench.storage.specs import RunSpec, canonical, encodable, json_form
from bench.storage.store import publish

if TYPE_CHECKING:
    from bench.core.privacy import PrivacyReport
    from bench.pipeline.plots import Plots
    from bench.pipeline.trained import Networks, StageResult

END_OF_PNG = b"IEND\xaeB`\x82"


@dataclass(frozen=True)
class Outcome:
    """A record, the directory it was published in, and whether it was published before."""

    record: Record
    path: Path
    cached: bool


@dataclass(frozen=True)
class Finished:
    """A record with the pictures to publish next to it."""

    record: RunRecord
    plots: Plots


def run(job: Job, seed: int) -> Outcome:
    """Make one run and publish its record and pictures; a failure is recorded too.

    Raises:
        BenchError: the input turned out to be bad (corrupt weights, an impossible budget); nothing is published.
        RunFailed: a step failed; the record with status `failed` has been published.
    """
    spec = run_spec(job, seed)
    folder = record_folder(job, spec)
    if not job.settings.fresh and (known := published(folder)) is not None:
        rebuild_missing_board(job)
        return Outcome(known, folder, cached=True)
    job.check()
    with job.log_steps() as log:
        try:
            record = publish_run(job, make_run(job, spec, log), folder)
        except (BenchError, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as error:
            # Any exception in a plug-in fails the run and is recorded with its location; a SystemExit would otherwise
            # end the command as if it had finished
            if disk_is_full(error):
                raise
            raise publish_failure(job, spec, log, error, folder) from error
    return Outcome(Record.of(record), folder, cached=False)


def make_run(job: Job, spec: RunSpec, log: StepLog) -> Finished:
    """Make all stages of a run that are not in the store. Raises the error of a stage.

    Args:
        log: records the steps of the run.
    """
    # Imported here: networks, accountants and pictures take seconds to import, which a cached run need not wait for
    from bench.pipeline.stages import make_release, measure_utility, train_ensemble, train_evaluator, train_teacher
    from bench.pipeline.trained import Networks

    teacher = train_teacher(job, spec.release.teacher) if job.needs_teacher else None
    evaluator = train_evaluator(job, spec.evaluator) if job.needs_evaluator else None
    ensemble = train_ensemble(job, spec.release.ensemble)
    student = make_release(job, spec.release, None if teacher is None else teacher.network, ensemble)
    networks = Networks(teacher, evaluator, ensemble, student)
    measured = measure_utility(job, networks).followed_by(run_attack(job, spec, networks))
    report = student.account.report(job.settings.noise, student.result.solved or {})
    return Finished(make_record(job, spec, log, measured, student.result.arch, report), measured.plots)


def run_attack(job: Job, spec: RunSpec, networks: Networks) -> StageResult:
    """Run the attack on student and baselines, and score it; an empty result for a run without an attack."""
    from bench.api import MembershipAttack, ReleaseAttack
    from bench.pipeline.trained import StageResult

    if job.attack is None:
        return StageResult()
    if isinstance(job.attack, MembershipAttack):
        from bench.pipeline.membership import run_membership

        return run_membership(job, job.attack, spec, networks)
    if isinstance(job.attack, ReleaseAttack):
        from bench.pipeline.membership import run_release_membership

        return run_release_membership(job, job.attack, spec, networks)
    from bench.pipeline.inversion import run_inversion

    return run_inversion(job, job.attack, spec, networks)


def make_record(
    job: Job,
    spec: RunSpec,
    log: StepLog,
    measured: StageResult,
    student: str = "",
    privacy: PrivacyReport | None = None,
) -> RunRecord:
    """Build the record of a run without pictures.

    Args:
        log: the steps of the run.
        measured: the results of all stages, or the status and reason of a failed run.
        student: the name of the released network; "" if nothing was released.
        privacy: the report of the release; None for a failed run.

    Raises:
        RunFailed: a number is not finite, or a field has a wrong type.
    """
    from bench.metrics.table import check

    check(measured.metrics)
    origin: Provenance = provenance.collect(registry.ROOT, log, measured.seconds, job.material.counts)
    try:
        return RunRecord(
            hash=spec.hash,
            status=measured.status,
            reason=encodable(measured.reason),
            spec=records.RunSpec.model_validate_json(spec.text),
            options=json_form(changed_options(job)),
            student=student,
            metrics=measured.metrics,
            missing=json_form(measured.missing),
            privacy=privacy,
            provenance=origin,
            artifacts={},
        )
    except ValidationError as error:
        raise RunFailed(f"the result is not a record: {records.describe_first_error(error)}") from error


def publish_run(job: Job, finished: Finished, folder: Path) -> RunRecord:
    """Write the record with its pictures to its directory, then the data set's board; return the published record."""
    from bench import boards

    artifacts = {key: plot.file for key, plot in finished.plots.items()}
    with job.store.exclusive(folder) as work:
        for plot in finished.plots.values():
            plot.draw(work / plot.file)
        record = finished.record.model_copy(update={"artifacts": artifacts})
        (work / RECORD).write_text(canonical(record.to_plain()), encoding="utf-8")
        publish(work, folder)
    boards.refresh(job.store.root, job.material.data.name)
    return record


def publish_failure(job: Job, spec: RunSpec, log: StepLog, error: BaseException, folder: Path) -> RunFailed:
    """Publish a record with status `failed`, and return the error that ends the run.

    With --fresh, or if another process makes the same run, a good record may exist; a failure does not replace it.
    """
    from bench.pipeline.trained import StageResult

    reason = one_line(error)
    if published(folder) is not None:
        return RunFailed(f"{reason} (not recorded: the good record of an earlier run is kept in {folder / RECORD})")
    failed = make_record(job, spec, log, StageResult(status="failed", reason=reason))
    publish_run(job, Finished(failed, {}), folder)
    return RunFailed(f"{reason} (recorded in {folder / RECORD})")


def rebuild_missing_board(job: Job) -> None:
    """Write the board of the data set if it is missing, as in a folder of runs from an older version."""
    from bench.boards.tables import RELEASES

    name = job.material.data.name
    if not (job.store.root / "leaderboards" / RELEASES / f"{name}.csv").exists():
        from bench.boards.publish import refresh

        refresh(job.store.root, name)


def prepare_shared(job: Job, seed: int, only: str | None = None) -> None:
    """Train the teacher and, for inversions, the evaluator, unless they exist; other runs can share both.

    Args:
        only: "teacher" or "evaluator", to train only that one.

    Raises:
        BenchError: the run does not need that one.
        RunFailed: it cannot be trained.
    """
    from bench.pipeline.stages import select_steps, train_evaluator, train_teacher

    spec = run_spec(job, seed)
    steps: dict[str, Callable[[], object]] = {}
    if job.needs_teacher:
        steps["teacher"] = partial(train_teacher, job, spec.release.teacher)
    if job.needs_evaluator:
        steps["evaluator"] = partial(train_evaluator, job, spec.evaluator)
    selected = select_steps(steps, only)
    with run_errors(), job.log_steps():
        for train in selected.values():
            train()


def record_folder(job: Job, spec: RunSpec) -> Path:
    """Return the directory of a run's record, present or future."""
    return job.store.root / "records" / spec.hash


def is_published(job: Job, seed: int) -> bool:
    """Whether the run of this seed has a finished record, which `run` would return."""
    return not job.settings.fresh and published(record_folder(job, run_spec(job, seed))) is not None


def published(folder: Path) -> Record | None:
    """Read the finished record in a directory; None if it failed, is damaged, or a picture is missing or incomplete."""
    try:
        record = Record.read(folder / RECORD)
        # A failed run is made again: its cause may be outside of the spec, such as memory or a library
        complete = all((folder / name).read_bytes().endswith(END_OF_PNG) for name in record.artifacts.values())
    except (OSError, ValueError):
        return None
    return record if complete and record.status != "failed" else None


def one_line(error: BaseException) -> str:
    """Format the error of a step in one line, with its location if it is a defect of a plug-in or of the bench."""
    from bench.privacy.accountant import Overspent

    line = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if isinstance(error, RunFailed | Overspent | RuntimeError | ArithmeticError | ValueError) and str(error):
        return line
    return f"{line}{location_of(error)}; --debug shows the traceback"


@contextmanager
def run_errors() -> Iterator[None]:
    """Turn any exception in a step into a RunFailed of one line; bad input and a full disk are raised unchanged."""
    try:
        yield
    except (BenchError, RunFailed):
        raise
    except (Exception, SystemExit) as error:  # a SystemExit would end the command as if it had finished
        if disk_is_full(error):
            raise
        raise RunFailed(one_line(error)) from error
