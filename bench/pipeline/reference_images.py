"""What images score that no target was asked about; every row of an inversion attack needs these to be read."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench import data
from bench.api import AttackResult, GenerativeAttack
from bench.pipeline import evaluation
from bench.pipeline.evaluation import Judge, Metrics
from bench.pipeline.job import Job
from bench.storage.records import RunSpec, canonical

SEED = 2020
IMAGES = 20
"""Of each class, in each set of reference images."""
METRICS = ("attack_accuracy", "inception_score", "inception_within_class", "knn_distance", "knn_gap", "fid")
RESULT = "result.json"


def references(job: Job, spec: RunSpec, by: Judge) -> Metrics:
    """The metrics of every set of reference images, as `reference_SET_METRIC`.

    The attacker's own images, class means, unseen images of the class, all three scored once for all runs on the same
    data; and where the attack has a generator, its images of random latent vectors. Unseen images have no `knn_gap`:
    each is its own nearest unseen image.
    """
    assert job.attack is not None and spec.attack is not None

    def make(path: Path) -> None:
        (path / RESULT).write_text(canonical(_of_data(job, by)), encoding="utf-8")

    key: dict[str, Any] = {"data": asdict(spec.release.teacher.data), "evaluator": asdict(spec.evaluator)}
    key |= {"aux": spec.attack.aux, "images": IMAGES, "kind": "references", "version": evaluation.VERSION}
    found: Metrics = job.store.step("references", key, make).json(RESULT)
    if isinstance(job.attack, GenerativeAttack):
        ctx, targets = job.context(SEED), _targets(job)
        drawn = job.attack.prior(len(targets), data.to_float(job.material.aux).to(ctx.device), ctx)
        found |= _scored("prior", drawn.cpu(), targets, by)
    return found


def _of_data(job: Job, by: Judge) -> Metrics:
    m, targets = job.material, _targets(job)
    test_images, test_labels = m.data.test_images, m.data.test_labels
    rng = np.random.RandomState(SEED)
    aux = m.aux[torch.from_numpy(rng.randint(len(m.aux), size=len(targets)))]
    means = torch.stack([data.to_float(m.private[0][m.private[1] == c]).mean(0) for c in range(m.data.classes)])
    unseen = some(test_labels, min(IMAGES, int(np.bincount(test_labels).min())))
    return (
        _scored("aux", data.to_float(aux), targets, by)
        | _scored("class_mean", means, torch.arange(m.data.classes), by)
        | _scored("held_out", data.to_float(test_images[unseen]), test_labels[unseen], by)
    )


def _targets(job: Job) -> Tensor:
    return torch.arange(job.material.data.classes).repeat_interleave(IMAGES)


def _scored(name: str, images: Tensor, targets: Tensor, by: Judge) -> Metrics:
    wanted = [key for key in METRICS if (name, key) != ("held_out", "knn_gap")]
    scored = evaluation.judge(AttackResult(images, targets, torch.zeros_like(targets)), by, None, None, wanted)
    return {f"reference_{name}_{key}": scored.metrics[key] for key in wanted}


def some(labels: Tensor, count: int) -> Tensor:
    """Indices of `count` records of each class, class by class, chosen by a seed of their own."""
    rng = np.random.RandomState(SEED)
    by_class = [(labels == c).nonzero().flatten() for c in labels.unique()]
    return torch.cat([rows[torch.from_numpy(rng.permutation(len(rows))[:count])] for rows in by_class])
