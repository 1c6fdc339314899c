"""Retrieval baselines of inversion attacks: scores of the attacker's own images that the target prefers.

Retrieval queries the target on all of the attacker's images, with the access of the attack, and returns for each class
the images with the best responses. Public images are returned unchanged, so that they reveal nothing private: an attack
reveals private data only as far as it beats them. The second baseline is the mean of the ten best images. It is the
cheapest inversion, without gradient or search, and a costlier attack should beat it. Neither baseline sees the judge.
If classes are people and the face judge is installed, it decides whether an attack beats the baselines.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.api import Access, Attack, AttackResult, GenerativeAttack, Target
from bench.data import to_float
from bench.metrics.floors import GATED_FROM, above_floor
from bench.pipeline import evaluation, face_judge
from bench.pipeline.attacks import PREFIXES, AttackTarget
from bench.pipeline.evaluation import Judge
from bench.pipeline.face_judge import FaceJudge
from bench.pipeline.job import Job
from bench.pipeline.material import quantised
from bench.pipeline.trained import Metrics
from bench.seeds import derive
from bench.storage.store import load_tensors

SEED, VERSION = 2020, 1
BEST, AVERAGED, LATENTS = 5, 10, 1000
"""Images retrieved per class; images in the mean; random latents from which the best is chosen."""
CHUNK = 512
IMAGES = "images.safetensors"
Compared = dict[str, Tensor]
"""(c, c) confusion counts: "floor" of the five public images that the target prefers, "mean" of the mean of ten."""


@dataclass(frozen=True)
class FloorMetrics:
    """The metrics of the baselines on all targets, and the missing ones with the reason."""

    metrics: Metrics
    missing: dict[str, str]


def floor_metrics(
    job: Job,
    attack: Attack,
    played: dict[str, tuple[AttackTarget, Tensor]],
    judge: Judge,
    faces: FaceJudge | None = None,
) -> FloorMetrics:
    """Run retrieval on every target, and test whether the attack beats the images and their mean.

    Args:
        played: the attack's (c, c) confusion counts by target: by the face judge if there is one
            (`Identified`), else by the evaluator (`evaluation.Scored`).
        faces: the face judge, if classes are people.
    """
    metrics: Metrics = {}
    missing: dict[str, str] = {}
    for name, (target, attacked) in played.items():
        prefix = PREFIXES[name]
        found, floors = _retrieval(job, attack, target, judge, faces)
        for of, counts in floors.items():
            gain = above_floor(attacked, counts)
            found |= {f"above_{of}": gain.gain, f"above_{of}.lo": gain.low, f"above_{of}.hi": gain.high}
            found[f"{of}_p"] = gain.p
            if gain.p is None:
                few = f"{len(counts)} classes are too few for the test, which needs {GATED_FROM}"
                missing[f"{prefix}{of}_p"] = few
        metrics |= {f"{prefix}{key}": value for key, value in found.items()}
    return FloorMetrics(metrics, missing)


def preferred(target: Target, images: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Return (classes, count) indices of the images that the target prefers for each class, the most preferred first.

    With scores, these are the largest p_c, ties by index. With labels only, images are drawn at random among those
    classified as c, or among all if there are none; draws repeat if there are fewer than `count`.

    Args:
        target: queried once per image.
        images: (n, c, h, w) in [0, 1], n >= 1.
        rng: generator of the draws, on the CPU.
    """
    if target.access == "label":
        labels = torch.cat([target.labels(part).cpu() for part in images.split(CHUNK)])
        return torch.stack([_drawn(labels == c, count, rng) for c in range(target.classes)])
    scores = torch.cat([target.scores(part).cpu() for part in images.split(CHUNK)])
    order = scores.sort(stable=True, dim=0, descending=True).indices[:count]
    return order[torch.arange(count) % len(order)].T


