"""Make a run from its job to its record. A finished run is returned at once; any other one is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bench import registry
from bench.core import records
from bench.core.records import Provenance, RunRecord, Status
from bench.errors import BenchError, RunFailed, disk_is_full, location_of
from bench.pipeline.job import Job, changed_options, run_spec
from bench.storage import provenance
from bench.storage.provenance import Followed
from bench.storage.records import RECORD, Record
from bench.storage.specs import RunSpec, canonical, encodable, json_form
from bench.storage.store import publish

if TYPE_CHECKING:
    from bench.core.privacy import PrivacyReport
    from bench.pipeline.plots import Plots
    from bench.pipeline.trained import Metrics, Networks, StageResult

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
    final = _folder(job, spec)
    if not job.settings.fresh and (known := published(final)) is not None:
        _rebuild_missing_board(job)
        return Outcome(known, final, cached=True)
    job.check()
    with job.following() as made:
        try:
            record = publish_run(job, make_run(job, spec, made), final)
        except (BenchError, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as error:
            # Any exception in a plug-in fails the run and is recorded with its location; a SystemExit would otherwise
            # end the command as if it had finished
            if disk_is_full(error):
                raise
            reason = one_line(error)
            # With --fresh, or if another process works here, a good record may exist; a failure does not replace it
            kept = published(final) is not None
            if not kept:
                failure = make_record(job, spec, "failed", reason, _provenance(job, made, {}))
                publish_run(job, Finished(failure, {}), final)
            told = "not recorded: a run that ended well stays" if kept else "recorded"
            raise RunFailed(f"{reason} ({told} in {final / RECORD})") from error
    return Outcome(Record.of(record), final, cached=False)


def make_run(job: Job, spec: RunSpec, made: Followed) -> Finished:
    """Make all stages of a run that are not in the store. Raises the error of a stage.

    Args:
        made: records the steps of the run.
    """
    # Imported here: networks, accountants and pictures take seconds to import, which a cached run need not wait for
    from bench.pipeline.stages import make_release, measure_utility, train_ensemble, train_evaluator, train_teacher
    from bench.pipeline.trained import Networks

    teacher = train_teacher(job, spec.release.teacher) if job.needs_teacher else None
    evaluator = train_evaluator(job, spec.evaluator) if job.needs_evaluator else None
    ensemble = train_ensemble(job, spec.release.ensemble)
    student = make_release(job, spec.release, None if teacher is None else teacher.network, ensemble)
    networks = Networks(teacher, evaluator, ensemble, student)
    utility = measure_utility(job, networks)
    attack = run_attack(job, spec, networks)
    return _finish(job, spec, networks, [utility, attack], made)


def run_attack(job: Job, spec: RunSpec, networks: Networks) -> StageResult:
    """Run the attack on student and baselines, and score it; an empty result for a run without an attack."""
    from bench.api import MembershipAttack, ReleaseAttack
    from bench.pipeline.inversion import run_inversion
    from bench.pipeline.membership import run_membership, run_release_membership
    from bench.pipeline.trained import StageResult

    if job.attack is None:
        return StageResult()
    if isinstance(job.attack, MembershipAttack):
        return run_membership(job, job.attack, spec, networks)
    if isinstance(job.attack, ReleaseAttack):
        return run_release_membership(job, job.attack, spec, networks)
    return run_inversion(job, job.attack, spec, networks)


def _finish(job: Job, spec: RunSpec, networks: Networks, stages: list[StageResult], made: Followed) -> Finished:
    """Build the record of a completed run, with its pictures."""
    from bench.metrics.table import check

    metrics: Metrics = {}
    missing: dict[str, str] = {}
    pictures: Plots = {}
    seconds: dict[str, float] = {}
    status: Status = "ok"
    reason = ""
    for stage in stages:
        metrics |= stage.metrics
        missing |= stage.missing
        pictures |= stage.plots
        seconds |= stage.seconds
        if stage.status != "ok":
            status, reason = stage.status, stage.reason
    check(metrics)
    result = networks.student.result
    report = networks.student.account.report(job.settings.noise, result.solved or {})
    origin = _provenance(job, made, seconds)
    return Finished(make_record(job, spec, status, reason, origin, result.arch, metrics, missing, report), pictures)


def make_record(
    job: Job,
    spec: RunSpec,
    status: Status,
    reason: str,
    origin: Provenance,
    student: str = "",
    metrics: Metrics | None = None,
    missing: dict[str, str] | None = None,
    report: PrivacyReport | None = None,
) -> RunRecord:
    """Build the record of one run, without pictures; the arguments are fields of a `RunRecord`.

    Raises:
        RunFailed: a number is not finite, or a field has a wrong type.
    """
    try:
        return RunRecord(
            hash=spec.hash,
            status=status,
            reason=encodable(reason),
            spec=records.RunSpec.model_validate_json(spec.text),
            options=json_form(changed_options(job)),
            student=student,
            metrics=metrics or {},
            missing=json_form(missing or {}),
            privacy=report,
            provenance=origin,
            artifacts={},
        )
    except ValidationError as error:
        raise RunFailed(f"the result is not a record: {records.describe_first_error(error)}") from error


def _provenance(job: Job, made: Followed, seconds: dict[str, float]) -> Provenance:
    found = provenance.collect(registry.ROOT, made, seconds)
    images = {"images": job.material.counts} if job.material.counts else {}
    return Provenance.model_validate(json_form(found | images))


def publish_run(job: Job, finished: Finished, final: Path) -> RunRecord:
    """Write the record with its pictures to its directory, then the data set's board; return the published record."""
    from bench import boards

    artifacts = {key: plot.file for key, plot in finished.plots.items()}
    with job.store.exclusive(final) as work:
        for plot in finished.plots.values():
            plot.draw(work / plot.file)
        record = finished.record.model_copy(update={"artifacts": artifacts})
        (work / RECORD).write_text(canonical(record.to_plain()), encoding="utf-8")
        publish(work, final)
    boards.refresh(job.store.root, job.material.data.name)
    return record


