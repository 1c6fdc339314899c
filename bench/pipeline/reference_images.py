"""Scores of images made without a target; results of an inversion attack are compared with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench import data
from bench.api import Attack, AttackResult, DecodingAttack, GenerativeAttack
from bench.pipeline import evaluation, face_judge
from bench.pipeline.evaluation import Scorer
from bench.pipeline.face_judge import FaceJudge
from bench.pipeline.job import Job
from bench.pipeline.material import smallest_class, some_of_each_class
from bench.pipeline.trained import RESULT, Metrics
from bench.storage.specs import ReferenceImagesSpec, RunSpec, canonical

SEED = 2020
IMAGES = 20
"""Number of images per class in each reference set."""
LARGE, AT_ONCE = 2**26, 256
"""Size of a class, in bytes, above which its mean is summed in chunks of this many images."""
REDRAWN = 5
"""Number of unseen images per class that an attack's generator has to redraw."""
Sets = dict[str, tuple[Tensor, Tensor]]
"""A name of `bench.metrics.metric.REFERENCES` to images (n, c, h, w) in [0, 1] and their classes."""
METRICS = ("attack_accuracy", "inception_score", "inception_within_class", "knn_distance", "knn_gap", "fid")


def reference_metrics(
    job: Job, attack: Attack, spec: RunSpec, scorer: Scorer, faces: FaceJudge | None = None
) -> Metrics:
    """Compute the metrics of every set of reference images, as `reference_SET_METRIC`.

    The sets of `data_sets` are scored once for all runs on the same data, those of `generator_sets` for each attack.
    """

    def make(path: Path) -> None:
        (path / RESULT).write_text(canonical(score_sets(data_sets(job), scorer)), encoding="utf-8")

    step_spec = ReferenceImagesSpec(
        spec.release.teacher.data, spec.evaluator, spec.attack_spec.aux, images=IMAGES, version=evaluation.VERSION
    )
    metrics: Metrics = job.store.step("reference-images", step_spec, make).json(RESULT)
    generated = generator_sets(job, attack)
    metrics |= score_sets(generated, scorer)
    if faces is None:
        return metrics
    for name, (images, targets) in (data_sets(job) | generated).items():
        people = face_judge.face_metrics(faces.identify(images, targets))
        metrics |= {f"reference_{name}_{key}": people[key] for key in face_judge.NAMES}
    return metrics


def data_sets(job: Job) -> Sets:
    """Return the attacker's own images, class means, and unseen images of each class; the same for all attacks."""
    m, targets = job.material, _targets(job)
    rng = np.random.RandomState(SEED)
    aux = m.aux[torch.from_numpy(rng.randint(len(m.aux), size=len(targets)))]
    means = torch.stack([class_mean(*m.private, c) for c in range(m.data.classes)])
    unseen = _unseen(m.data.test_labels, IMAGES)
    return {
        "aux": (data.to_float(aux), targets),
        "class_mean": (means, torch.arange(m.data.classes)),
        "held_out": (data.to_float(m.data.test_images[unseen]), m.data.test_labels[unseen]),
    }


def generator_sets(job: Job, attack: Attack) -> Sets:
    """Return images of the attack's generator, if it has one: of random latents, and closest to unseen images.

    The latter, compared by pixels, are not an upper bound: the result of a search may be recognised more often.
    """
    m, ctx, sets = job.material, job.context(SEED), Sets()
    if isinstance(attack, GenerativeAttack):
        targets = _targets(job)
        drawn = attack.prior(len(targets), data.to_float(m.aux).to(ctx.device), ctx)
        sets["prior"] = drawn.cpu(), targets
    if isinstance(attack, DecodingAttack):
        unseen = _unseen(m.data.test_labels, REDRAWN)
        images, aux = (data.to_float(x).to(ctx.device) for x in (m.data.test_images[unseen], m.aux))
        sets["decoder"] = attack.nearest(images, aux, ctx).cpu(), m.data.test_labels[unseen]
    return sets


def score_sets(sets: Sets, scorer: Scorer) -> Metrics:
    """Score sets by the evaluator. Unseen images have no `knn_gap`: each is its own nearest unseen image."""
    metrics: Metrics = {}
    for name, (images, targets) in sets.items():
        wanted = [key for key in METRICS if name not in ("held_out", "decoder") or key != "knn_gap"]
        result = AttackResult(images, targets, torch.zeros_like(targets))
        scored = evaluation.score(result, scorer, None, None, wanted)
        metrics |= {f"reference_{name}_{key}": scored.metrics[key] for key in wanted}
    return metrics


def class_mean(images: Tensor, labels: Tensor, number: int) -> Tensor:
    """Return the mean image of a class, (c, h, w) in [0, 1]."""
    rows = (labels == number).nonzero().flatten()
    if images[0].numel() * len(rows) < LARGE:
        return data.to_float(images[rows]).mean(0)
    sums = [data.to_float(images[batch]).sum(0) for batch in rows.split(AT_ONCE)]
    return torch.stack(sums).sum(0) / len(rows)


def _unseen(labels: Tensor, count: int) -> Tensor:
    """Return indices of test images: the same number, up to `count`, for every class that has any."""
    return some_of_each_class(labels, min(count, smallest_class(labels)))


def _targets(job: Job) -> Tensor:
    """Return the classes of a set with IMAGES images of each class."""
    return torch.arange(job.material.data.classes).repeat_interleave(IMAGES)
