"""The steps that train: teacher, ensemble of teachers, evaluator; each made once and kept in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from bench import nets, teachers
from bench.api import Context
from bench.data import ImageData, at_once, to_float
from bench.data.partition import with_guests
from bench.errors import BenchError
from bench.pipeline.job import Job
from bench.pipeline.lookup import weights_sha256
from bench.pipeline.trained import WEIGHTS, Trained, frozen, load_network, new_network, save_network, test_accuracy
from bench.seeds import clients_seed, derive, ensemble_seed
from bench.storage.specs import EnsembleSpec, EvaluatorSpec, RandomSpec, TeacherSpec
from bench.validate import present

T = TypeVar("T")


def only_asked(shared: Mapping[str, T], only: str | None) -> Mapping[str, T]:
    """Of what runs share, by name, the one that `bench prepare --only` asks for; all to None.

    Raises:
        BenchError: these runs have no such step.
    """
    if only is None:
        return shared
    if only not in shared:
        raise BenchError(f"--only {only}: what is shared here is {', '.join(shared) or 'nothing'}")
    return {only: shared[only]}


def teacher(job: Job, spec: TeacherSpec) -> Trained[nets.Classifier]:
    """The teacher, trained by the job's recipe on its private part; or the user's weights, where the spec says so."""
    ctx = job.context(derive(spec.seed, "teacher", spec.arch, spec.data.dataset, spec.data.split))

    def make(path: Path) -> None:
        model = new_network(spec.arch, job.material, ctx.seed).to(ctx.device)
        if spec.weights is not None:
            given = present(job.settings.teacher_weights, "file of the teacher's weights")
            teachers.load_user(given, model, spec.arch, spec.normalise, job.material.data.shape)
            if weights_sha256(given) != spec.weights:
                raise BenchError(f"--teacher-weights {given}: changed meanwhile; run it again")
        else:
            _fit(model, *job.material.private, job.recipe, ctx, f"teacher {spec.arch}")
        save_network(path, model, test_accuracy(model, job.material.data, ctx.device))

    return load_network(job, job.store.step("teacher", asdict(spec), make), spec.arch)


def evaluator(job: Job, spec: EvaluatorSpec) -> Trained[nets.Classifier]:
    """The network that judges reconstructions: another architecture and seed, trained on all training images."""
    ctx = job.context(derive(spec.seed, "evaluator", spec.arch, spec.data.dataset))

    def make(path: Path) -> None:
        data = job.material.data
        model = new_network(spec.arch, job.material, ctx.seed).to(ctx.device)
        _fit(model, data.train_images, data.train_labels, job.evaluator_recipe, ctx, f"evaluator {spec.arch}")
        save_network(path, model, test_accuracy(model, data, ctx.device))

    return load_network(job, job.store.step("evaluator", asdict(spec), make), spec.arch)


def _fit(
    model: nets.Classifier, images: Tensor, labels: Tensor, recipe: teachers.Recipe, ctx: Context, stage: str
) -> None:
    with ctx.track(stage, recipe.steps(len(images))) as advance:
        teachers.fit(model, images, labels, recipe, ctx.device, ctx.seed, advance, ctx.autocast, ctx.ranks)


def ensemble(job: Job, spec: EnsembleSpec | None) -> Trained[nets.Ensemble] | None:
    """The ensemble on parts of the job's private images that a method asked for; None where it asked for none."""
    shards = job.shards()
    if spec is None or shards is None:
        return None
    ctx = job.context(ensemble_seed(spec.seed, spec.data.dataset, spec.data.split))
    shape, classes = job.material.data.shape, job.material.data.classes
    seeds = [derive(ctx.seed, "member", j) for j in range(shards.count)]
    members = nets.Ensemble.build(shards.archs, shards.count, shape, classes, seeds)

    def make(path: Path) -> None:
        images, labels = job.material.private
        guests = job.material.canaries
        salt = clients_seed(spec.seed, spec.data.dataset, spec.data.split)
        parts = with_guests(images, labels, guests, shards.count, shards.partition, shards.alpha, salt)
        with ctx.track(f"{shards.count} teachers {' '.join(shards.archs)}", shards.steps) as advance:
            teachers.fit_ensemble(
                members,
                images,
                labels,
                parts,
                shards,
                device=ctx.device,
                seed=ctx.seed,
                advance=advance,
                ranks=ctx.ranks,
            )
        result = _plurality_accuracy(members, job.material.data, ctx.device)
        save_network(path, members, result | {"sizes": [len(part) for part in parts]})

    step = job.store.step("ensemble", asdict(spec), make)
    teachers.load(step.path / WEIGHTS, members)
    return Trained(step, members.to(ctx.device).eval().requires_grad_(False))


def _plurality_accuracy(members: nets.Ensemble, data: ImageData, device: torch.device) -> dict[str, Any]:
    """As `test_accuracy` of the plurality vote on the test set; and the members' mean accuracy."""
    parts = data.test_images.split(at_once(data.test_images, 512))
    counts = torch.cat([members.votes(to_float(part).to(device)).cpu() for part in parts])
    right = counts.gather(1, data.test_labels[:, None])
    correct, tested = int((counts.argmax(1) == data.test_labels).sum()), len(counts)
    mean = float(right.double().mean()) / len(members)
    return {"correct": correct, "tested": tested, "accuracy": correct / tested, "member_accuracy": mean}


def random_network(job: Job, spec: RandomSpec) -> nets.Classifier:
    """The control without any training: the teacher's network with random weights."""
    model = new_network(spec.arch, job.material, derive(spec.seed, "random", spec.arch))
    return frozen(model, job.device)
