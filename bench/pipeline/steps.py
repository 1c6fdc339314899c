"""The steps of a run, each made once and kept in the store: teacher, evaluator, release, attack."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bench import nets, teachers
from bench.api import AttackResult, Context, Evidence, MembershipResult, Release, Shards, Target, Teacher
from bench.data import ImageData, to_float
from bench.data.partition import partition
from bench.errors import BenchError, RunFailed
from bench.privacy import Budget, Claim, Ledger, accountant, noise
from bench.seeds import derive
from bench.storage.records import (
    AttackSpec,
    EnsembleSpec,
    EvaluatorSpec,
    RandomSpec,
    ReleaseSpec,
    TeacherSpec,
    canonical,
    number,
)
from bench.storage.store import Step, Store

ContextFor = Callable[[int], Context]
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Material:
    """The images of a run, uint8: the whole data set, the teacher's private part, the attacker's part, the latter's
    labels where its classes are the private ones, and the public part, unlabelled, if the method asks for one."""

    data: ImageData
    private: tuple[Tensor, Tensor]
    aux: Tensor
    aux_labels: Tensor | None = None
    public: Tensor | None = None


def _new_network(arch: str, material: Material, seed: int) -> nets.Classifier:
    torch.manual_seed(seed)
    return nets.build(arch, material.data.shape, material.data.classes)


def _load_network(step: Step, arch: str, material: Material, device: torch.device) -> nets.Classifier:
    model = _new_network(arch, material, 0)
    teachers.load(step.path / WEIGHTS, model)
    return model.to(device).eval().requires_grad_(False)


def _measure(model: nn.Module, data: ImageData, device: torch.device) -> dict[str, Any]:
    logits = teachers.predict(model, data.test_images, device)
    correct = int((logits.argmax(1) == data.test_labels).sum())
    return {"correct": correct, "tested": len(logits), "accuracy": correct / len(logits)}


def teacher(
    store: Store,
    spec: TeacherSpec,
    recipe: teachers.Recipe,
    material: Material,
    user_weights: Path | None,
    make_ctx: ContextFor,
) -> tuple[Step, nets.Classifier]:
    """The trained teacher, frozen and in eval mode; trained on the private part, or the user's own weights."""
    ctx = make_ctx(derive(spec.seed, "teacher", spec.arch, spec.data.dataset, spec.data.split))

    def make(path: Path) -> None:
        model = _new_network(spec.arch, material, ctx.seed).to(ctx.device)
        if user_weights is not None:
            teachers.load_user(user_weights, model, spec.arch, spec.normalise)
        else:
            _fit(model, *material.private, recipe, ctx, f"teacher {spec.arch}")
        _publish_model(path, model, material, ctx)

    step = store.step("teacher", asdict(spec), make)
    return step, _load_network(step, spec.arch, material, ctx.device)


def ensemble(
    store: Store, spec: EnsembleSpec, shards: Shards, material: Material, make_ctx: ContextFor
) -> tuple[Step, nets.Ensemble]:
    """The trained ensemble that a method asked for, frozen and in eval mode."""
    ctx = make_ctx(derive(spec.seed, "ensemble", spec.data.dataset, spec.data.split))
    shape, classes = material.data.shape, material.data.classes
    seeds = [derive(ctx.seed, "member", j) for j in range(shards.count)]
    members = nets.Ensemble.build(shards.archs, shards.count, shape, classes, seeds)

    def make(path: Path) -> None:
        images, labels = material.private
        salt = derive(ctx.seed, "partition") % 2**32
        parts = partition(images, labels, shards.count, shards.partition, shards.alpha, salt)
        with ctx.track(f"{shards.count} teachers {' '.join(shards.archs)}", shards.steps) as advance:
            teachers.fit_ensemble(
                members,
                images,
                labels,
                parts,
                steps=shards.steps,
                batch=shards.batch,
                lr=shards.lr,
                weight_decay=shards.weight_decay,
                shift=shards.shift,
                ridge=shards.ridge,
                device=ctx.device,
                seed=ctx.seed,
                advance=advance,
            )
        teachers.save(path / WEIGHTS, members)
        result = _measure_votes(members, material.data, ctx.device) | {"sizes": [len(part) for part in parts]}
        (path / "result.json").write_text(canonical(result), encoding="utf-8")

    step = store.step("ensemble", asdict(spec), make)
    teachers.load(step.path / WEIGHTS, members)
    return step, members.to(ctx.device).eval().requires_grad_(False)