def _drawn(eligible: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw (count,) of the eligible indices in a random order."""
    rows = eligible.nonzero().flatten() if bool(eligible.any()) else torch.arange(len(eligible))
    order = rows[torch.randperm(len(rows), generator=rng)]
    return order[torch.arange(count) % len(order)]


def _retrieval(
    job: Job, attack: Attack, played: AttackTarget, judge: Judge, faces: FaceJudge | None
) -> tuple[Metrics, Compared]:
    """Compute the metrics of all baselines on one target, and the counts that the attack is compared with."""
    kept = _retrieved(job, attack, played)
    best, mean = to_float(kept["best"]), to_float(kept["mean"])
    scored = _scored(best.flatten(0, 1), BEST, judge)
    found = _named("retrieval_accuracy", scored.metrics)
    sets = {"retrieval_best": best[:, 0], "retrieval_next": best[:, 1], "retrieval_mean": mean}
    if isinstance(attack, GenerativeAttack):
        sets["retrieval_latents"] = _best_latents(job, attack, _target(job, attack, played))
    others = {name: _scored(images, 1, judge) for name, images in sets.items()}
    for name, one in others.items():
        found |= _named(f"{name}_accuracy", one.metrics)
    if faces is None:
        return found, {"floor": scored.confusion, "mean": others["retrieval_mean"].confusion}
    people, floors = _judged(best, sets, faces)
    return found | people, floors


def _judged(best: Tensor, sets: dict[str, Tensor], faces: FaceJudge) -> tuple[Metrics, Compared]:
    """Compute the same with the face judge, from the (classes, BEST, c, h, w) best public images and the other sets."""
    each = torch.arange(len(best))
    described = face_judge.describe(faces.job, quantised(best.flatten(0, 1))).view(len(best), BEST, -1)
    found = {
        "retrieval": faces.compared(described.flatten(0, 1), each.repeat_interleave(BEST)),
        "retrieval_best": faces.compared(described[:, 0], each),
    }
    others = [name for name in ("retrieval_mean", "retrieval_latents") if name in sets]
    found |= {name: faces.judged(sets[name], each) for name in others}
    metrics: Metrics = {}
    for name, one in found.items():
        metrics |= {f"{name}_{key}": value for key, value in face_judge.numbers(one).items()}
    return metrics, {"floor": found["retrieval"].confusion, "mean": found["retrieval_mean"].confusion}


def _retrieved(job: Job, attack: Attack, played: AttackTarget) -> dict[str, Tensor]:
    """Return uint8 "best" (classes, BEST, c, h, w), the public images that the target prefers, and "mean" (classes, c,
    h, w).

    They are stored once per target and access.
    """
    target = _target(job, attack, played)

    def make(path: Path) -> None:
        aux = to_float(job.material.aux)
        rows = preferred(target, aux.to(job.device), max(BEST, AVERAGED), _generator("retrieval"))
        tensors = {"best": quantised(aux[rows[:, :BEST]]), "mean": quantised(aux[rows[:, :AVERAGED]].mean(1))}
        save_file(tensors, path / IMAGES)

    spec = played.spec
    key: dict[str, Any] = {"target": asdict(spec.target), "aux": spec.aux, "access": target.access, "kind": "floor"}
    return load_tensors(job.store.step("floor", key | {"version": VERSION}, make).path / IMAGES)


def _target(job: Job, attack: Attack, played: AttackTarget) -> Target:
    """Return the target as baselines query it: with the access of the attack, but at most scores."""
    access: Access = "label" if attack.access == "label" else "scores"
    return Target(played.network, access, job.material.data.shape, job.material.data.classes)


def _best_latents(job: Job, attack: GenerativeAttack, target: Target) -> Tensor:
    """Return (classes, c, h, w): the generated image that the target prefers for each class, over random latents."""
    ctx = job.context(SEED)
    drawn = attack.prior(LATENTS, to_float(job.material.aux).to(ctx.device), ctx)
    seen = to_float(quantised(drawn)).to(ctx.device)
    return seen[preferred(target, seen, 1, _generator("latents"))[:, 0]].cpu()


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive(SEED, "floor", name))


def _scored(images: Tensor, each: int, judge: Judge) -> evaluation.Scored:
    """Score images that are sorted by class, `each` per class."""
    targets = torch.arange(len(images) // each).repeat_interleave(each)
    return evaluation.score(AttackResult(images, targets, torch.zeros_like(targets)), judge, None, None, [])


def _named(name: str, metrics: Metrics) -> Metrics:
    return {f"{name}{bound}": metrics[f"attack_accuracy{bound}"] for bound in ("", ".lo", ".hi")}
