"""Retrieval baselines of inversion attacks: the attacker's own images that the target classifies best, scored.

Retrieval queries the target on all of the attacker's images, with the access of the attack, and returns for each class
the images with the best responses. Public images are returned unchanged, so that they reveal nothing private: an attack
reveals private data only if it recovers more than they show. The second baseline is the mean of the ten best images. It
is the cheapest inversion, without gradient or search, and a costlier attack should beat it. Neither baseline has access
to the scorer.
If classes are people and the face judge is installed, it decides whether an attack beats the baselines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.api import Access, Attack, AttackResult, GenerativeAttack, Target
from bench.data import to_float
from bench.metrics.retrieval import GATED_FROM, gain_over_retrieval
from bench.pipeline import evaluation, face_judge
from bench.pipeline.attacks import PREFIXES, AttackTarget
from bench.pipeline.evaluation import Scorer
from bench.pipeline.face_judge import FaceJudge
from bench.pipeline.job import Job
from bench.pipeline.material import quantised
from bench.pipeline.trained import Metrics
from bench.seeds import derive
from bench.storage.specs import RetrievalSpec
from bench.storage.store import Tensors, load_tensors

SEED = 2020
BEST, AVERAGED, LATENTS = 5, 10, 1000
"""Images retrieved per class; images in the mean; random latents from which the best is chosen."""
BATCH = 512
IMAGES = "images.safetensors"


@dataclass(frozen=True)
class RetrievalMetrics:
    """The metrics of the baselines on all targets, and the missing ones with the reason."""

    metrics: Metrics
    missing: dict[str, str]


@dataclass(frozen=True)
class Baselines:
    """The metrics of all baselines on one target, and the (c, c) confusion counts that an attack is compared with.

    Attributes:
        retrieval: counts of the five public images that the target prefers for each class.
        mean: counts of the mean of the ten images that it prefers.
    """

    metrics: Metrics
    retrieval: Tensor
    mean: Tensor


def retrieval_metrics(
    job: Job,
    attack: Attack,
    targets: Sequence[AttackTarget],
    confusions: Mapping[str, Tensor],
    scorer: Scorer,
    faces: FaceJudge | None = None,
) -> RetrievalMetrics:
    """Run retrieval on every target, and test whether the attack beats the images and their mean.

    Args:
        confusions: the attack's (c, c) confusion counts by target: of the face judge if there is one
            (`Identification`), else of the evaluator (`evaluation.Scored`).
        faces: the face judge, if classes are people.
    """
    metrics: Metrics = {}
    missing: dict[str, str] = {}
    for target in targets:
        prefix = PREFIXES[target.name]
        baselines = score_baselines(job, attack, target, scorer, faces)
        metrics |= {f"{prefix}{key}": value for key, value in baselines.metrics.items()}
        for name, counts in (("floor", baselines.retrieval), ("mean", baselines.mean)):
            gain = gain_over_retrieval(confusions[target.name], counts)
            bounds = {"": gain.gain, ".lo": gain.low, ".hi": gain.high}
            metrics |= {f"{prefix}above_{name}{bound}": value for bound, value in bounds.items()}
            metrics[f"{prefix}{name}_p"] = gain.p
            if gain.p is None:
                reason = f"{len(counts)} classes are too few for the test, which needs {GATED_FROM}"
                missing[f"{prefix}{name}_p"] = reason
    return RetrievalMetrics(metrics, missing)


def preferred(target: Target, images: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Return (classes, count) indices of the images that the target prefers for each class, the most preferred first.

    With scores, these are the largest p_c, ties by index. With labels only, images are drawn at random among those
    classified as c, or among all if there are none; draws repeat if there are fewer than `count`.

    Args:
        target: queried once per image.
        images: (n, c, h, w) in [0, 1], n >= 1.
        rng: generator of the draws, on the CPU.
    """
    if target.access != "label":
        scores = torch.cat([target.scores(batch).cpu() for batch in images.split(BATCH)])
        order = scores.sort(stable=True, dim=0, descending=True).indices[:count]
        return order[torch.arange(count) % len(order)].T
    labels = torch.cat([target.labels(batch).cpu() for batch in images.split(BATCH)])
    drawn = []
    for c in range(target.classes):
        candidates = (labels == c).nonzero().flatten() if bool((labels == c).any()) else torch.arange(len(labels))
        order = candidates[torch.randperm(len(candidates), generator=rng)]
        drawn.append(order[torch.arange(count) % len(order)])
    return torch.stack(drawn)


