"""Attacks on one target: the targets of a run, and the steps that run an attack and store its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bench.api import (
    RELEASE_LEVELS,
    Attack,
    AttackerKnowledge,
    AttackResult,
    Context,
    MembershipAttack,
    MembershipResult,
    ReleaseAttack,
    ReleasedImages,
    Shape,
    Target,
)
from bench.data import to_float
from bench.errors import RunFailed
from bench.nets import Classifier
from bench.pipeline.components import make_spec
from bench.pipeline.job import Job
from bench.pipeline.material import quantised
from bench.pipeline.memorising_generator import RECORDS, SMOKE_STEPS, STEPS
from bench.pipeline.trained import RESULT, Networks, frozen, new_network
from bench.seeds import derive
from bench.storage.specs import AttackSpec, GeneratorSpec, RandomSpec, RunSpec, canonical
from bench.storage.store import Step, load_tensors
from bench.validate import instance, present

PREFIXES = {name: f"{name}_" for name in ("teacher", "random", "unaware", "memorising")} | {"student": ""}
"""The prefix of the metrics of each target."""
NAMES = {"student": "student", "teacher": "teacher", "random": "random net", "unaware": "unaware net"}
RELEASE_NAMES = {"student": "released", "memorising": "memorising generator", "random": "random generator"}
"""The targets of attacks on released images and generators."""
AFTER_TARGET = [field.name for field in fields(AttackSpec)][1:]
"""The fields of an attack's spec other than its target."""
IMAGES, SCORES = "images.safetensors", "scores.safetensors"


@dataclass(frozen=True)
class AttackTarget:
    """A target of an attack: its key in PREFIXES, the spec of the attack on it, its network."""

    name: str
    spec: AttackSpec
    network: Classifier


def attack_specs(spec: RunSpec, make: Callable[..., Any] = make_spec) -> dict[str, AttackSpec]:
    """The attack of a run on each of its three targets: the release, and two baselines.

    The undefended teacher shows that the attack works; an untrained network shows that it finds nothing where nothing
    can be found. For attacks on released images a memorising generator replaces the teacher, which draws no images.

    Args:
        make: builds a spec of the given kind from its parts; `Components.spec` caches them.
    """
    attack = spec.attack_spec
    how = [getattr(attack, field) for field in AFTER_TARGET]
    if attack.access in RELEASE_LEVELS:
        where, steps = spec.release.teacher.data, SMOKE_STEPS if spec.tier == "smoke" else STEPS
        kept, untrained = (make(GeneratorSpec, where, RECORDS, count, attack.seed) for count in (steps, 0))
        others = {"memorising": kept, "random": untrained}
    else:
        random = make(RandomSpec, spec.release.teacher.data, spec.release.teacher.arch, attack.seed)
        others = {"teacher": spec.release.teacher, "random": random}
    return {"student": attack} | {name: make(AttackSpec, target, *how) for name, target in others.items()}


def attack_targets(job: Job, spec: RunSpec, networks: Networks) -> list[AttackTarget]:
    """Student, teacher and a network of random weights."""
    specs = attack_specs(spec)
    random = instance(specs["random"].target, RandomSpec, "random network's spec")
    untrained = new_network(random.arch, job.material, derive(random.seed, "random", random.arch))
    found = {
        "student": networks.student.network,
        "teacher": present(networks.teacher, "teacher").network,
        "random": frozen(untrained, job.device),
    }
    return [AttackTarget(name, attack, found[name]) for name, attack in specs.items()]


def invert(job: Job, attack: Attack, spec: AttackSpec, model: nn.Module, victims: Tensor | None) -> Step:
    """Reconstruct images from one target. The attack's randomness does not depend on the target.

    Args:
        model: the target's network.
        victims: (m, c, h, w) uint8 images whose responses an observing attack is shown.

    Raises:
        RunFailed: the attack's result is not of the form of an `AttackResult`.
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


def _fault(found: AttackResult, shape: Shape, classes: int, watched: int) -> str:
    """Return the fault of an attack's result before it is stored; "" if it is valid.

    Args:
        watched: number of victims shown to the attack; 0 = none.
    """
    count = len(found.images)
    if found.images.shape[1:] != shape or not count:
        return f"brought back images {tuple(found.images.shape)}; expected some of {'x'.join(map(str, shape))}"
    if not bool(found.images.isfinite().all()):
        # They would be scored as black images, and the target would look protected
        return "made images that are not finite; lower its step size"
    for name, numbers in (("targets", found.targets), ("draws", found.draws), ("victims", found.victims)):
        if numbers is not None and numbers.shape != (count,):
            return f"brought back {name} {tuple(numbers.shape)} for {count} images; expected a number for each"
    if int(found.targets.min()) < 0 or int(found.targets.max()) >= classes:
        return f"aimed at classes {int(found.targets.min())} to {int(found.targets.max())} of {classes}"
    if watched and (found.victims is None or not set(found.victims.tolist()) <= set(range(watched))):
        # An index of -1 would count from the end and compare the image with another victim
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
    """Score every suspect by a target network. The attack's randomness does not depend on the target.

    Raises:
        RunFailed: scores that are not one finite number for each suspect.
    """
    target = Target(model, attack.access, job.material.data.shape, job.material.data.classes)
    return _score_suspects(job, spec, partial(attack.infer, target), target, evidence)


def compare(
    job: Job, attack: ReleaseAttack, spec: AttackSpec, released: ReleasedImages, evidence: AttackerKnowledge
) -> Step:
    """Score every suspect by the images or the generator that were released. Raises RunFailed as `infer`."""
    return _score_suspects(job, spec, partial(attack.compare, released), released, evidence)


def _score_suspects(
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


def queries(step: Step) -> int:
    """Return how many queries an attack step sent to its target."""
    return int(step.json(RESULT)["queries"])
