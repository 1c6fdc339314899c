"""teacher -> release -> attack -> score -> record, each step made once and kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import leaderboard, registry
from bench.api import Teacher
from bench.errors import RunFailed
from bench.nets import Classifier
from bench.pipeline import evaluation, inversion_stage, membership_stage, plots, steps
from bench.pipeline.attack_targets import Artists
from bench.pipeline.job import Job, Settings, prepare, run_spec, setting, shards_of
from bench.privacy.accountant import Overspent
from bench.storage import provenance
from bench.storage.records import RECORD, Record, RunSpec, canonical
from bench.storage.store import Step, publish

__all__ = ["Job", "Outcome", "RunFailed", "Settings", "begin", "prepare", "run", "run_spec"]


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
    final = job.store.root / "records" / spec.hash
    if not job.settings.fresh and (known := _published(final)) is not None:
        return Outcome(known, final, cached=True)
    try:
        record, artists = _walk(job, spec)
    except (RunFailed, Overspent, RuntimeError, ArithmeticError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if _published(final) is None:
            record = Record(spec.hash, "failed", reason, asdict(spec), setting(job))
            record.provenance = _provenance(job, {})
            _publish(job, record, final, {})
        raise RunFailed(f"{reason} (recorded in {final / RECORD})") from error
    _publish(job, record, final, artists)
    return Outcome(record, final, cached=False)


def begin(job: Job, seed: int) -> None:
    """Make what runs on the same data share, teacher and evaluator, unless it is there. Raises RunFailed."""
    spec = run_spec(job, seed)
    try:
        _begin(job, spec)
    except (RuntimeError, ArithmeticError, ValueError) as error:
        raise RunFailed(f"{type(error).__name__}: {error}".splitlines()[0]) from error


def _begin(job: Job, spec: RunSpec) -> tuple[tuple[Step, Classifier], tuple[Step, Classifier]]:
    """Teacher and evaluator."""
    s, m = job.settings, job.material
    return (
        steps.teacher(job.store, spec.release.teacher, job.recipe, m, s.teacher_weights, job.context),
        steps.evaluator(job.store, spec.evaluator, job.evaluator_recipe, m, job.context),
    )


def _published(final: Path) -> Record | None:
    """The finished record in `final`, unless it failed, is damaged or lacks a picture."""
    try:
        record = Record.read(final / RECORD)
    except (OSError, ValueError):
        return None
    complete = all((final / name).exists() for name in record.artifacts.values())
    return record if complete and record.status != "failed" else None


def _walk(job: Job, spec: RunSpec) -> tuple[Record, Artists]:
    s, m = job.settings, job.material
    (taught, teacher_net), (judged, evaluator_net) = _begin(job, spec)
    seconds = {"teacher": taught.seconds, "evaluator": judged.seconds}
    record = Record(spec.hash, "ok", "", asdict(spec), setting(job))
    members = None
    if (wanted := spec.release.ensemble) is not None and (shards := shards_of(job)) is not None:
        trained, members = steps.ensemble(job.store, wanted, shards, m, job.context)
        seconds["ensemble"] = trained.seconds
        result = trained.json("result.json")
        record.metrics |= evaluation.with_interval("ensemble_accuracy", result["correct"], result["tested"])
        record.metrics["member_accuracy"] = result["member_accuracy"]
    private = m.private if "private_data" in job.method.needs else None
    teacher = Teacher(teacher_net, s.teacher, m.data.shape, m.data.classes, m.data.name, private, members, m.public)
    released, student_net = steps.release(job.store, spec.release, job.method, s.budget, teacher, m, job.context)
    seconds["release"] = released.seconds
    for name, step in (("teacher_accuracy", taught), ("evaluator_accuracy", judged), ("accuracy", released)):
        result = step.json("result.json")
        record.metrics |= evaluation.with_interval(name, result["correct"], result["tested"])
    result = released.json("result.json")
    if "control" in result:
        control = result["control"]
        record.metrics |= evaluation.with_interval("control_accuracy", control["correct"], control["tested"])
    record.student = result["arch"]
    record.privacy = result["privacy"] | {"noise": s.noise, "solved": result["solved"]}
    artists: Artists = {}
    if (shown := steps.synthetic(released)) is not None and len(shown):
        artists["synthetic"] = (
            "synthetic.png",
            partial(_draw_synthetic, title=f"{s.method}: synthetic images", images=shown),
        )
    if spec.attack is not None:
        if job.attack is not None and job.attack.goal == "membership":
            artists |= membership_stage.play(job, spec, record, student_net, teacher_net, seconds)
        else:
            artists |= inversion_stage.play(job, spec, record, student_net, teacher_net, evaluator_net, seconds)
    record.provenance = _provenance(job, seconds)
    return record, artists


def _draw_synthetic(path: Path, title: str, images: torch.Tensor) -> None:
    """At most six rows of ten, or one shorter row."""
    columns = min(10, len(images))
    whole = images[: min(60, len(images) // columns * columns)]
    plots.grid(path, title, [""] * columns, [("", row) for row in whole.split(columns)])


def _provenance(job: Job, seconds: dict[str, float]) -> dict[str, Any]:
    return provenance.collect(registry.ROOT, job.device, job.settings.precision, seconds)


def _publish(job: Job, record: Record, final: Path, artists: Artists) -> None:
    """Write the record with its pictures into its own directory, then the data set's board."""
    with job.store.exclusive(final) as work:
        for key, (file, draw) in artists.items():
            draw(work / file)
            record.artifacts[key] = file
        (work / RECORD).write_text(canonical(asdict(record)), encoding="utf-8")
        publish(work, final)
    leaderboard.refresh(job.store.root, job.material.data.name)
