"""The steps of a run, one after the other, and the record that they end in.

Apart from `run`, which imports this where there is no record yet: networks, accountants and pictures take seconds to
import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import boards, registry
from bench.api import MembershipAttack, ReleaseAttack
from bench.metrics.table import check
from bench.pipeline import (
    inversion_stage,
    membership_stage,
    release_membership_stage,
    release_step,
    teacher_steps,
    utility_stage,
)
from bench.pipeline.failures import failing
from bench.pipeline.job import Job
from bench.pipeline.plots import Plots
from bench.pipeline.run_spec import changed_options, run_spec
from bench.pipeline.stage_result import StageResult
from bench.pipeline.trained import Networks
from bench.storage import provenance
from bench.storage.provenance import Followed
from bench.storage.records import RECORD, Record
from bench.storage.specs import RunSpec
from bench.storage.store import publish


def prepare_shared(job: Job, seed: int, only: str | None = None) -> None:
    """Make what runs on the same data share, teacher and, for inversions, evaluator, unless it is there.

    Args:
        only: "teacher" or "evaluator", to make that alone.

    Raises:
        BenchError: the run does not ask for that one.
        RunFailed: it cannot be trained.
    """
    spec = run_spec(job, seed)
    steps: dict[str, Callable[[], Any]] = {}
    if job.asks_teacher:
        steps["teacher"] = partial(teacher_steps.teacher, job, spec.release.teacher)
    if job.judged:
        steps["evaluator"] = partial(teacher_steps.evaluator, job, spec.evaluator)
    asked = teacher_steps.only_asked(steps, only)
    with failing(), job.following():
        for make in asked.values():
            make()


@dataclass(frozen=True)
class Finished:
    """A record with the pictures that belong beside it."""

    record: Record
    plots: Plots


def walk(job: Job, spec: RunSpec, made: Followed) -> Finished:
    """All steps of a run, each made unless it is there and noted in `made`. Raises what a step raises."""
    teacher = teacher_steps.teacher(job, spec.release.teacher) if job.asks_teacher else None
    evaluator = teacher_steps.evaluator(job, spec.evaluator) if job.judged else None
    ensemble = teacher_steps.ensemble(job, spec.release.ensemble)
    student = release_step.release(job, spec.release, None if teacher is None else teacher.network, ensemble)
    networks = Networks(teacher, evaluator, ensemble, student)
    utility = utility_stage.measure(job, networks)
    attack = _attack(job, spec, networks)
    return _finished(job, spec, networks, [utility, attack], made)


def _attack(job: Job, spec: RunSpec, networks: Networks) -> StageResult:
    """The attack played on student, teacher and a random net, and scored; nothing where no attack was asked for."""
    if job.attack is None:
        return StageResult()
    if isinstance(job.attack, MembershipAttack):
        return membership_stage.infer(job, job.attack, spec, networks)
    if isinstance(job.attack, ReleaseAttack):
        return release_membership_stage.compare(job, job.attack, spec, networks)
    return inversion_stage.invert(job, job.attack, spec, networks)


def _finished(job: Job, spec: RunSpec, networks: Networks, stages: Sequence[StageResult], made: Followed) -> Finished:
    """The record of a run that came to its end."""
    result = networks.student.result
    privacy = result["privacy"] | {"noise": job.settings.noise, "solved": result["solved"]}
    record = Record(spec.hash, "ok", "", asdict(spec), changed_options(job), result["arch"], privacy=privacy)
    pictures, seconds = Plots(), dict[str, float]()
    for stage in stages:
        record.metrics |= stage.metrics
        record.missing |= stage.missing
        if stage.status != "ok":
            record.status, record.reason = stage.status, stage.reason
        pictures |= stage.plots
        seconds |= stage.seconds
    check(record.metrics)
    record.provenance = _provenance(job, made, seconds)
    return Finished(record, pictures)


def failed(job: Job, spec: RunSpec, reason: str, made: Followed) -> Finished:
    """The record of a run that did not."""
    record = Record(spec.hash, "failed", reason, asdict(spec), changed_options(job))
    record.provenance = _provenance(job, made, {})
    return Finished(record, {})


def _provenance(job: Job, made: Followed, seconds: dict[str, float]) -> dict[str, Any]:
    found = provenance.collect(registry.ROOT, made, seconds)
    return found | ({"images": job.material.counts} if job.material.counts else {})


def publish_run(job: Job, finished: Finished, final: Path) -> None:
    """Write the record with its pictures into its own directory, then the data set's board."""
    with job.store.exclusive(final) as work:
        for key, plot in finished.plots.items():
            plot.draw(work / plot.file)
            finished.record.artifacts[key] = plot.file
        (work / RECORD).write_text(finished.record.to_json(), encoding="utf-8")
        publish(work, final)
    boards.refresh(job.store.root, job.material.data.name)