def _measure_votes(members: nets.Ensemble, data: ImageData, device: torch.device) -> dict[str, Any]:
    """Plurality vote on the test set, and the members' mean accuracy."""
    counts = torch.cat([members.votes(to_float(part).to(device)).cpu() for part in data.test_images.split(512)])
    right = counts.gather(1, data.test_labels[:, None])
    correct, tested = int((counts.argmax(1) == data.test_labels).sum()), len(counts)
    mean = float(right.double().mean()) / len(members)
    return {"correct": correct, "tested": tested, "accuracy": correct / tested, "member_accuracy": mean}


def evaluator(
    store: Store, spec: EvaluatorSpec, recipe: teachers.Recipe, material: Material, make_ctx: ContextFor
) -> tuple[Step, nets.Classifier]:
    """The network that judges reconstructions: another architecture and seed, trained on all training images."""
    ctx = make_ctx(derive(spec.seed, "evaluator", spec.arch, spec.data.dataset))

    def make(path: Path) -> None:
        model = _new_network(spec.arch, material, ctx.seed).to(ctx.device)
        _fit(model, material.data.train_images, material.data.train_labels, recipe, ctx, f"evaluator {spec.arch}")
        _publish_model(path, model, material, ctx)

    step = store.step("evaluator", asdict(spec), make)
    return step, _load_network(step, spec.arch, material, ctx.device)


def random_network(spec: RandomSpec, material: Material, device: torch.device) -> nets.Classifier:
    """The control without any training: the teacher's network with random weights."""
    model = _new_network(spec.arch, material, derive(spec.seed, "random", spec.arch))
    return model.to(device).eval().requires_grad_(False)


def _fit(
    model: nets.Classifier, images: Tensor, labels: Tensor, recipe: teachers.Recipe, ctx: Context, stage: str
) -> None:
    with ctx.track(stage, recipe.steps(len(images))) as advance:
        teachers.fit(model, images, labels, recipe, ctx.device, ctx.seed, advance, autocast=ctx.autocast)


def _publish_model(path: Path, model: nn.Module, material: Material, ctx: Context) -> None:
    teachers.save(path / WEIGHTS, model)
    (path / "result.json").write_text(canonical(_measure(model, material.data, ctx.device)), encoding="utf-8")


def release(
    store: Store,
    spec: ReleaseSpec,
    method: Any,
    budget: Budget,
    teacher: Teacher,
    material: Material,
    make_ctx: ContextFor,
) -> tuple[Step, nets.Classifier]:
    """The private student, with its ledger, claim and accounted epsilons; refuses an overspent budget."""
    ctx = make_ctx(derive(spec.seed, "method", spec.method))

    def make(path: Path) -> None:
        torch.manual_seed(ctx.seed)
        made: Release = method.convert(teacher, spec.student, budget, ctx)
        accountant.check_budget(made.ledger, made.claim, budget)
        teachers.save(path / WEIGHTS, made.student)
        if made.generator is not None:
            teachers.save(path / "generator.safetensors", made.generator)
        if made.synthetic is not None:
            save_file({"images": _quantise(made.synthetic)}, path / "synthetic.safetensors")
        result = _measure(made.student, material.data, ctx.device)
        if made.control is not None:
            result["control"] = _measure(made.control.to(ctx.device).eval(), material.data, ctx.device)
        covered = {"student": made.student, "generator": made.generator, "synthetic": made.synthetic}
        told = privacy(made.ledger, made.claim, budget)
        told["covers"] = [name for name, part in covered.items() if part is not None]
        result |= {"arch": made.arch, "solved": made.solved, "privacy": told}
        result["input"] = {"shape": list(material.data.shape), "class_names": list(material.data.class_names)}
        (path / "result.json").write_text(canonical(result), encoding="utf-8")

    step = store.step("release", asdict(spec), make)
    return step, _load_network(step, step.json("result.json")["arch"], material, ctx.device)