def prepare_shared(job: Job, seed: int, only: str | None = None) -> None:
    """Train the teacher and, for inversions, the evaluator, which runs on the same data share, unless they exist.

    Args:
        only: "teacher" or "evaluator", to train only that one.

    Raises:
        BenchError: the run does not need that one.
        RunFailed: it cannot be trained.
    """
    from bench.pipeline.stages import only_asked, train_evaluator, train_teacher

    spec = run_spec(job, seed)
    steps: dict[str, Callable[[], Any]] = {}
    if job.needs_teacher:
        steps["teacher"] = partial(train_teacher, job, spec.release.teacher)
    if job.needs_evaluator:
        steps["evaluator"] = partial(train_evaluator, job, spec.evaluator)
    wanted = only_asked(steps, only)
    with failing(), job.following():
        for make in wanted.values():
            make()


def _rebuild_missing_board(job: Job) -> None:
    """Write the board of the data set if it is missing, as in a folder of runs from an older version."""
    from bench.boards.tables import RELEASES

    name = job.material.data.name
    if not (job.store.root / "leaderboards" / RELEASES / f"{name}.csv").exists():
        from bench.boards.publish import refresh

        refresh(job.store.root, name)


def is_published(job: Job, seed: int) -> bool:
    """Whether the run of this seed has a finished record, which `run` would return."""
    return not job.settings.fresh and published(_folder(job, run_spec(job, seed))) is not None


def _folder(job: Job, spec: RunSpec) -> Path:
    return job.store.root / "records" / spec.hash


def published(final: Path) -> Record | None:
    """Read the finished record in `final`; None if it failed, is damaged, or a picture is missing or incomplete."""
    try:
        record = Record.read(final / RECORD)
        # A failed run is made again: its cause may be outside of the spec, such as memory or a library
        complete = all((final / name).read_bytes().endswith(END_OF_PNG) for name in record.artifacts.values())
    except (OSError, ValueError):
        return None
    return record if complete and record.status != "failed" else None


def one_line(error: BaseException) -> str:
    """Format the error of a step in one line, with its location if it is a defect of a plug-in or of the bench."""
    from bench.privacy.accountant import Overspent

    said = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if isinstance(error, RunFailed | Overspent | RuntimeError | ArithmeticError | ValueError) and str(error):
        return said
    return f"{said}{location_of(error)}; --debug prints the traceback"


@contextmanager
def failing() -> Iterator[None]:
    """Turn any exception in a step into a RunFailed of one line; bad input and a full disk are raised unchanged."""
    try:
        yield
    except (BenchError, RunFailed):
        raise
    except (Exception, SystemExit) as error:  # a SystemExit would end the command as if it had finished
        if disk_is_full(error):
            raise
        raise RunFailed(one_line(error)) from error