def score_baselines(
    job: Job, attack: Attack, target: AttackTarget, scorer: Scorer, faces: FaceJudge | None
) -> Baselines:
    """Score all baselines on one target by the evaluator and, if there is one, by the face judge."""
    # Baselines query the target with the access of the attack, but at most with scores
    access: Access = "label" if attack.access == "label" else "scores"
    queried = Target(target.network, access, job.material.data.shape, job.material.data.classes)
    retrieved = retrieve(job, target, queried)
    best, mean = to_float(retrieved["best"]), to_float(retrieved["mean"])
    sets = {"retrieval_best": best[:, 0], "retrieval_next": best[:, 1], "retrieval_mean": mean}
    if isinstance(attack, GenerativeAttack):
        sets["retrieval_latents"] = best_latents(job, attack, queried)
    scored = {"retrieval": _scored(best.flatten(0, 1), BEST, scorer)}
    scored |= {name: _scored(images, 1, scorer) for name, images in sets.items()}
    metrics: Metrics = {}
    for name, one in scored.items():
        metrics |= {f"{name}_accuracy{bound}": one.metrics[f"attack_accuracy{bound}"] for bound in ("", ".lo", ".hi")}
    if faces is None:
        return Baselines(metrics, scored["retrieval"].confusion, scored["retrieval_mean"].confusion)
    each = torch.arange(len(best))
    described = face_judge.describe(faces.job, quantised(best.flatten(0, 1))).view(len(best), BEST, -1)
    found = {
        "retrieval": faces.identify_descriptors(described.flatten(0, 1), each.repeat_interleave(BEST)),
        "retrieval_best": faces.identify_descriptors(described[:, 0], each),
    }
    others = [name for name in ("retrieval_mean", "retrieval_latents") if name in sets]
    found |= {name: faces.identify(sets[name], each) for name in others}
    for name, judged in found.items():
        metrics |= {f"{name}_{key}": value for key, value in face_judge.face_metrics(judged).items()}
    return Baselines(metrics, found["retrieval"].confusion, found["retrieval_mean"].confusion)


def retrieve(job: Job, target: AttackTarget, queried: Target) -> Tensors:
    """Return uint8 "best" (classes, BEST, c, h, w), the public images that the target prefers, and "mean" (classes, c,
    h, w).

    They are stored once per target and access.
    """

    def make(path: Path) -> None:
        aux = to_float(job.material.aux)
        rows = preferred(queried, aux.to(job.device), max(BEST, AVERAGED), _generator("retrieval"))
        tensors = {"best": quantised(aux[rows[:, :BEST]]), "mean": quantised(aux[rows[:, :AVERAGED]].mean(1))}
        save_file(tensors, path / IMAGES)

    spec = RetrievalSpec(target.spec.target, target.spec.aux, queried.access)
    return load_tensors(job.store.step("floor", spec, make).path / IMAGES)


def best_latents(job: Job, attack: GenerativeAttack, queried: Target) -> Tensor:
    """Return (classes, c, h, w): the generated image that the target prefers for each class, over random latents."""
    ctx = job.context(SEED)
    drawn = attack.prior(LATENTS, to_float(job.material.aux).to(ctx.device), ctx)
    images = to_float(quantised(drawn)).to(ctx.device)
    return images[preferred(queried, images, 1, _generator("latents"))[:, 0]].cpu()


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive(SEED, "floor", name))


def _scored(images: Tensor, per_class: int, scorer: Scorer) -> evaluation.Scored:
    """Score images that are sorted by class by the evaluator."""
    targets = torch.arange(len(images) // per_class).repeat_interleave(per_class)
    return evaluation.score(AttackResult(images, targets, torch.zeros_like(targets)), scorer, None, None, [])
