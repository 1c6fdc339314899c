"""The steps in which an attack is played on one target, and what it brought back is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bench.api import (
    Attack,
    AttackerKnowledge,
    AttackResult,
    Context,
    MembershipAttack,
    MembershipResult,
    ReleaseAttack,
    ReleasedImages,
    Target,
)
from bench.data import to_float
from bench.errors import RunFailed
from bench.pipeline.job import Job
from bench.pipeline.material import quantised
from bench.pipeline.trained import RESULT
from bench.seeds import derive
from bench.storage.specs import AttackSpec, canonical
from bench.storage.store import Step, load_tensors

IMAGES, SCORES = "images.safetensors", "scores.safetensors"


def invert(job: Job, attack: Attack, spec: AttackSpec, model: nn.Module, victims: Tensor | None) -> Step:
    """The images an attack brings back from one target. The attack's randomness does not depend on the target.

    Args:
        model: the target's network.
        victims: (m, c, h, w) uint8 images that the target is seen to answer, for attacks that watch.
    """
    ctx = job.context(derive(spec.seed, "attack", spec.attack))
    shape, classes = job.material.data.shape, job.material.data.classes

    def make(path: Path) -> None:
        torch.manual_seed(ctx.seed)
        watched = None if victims is None else to_float(victims).to(ctx.device)
        target = Target(model, attack.access, shape, classes, watched)
        found = attack.run(target, to_float(job.material.aux).to(ctx.device), ctx)
        if fault := _fault(found, shape, classes, 0 if victims is None else len(victims)):
            raise RunFailed(f"{spec.attack} {fault}")
        tensors = {"images": quantised(found.images), "targets": found.targets.cpu(), "draws": found.draws.cpu()}
        if found.victims is not None:
            tensors["victims"] = found.victims.cpu()
        result = {"queries": target.queries} | ({"facts": found.facts} if found.facts else {})
        save_file({name: t.contiguous().clone() for name, t in tensors.items()}, path / IMAGES)
        (path / RESULT).write_text(canonical(result), encoding="utf-8")

    return job.store.step("attack", asdict(spec), make)


def _fault(found: AttackResult, shape: tuple[int, int, int], classes: int, watched: int) -> str:
    """What is wrong with what an attack brought back, before it is kept; "" if all is well.

    Args:
        watched: how many victims it was shown; 0 = none.
    """
    count = len(found.images)
    if found.images.shape[1:] != shape or not count:
        return f"brought back images {tuple(found.images.shape)}; expected some of {'x'.join(map(str, shape))}"
    if not bool(found.images.isfinite().all()):
        # As black images they would be judged, and the target would look protected
        return "made images that are not finite; lower its step size"
    for name, numbers in (("targets", found.targets), ("draws", found.draws), ("victims", found.victims)):
        if numbers is not None and numbers.shape != (count,):
            return f"brought back {name} {tuple(numbers.shape)} for {count} images; expected a number for each"
    if int(found.targets.min()) < 0 or int(found.targets.max()) >= classes:
        return f"aimed at classes {int(found.targets.min())} to {int(found.targets.max())} of {classes}"
    if watched and (found.victims is None or not set(found.victims.tolist()) <= set(range(watched))):
        # From -1 on one would be counted from the end, and the image held against another victim
        return f"does not say of each image which of the {watched} victims it shows"
    return ""


def reconstructions(step: Step) -> AttackResult:
    """The images of an attack step, as every scorer sees them: quantised to 8 bits and back."""
    tensors = load_tensors(step.path / IMAGES)
    facts = step.json(RESULT).get("facts", {})
    return AttackResult(
        to_float(tensors["images"]), tensors["targets"], tensors["draws"], tensors.get("victims"), facts
    )


def infer(job: Job, attack: MembershipAttack, spec: AttackSpec, model: nn.Module, evidence: AttackerKnowledge) -> Step:
    """What a membership attack thinks of every suspect. Its randomness does not depend on the target.

    Raises:
        RunFailed: scores that are not one finite number for each suspect.
    """
    target = Target(model, attack.access, job.material.data.shape, job.material.data.classes)
    return _guess(job, spec, partial(attack.infer, target), target, evidence)


def compare(
    job: Job, attack: ReleaseAttack, spec: AttackSpec, released: ReleasedImages, evidence: AttackerKnowledge
) -> Step:
    """The same of an attack on what is released besides the student."""
    return _guess(job, spec, partial(attack.compare, released), released, evidence)


def _guess(
    job: Job,
    spec: AttackSpec,
    play: Callable[[AttackerKnowledge, Context], MembershipResult],
    target: Target | ReleasedImages,
    evidence: AttackerKnowledge,
) -> Step:
    ctx = job.context(derive(spec.seed, "attack", spec.attack))

    def make(path: Path) -> None:
        torch.manual_seed(ctx.seed)
        scores = play(evidence, ctx).scores.detach().double().cpu().contiguous()
        if scores.shape != evidence.labels.shape or not bool(scores.isfinite().all()):
            raise RunFailed(
                f"{spec.attack} gave scores of shape {tuple(scores.shape)} for {len(evidence.labels)} suspects, or "
                "some that are not finite"
            )
        save_file({"scores": scores}, path / SCORES)
        (path / RESULT).write_text(canonical({"queries": target.queries}), encoding="utf-8")

    return job.store.step("membership", asdict(spec), make)


def membership_scores(step: Step) -> Tensor:
    """(n,) float64, the scores of a membership step."""
    return load_tensors(step.path / SCORES)["scores"]
