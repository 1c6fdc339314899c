"""The stage of a run in which an inversion attack is played: on the student, the teacher and a random net."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench import data
from bench.api import AttackResult
from bench.metrics.inversion import nearest_private
from bench.metrics.power import power
from bench.nets import Classifier
from bench.pipeline import evaluation, plots, steps
from bench.pipeline.attack_targets import NAMES, PREFIXES, Artists, aims
from bench.pipeline.evaluation import Judge, Scored
from bench.pipeline.job import Job
from bench.pipeline.reference_images import references, some
from bench.storage.records import Record, RunSpec

MOST_COLUMNS, VICTIMS = 20, 10
"""Of a picture; images of each class that are victims, of either kind."""
VIEWS = "views.safetensors"


@dataclass(frozen=True)
class Victims:
    """Images that the target is seen to answer: private ones, and as many that it was never taught.

    Attributes:
        images: (m, c, h, w) uint8.
        labels: (m,) int64.
        private: (m,) bool.
    """

    images: Tensor
    labels: Tensor
    private: Tensor


def victims(material: steps.Material) -> Victims:
    """Up to VICTIMS images of each class from the private part, and as many of the test set; the same for all runs."""
    test = (material.data.test_images, material.data.test_labels)
    count = min(VICTIMS, *(int(np.bincount(labels).min()) for _, labels in (material.private, test)))
    inside, outside = (some(labels, count) for _, labels in (material.private, test))
    return Victims(
        torch.cat([material.private[0][inside], test[0][outside]]),
        torch.cat([material.private[1][inside], test[1][outside]]),
        torch.arange(len(inside) + len(outside)) < len(inside),
    )


def play(
    job: Job,
    spec: RunSpec,
    record: Record,
    student: Classifier,
    teacher: Classifier,
    evaluator: Classifier,
    seconds: dict[str, float],
) -> Artists:
    """Fill the record's metrics and its power gate; returns the picture to draw."""
    m, aim = job.material, spec.attack
    assert aim is not None and job.attack is not None
    reason = job.attack.applicable(m.data.shape, m.data.classes, len(m.aux))
    if reason is not None:
        record.status, record.reason = "skipped", f"{aim.attack} does not apply: {reason}"
        return {}
    seen = victims(m) if job.attack.observes else None
    by = _appoint(job, spec, evaluator)
    found: dict[str, AttackResult] = {}
    scored: dict[str, Scored] = {}
    for name, (aimed, network) in aims(job, spec, student, teacher).items():
        watched = None if seen is None else seen.images
        step = steps.invert(job.store, aimed, job.attack, network, m, job.context, watched)
        seconds[f"attack_{name}"] = step.seconds
        found[name] = steps.reconstructions(step)
        pairs = None if seen is None else evaluation.Pairs(seen.images, seen.labels, seen.private)
        scored[name] = evaluation.judge(found[name], by, network, pairs)
        record.metrics |= {f"{PREFIXES[name]}{key}": value for key, value in scored[name].metrics.items()}
        record.missing |= {f"{PREFIXES[name]}{key}": text for key, text in scored[name].missing.items()}
        result = step.json("result.json")
        record.metrics |= {f"{PREFIXES[name]}{key}": value for key, value in result.get("facts", {}).items()}
        if name == "student":
            record.metrics["queries"] = result["queries"]
    gate = power(scored["teacher"].confusion, scored["random"].confusion)
    record.metrics |= {"power_p_teacher": gate.p_teacher, "power_p_random": gate.p_random}
    if not gate.passed:
        record.status, record.reason = "inconclusive", gate.reason
    record.metrics |= references(job, spec, by)
    title = f"{aim.attack} against {spec.release.method} on {m.data.name}"
    draw = partial(_draw, title=title, found=found, material=m, seen=seen)
    return {"reconstructions": ("reconstructions.png", draw)}


def _appoint(job: Job, spec: RunSpec, evaluator: Classifier) -> Judge:
    """The judge; what it sees in private and held-out images is looked at once for all runs on the same data."""
    m, where = job.material, spec.release.teacher.data

    def make(path: Path) -> None:
        views = evaluation.look(evaluator, m.private[0], m.data.test_images, job.device)
        save_file({name: tensor.contiguous() for name, tensor in vars(views).items()}, path / VIEWS)

    key = {"data": asdict(where), "evaluator": asdict(spec.evaluator), "kind": "views", "version": evaluation.VERSION}
    step = job.store.step("views", key, make)
    views = evaluation.Views(**load_file(step.path / VIEWS))
    return evaluation.appoint(evaluator, m.private, (m.data.test_images, m.data.test_labels), views, job.device)


def _draw(
    path: Path, title: str, found: dict[str, AttackResult], material: steps.Material, seen: Victims | None
) -> None:
    if seen is not None:
        _draw_victims(path, title, found, material, seen)
        return
    images, labels = data.to_float(material.private[0]), material.private[1]
    classes = found["student"].targets.unique()[:MOST_COLUMNS]
    rows = []
    for name, result in found.items():
        first = [int((result.targets == c).nonzero()[0]) for c in classes]
        near = nearest_private(result.images[first], result.targets[first], images, labels)
        rows += [(f"from the {NAMES[name]}", result.images[first]), ("nearest private", images[near])]
    title += " (first image of the first draw per class)"
    plots.grid(path, title, [material.data.class_names[int(c)] for c in classes], rows)


def _draw_victims(
    path: Path, title: str, found: dict[str, AttackResult], material: steps.Material, seen: Victims
) -> None:
    """One victim of each class: a private one and one never seen, with what was made of the answers to it."""
    columns = seen.labels.unique()[:MOST_COLUMNS]
    rows = []
    for private, what in ((True, "a private image"), (False, "an unseen image")):
        numbers = [int(((seen.labels == c) & (seen.private == private)).nonzero()[0]) for c in columns]
        rows.append((what, data.to_float(seen.images[numbers])))
        for name, result in found.items():
            assert result.victims is not None
            made = [int((result.victims == number).nonzero()[0]) for number in numbers]
            rows.append((f"from the {NAMES[name]}", result.images[made]))
    plots.grid(path, title, [material.data.class_names[int(c)] for c in columns], rows)
