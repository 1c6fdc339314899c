"""Attacks on one target: the targets of a run, and the steps that run an attack and store its results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

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
from bench.pipeline.components import MakeSpec, make_spec
from bench.pipeline.job import Job
from bench.pipeline.material import quantised
from bench.pipeline.memorising_generator import RECORDS, SMOKE_STEPS, STEPS
from bench.pipeline.trained import RESULT, Networks, frozen, new_network
from bench.seeds import derive
from bench.storage.specs import AttackSpec, GeneratorSpec, RandomSpec, RunSpec, TeacherSpec, canonical
from bench.storage.store import Step, load_tensors
from bench.validate import instance, present

PREFIXES = {
    "student": "",
    "teacher": "teacher_",
    "random": "random_",
    "unaware": "unaware_",
    "memorising": "memorising_",
}
"""The prefix of the metrics of each target."""
LABELS = {"student": "student", "teacher": "teacher", "random": "random net", "unaware": "unaware net"}
"""The targets of attacks on networks, as pictures name them."""
RELEASE_LABELS = {"student": "released", "memorising": "memorising generator", "random": "random generator"}
"""The targets of attacks on released images and generators."""
IMAGES, SCORES = "images.safetensors", "scores.safetensors"


@dataclass(frozen=True)
class AttackTarget:
    """A target of an attack: its key in PREFIXES, the spec of the attack on it, its network."""

    name: str
    spec: AttackSpec
    network: Classifier


def attack_specs(spec: RunSpec, make: MakeSpec = make_spec) -> dict[str, AttackSpec]:
    """Return the specs of a run's attack on each of its three targets: the release, and two baselines.

    The undefended teacher shows that the attack works; an untrained network shows that it finds nothing where nothing
    can be found. For attacks on released images a memorising generator replaces the teacher, which draws no images.

    Args:
        make: builds a spec of the given kind from its fields; `Components.spec` caches them.
    """
    attack, teacher = spec.attack_spec, spec.release.teacher
    baselines: dict[str, TeacherSpec | RandomSpec | GeneratorSpec]
    if attack.access in RELEASE_LEVELS:
        steps = SMOKE_STEPS if spec.tier == "smoke" else STEPS
        baselines = {
            "memorising": make(GeneratorSpec, teacher.data, RECORDS, steps, attack.seed),
            "random": make(GeneratorSpec, teacher.data, RECORDS, 0, attack.seed),
        }
    else:
        baselines = {"teacher": teacher, "random": make(RandomSpec, teacher.data, teacher.arch, attack.seed)}
    same = {field.name: getattr(attack, field.name) for field in fields(AttackSpec) if field.name != "target"}
    specs = {name: make(AttackSpec, target=target, **same) for name, target in baselines.items()}
    return {"student": attack} | specs


def attack_targets(job: Job, spec: RunSpec, networks: Networks) -> list[AttackTarget]:
    """Return the targets of an attack on networks: student, teacher and an untrained network."""
    specs = attack_specs(spec)
    random = instance(specs["random"].target, RandomSpec, "random network's spec")
    untrained = new_network(random.arch, job.material, derive(random.seed, "random", random.arch))
    return [
        AttackTarget("student", specs["student"], networks.student.network),
        AttackTarget("teacher", specs["teacher"], present(networks.teacher, "teacher").network),
        AttackTarget("random", specs["random"], frozen(untrained, job.device)),
    ]


def invert(job: Job, attack: Attack, spec: AttackSpec, model: nn.Module, victims: Tensor | None) -> Step:
    """Reconstruct images from one target. The attack's randomness does not depend on the target.

    Args:
        model: the target's network.
        victims: (m, c, h, w) uint8 images; an observing attack receives the target's responses to them.

    Raises:
        RunFailed: the attack's result is not of the form of an `AttackResult`.
    """
    ctx = job.context(derive(spec.seed, "attack", spec.attack))
    shape, classes = job.material.data.shape, job.material.data.classes

    def make(path: Path) -> None:
        torch.manual_seed(ctx.seed)
        observed = None if victims is None else to_float(victims).to(ctx.device)
        target = Target(model, attack.access, shape, classes, observed)
        found = attack.run(target, to_float(job.material.aux).to(ctx.device), ctx)
        if fault := _fault(found, shape, classes, 0 if victims is None else len(victims)):
            raise RunFailed(f"{spec.attack} {fault}")
        tensors = {"images": quantised(found.images), "targets": found.targets.cpu(), "draws": found.draws.cpu()}
        if found.victims is not None:
            tensors["victims"] = found.victims.cpu()
        result = {"queries": target.queries} | ({"facts": found.facts} if found.facts else {})
        save_file({name: t.contiguous().clone() for name, t in tensors.items()}, path / IMAGES)
        (path / RESULT).write_text(canonical(result), encoding="utf-8")

    return job.store.step("attack", spec, make)


def _fault(found: AttackResult, shape: Shape, classes: int, victims: int) -> str:
    """Return the fault of an attack's result before it is stored; "" if it is valid.

    Args:
        victims: number of victims whose responses the attack received; 0 = none.
    """
    count = len(found.images)
    if found.images.shape[1:] != shape or not count:
        return f"returned images of shape {tuple(found.images.shape)}; expected at least one of shape {shape}"
    if not bool(found.images.isfinite().all()):
        # They would be scored as black images, and the target would look protected
        return "made images that are not finite; lower its step size"
    for name, numbers in (("targets", found.targets), ("draws", found.draws), ("victims", found.victims)):
        if numbers is not None and numbers.shape != (count,):
            return f"returned {name} of shape {tuple(numbers.shape)}; expected a number for each of {count} images"
    if int(found.targets.min()) < 0 or int(found.targets.max()) >= classes:
        return f"has targets {int(found.targets.min())} to {int(found.targets.max())}; expected classes below {classes}"
    if victims and (found.victims is None or not set(found.victims.tolist()) <= set(range(victims))):
        # An index of -1 would count from the end and compare the image with another victim
        return f"must return for each image the index of the victim that it shows, below {victims}"
    return ""


def reconstructions(step: Step) -> AttackResult:
    """Return the images of an attack step as every scorer receives them: quantised to 8 bits and back."""
    tensors = load_tensors(step.path / IMAGES)
    facts = step.json(RESULT).get("facts", {})
    return AttackResult(
        to_float(tensors["images"]), tensors["targets"], tensors["draws"], tensors.get("victims"), facts
    )


def infer(job: Job, attack: MembershipAttack, spec: AttackSpec, model: nn.Module, knowledge: AttackerKnowledge) -> Step:
    """Score every suspect by a target network. The attack's randomness does not depend on the target.

    Raises:
        RunFailed: scores that are not one finite number for each suspect.
    """
    target = Target(model, attack.access, job.material.data.shape, job.material.data.classes)
    return _score_suspects(job, spec, partial(attack.infer, target), target, knowledge)


def compare(
    job: Job, attack: ReleaseAttack, spec: AttackSpec, released: ReleasedImages, knowledge: AttackerKnowledge
) -> Step:
    """Score every suspect by the images or the generator that were released. Raises RunFailed as `infer`."""
    return _score_suspects(job, spec, partial(attack.compare, released), released, knowledge)


def _score_suspects(
    job: Job,
    spec: AttackSpec,
    attack: Callable[[AttackerKnowledge, Context], MembershipResult],
    target: Target | ReleasedImages,
    knowledge: AttackerKnowledge,
) -> Step:
    """Run a membership attack on one target and store its scores and facts."""
    ctx = job.context(derive(spec.seed, "attack", spec.attack))

    def make(path: Path) -> None:
        torch.manual_seed(ctx.seed)
        found = attack(knowledge, ctx)
        scores = found.scores.detach().double().cpu().contiguous()
        if scores.shape != knowledge.labels.shape or not bool(scores.isfinite().all()):
            raise RunFailed(
                f"{spec.attack} returned scores of shape {tuple(scores.shape)} or some that are not finite; expected a "
                f"finite number for each of {len(knowledge.labels)} suspects"
            )
        strange = [name for name, value in found.facts.items() if not math.isfinite(value)]
        if strange:
            raise RunFailed(f"{spec.attack} returned facts that are not finite: {', '.join(strange)}")
        save_file({"scores": scores}, path / SCORES)
        result: dict[str, object] = {"queries": target.queries}
        result |= {"facts": found.facts} if found.facts else {}
        result |= {"missing": found.missing} if found.missing else {}
        (path / RESULT).write_text(canonical(result), encoding="utf-8")

    return job.store.step("membership", spec, make)


def membership_result(step: Step) -> MembershipResult:
    """Return the result of a membership step: (n,) float64 scores, and the facts of the attack."""
    result = step.json(RESULT)
    scores = load_tensors(step.path / SCORES)["scores"]
    return MembershipResult(scores, dict(result.get("facts", {})), dict(result.get("missing", {})))


def queries(step: Step) -> int:
    """Return the number of queries that an attack step sent to its target."""
    return int(step.json(RESULT)["queries"])