def privacy(ledger: Ledger, claim: Claim | None, budget: Budget) -> dict[str, Any]:
    """The three numbers of a record with their units: claimed, accounted (for every unit in the ledger), audited.

    Raises:
        BenchError: the budget's unit is none of the ledger's.
    """
    units = sorted({entry.unit for entry in ledger.entries()})
    accounted = {str(unit): accountant.epsilon(ledger, unit, budget.delta).to_json() for unit in units}
    if str(budget.unit) not in accounted:
        raise BenchError(f"--unit {budget.unit}: this method's ledger speaks of {', '.join(accounted)}; name one")
    return {
        "claimed": None if claim is None else claim.to_json(),
        "accounted": accounted[str(budget.unit)],
        "accounted_units": accounted,
        "audited": None,
        "events": ledger.to_json(),
        "noise_version": noise.VERSION,
    }


def budget_plain(budget: Budget) -> dict[str, Any]:
    """A budget as plain data for a spec; `noiseless` tells an infinite epsilon from none, which keeps the fields."""
    plain = asdict(budget) | {
        "epsilon": number(budget.epsilon),
        "bounded": budget.epsilon is not None and math.isfinite(budget.epsilon),
    }
    return plain | ({"noiseless": True} if budget.epsilon is not None and math.isinf(budget.epsilon) else {})


def invert(
    store: Store,
    spec: AttackSpec,
    plugin: Any,
    model: nn.Module,
    material: Material,
    make_ctx: ContextFor,
    victims: Tensor | None = None,
) -> Step:
    """The images an attack brings back from one target. The attack's randomness does not depend on the target.

    Args:
        victims: (m, c, h, w) uint8 images that the target is seen to answer, for attacks that watch.
    """
    ctx = make_ctx(derive(spec.seed, "attack", spec.attack))
    shape, classes = material.data.shape, material.data.classes

    def make(path: Path) -> None:
        torch.manual_seed(ctx.seed)
        watched = None if victims is None else to_float(victims).to(ctx.device)
        target = Target(model, plugin.access, shape, classes, watched)
        found: AttackResult = plugin.run(target, to_float(material.aux).to(ctx.device), ctx)
        tensors = {"images": _quantise(found.images), "targets": found.targets.cpu(), "draws": found.draws.cpu()}
        if found.victims is not None:
            tensors["victims"] = found.victims.cpu()
        result = {"queries": target.queries} | ({"facts": found.facts} if found.facts else {})
        save_file({name: t.contiguous() for name, t in tensors.items()}, path / "images.safetensors")
        (path / "result.json").write_text(canonical(result), encoding="utf-8")

    return store.step("attack", asdict(spec), make)


def reconstructions(step: Step) -> AttackResult:
    """The images of an attack step, as every scorer sees them: quantised to 8 bits and back."""
    tensors = load_file(step.path / "images.safetensors")
    return AttackResult(to_float(tensors["images"]), tensors["targets"], tensors["draws"], tensors.get("victims"))


def infer(
    store: Store,
    spec: AttackSpec,
    plugin: Any,
    model: nn.Module,
    evidence: Evidence,
    material: Material,
    make_ctx: ContextFor,
) -> tuple[Step, Tensor]:
    """What a membership attack thinks of every suspect: (n,) float64. Its randomness does not depend on the target.

    Raises:
        RunFailed: scores that are not one finite number for each suspect.
    """
    ctx = make_ctx(derive(spec.seed, "attack", spec.attack))

    def make(path: Path) -> None:
        torch.manual_seed(ctx.seed)
        target = Target(model, plugin.access, material.data.shape, material.data.classes)
        found: MembershipResult = plugin.infer(target, evidence, ctx)
        scores = found.scores.detach().double().cpu().contiguous()
        if scores.shape != evidence.labels.shape or not bool(scores.isfinite().all()):
            raise RunFailed(
                f"{spec.attack} gave scores of shape {tuple(scores.shape)} for {len(evidence.labels)} suspects, or "
                "some that are not finite"
            )
        save_file({"scores": scores}, path / "scores.safetensors")
        (path / "result.json").write_text(canonical({"queries": target.queries}), encoding="utf-8")

    step = store.step("membership", asdict(spec), make)
    return step, load_file(step.path / "scores.safetensors")["scores"]


def synthetic(step: Step) -> Tensor | None:
    """The synthetic images of a release step, if it has any."""
    path = step.path / "synthetic.safetensors"
    return to_float(load_file(path)["images"]) if path.exists() else None


def _quantise(images: Tensor) -> Tensor:
    return (images.detach().float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
