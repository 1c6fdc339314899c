"""The stages of a run before its attack: teacher, evaluator, ensemble, release, utility.

A network is trained once and stored under the hash of its spec; a stage returns it together with the measurements
made when it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bench import data, nets, teachers
from bench.api import Access, Context, Release, ReleasedImages, SamplingMethod, Teacher
from bench.core.privacy import Account, AccountedRecord, ClaimRecord, InformationRecord, LedgerEntry
from bench.data import batch_size_for, to_float
from bench.data.partition import with_guests
from bench.errors import BenchError, RunFailed
from bench.pipeline import plots
from bench.pipeline.components import weights_sha256
from bench.pipeline.job import Job
from bench.pipeline.material import quantised
from bench.pipeline.plots import Plot, Plots
from bench.pipeline.trained import (
    RESULT,
    WEIGHTS,
    Metrics,
    Networks,
    Score,
    StageResult,
    Trained,
    load_network,
    new_network,
    save_network,
    test_accuracy,
)
from bench.privacy import Budget, Claim, Ledger, accountant, information, noise
from bench.seeds import clients_seed, derive, ensemble_seed
from bench.storage.specs import EnsembleSpec, EvaluatorSpec, ReleaseSpec, TeacherSpec, encodable
from bench.storage.store import load_tensors
from bench.validate import present

GENERATOR, SYNTHETIC = "generator.safetensors", "synthetic.safetensors"
COLUMNS, ROWS = 10, 6
"""Largest size of the picture of synthetic images."""
VOTE_BATCH = 512
Shared = TypeVar("Shared")


def train_teacher(job: Job, spec: TeacherSpec) -> Trained[nets.Classifier]:
    """Train the teacher by the job's recipe on its private part; or load the user's weights if the spec names them.

    Raises:
        BenchError: the user's weights do not fit, or have changed since the job was loaded.
    """
    ctx = job.context(derive(spec.seed, "teacher", spec.arch, spec.data.dataset, spec.data.split))

    def make(path: Path) -> None:
        model = new_network(spec.arch, job.material, ctx.seed).to(ctx.device)
        if spec.weights is not None:
            file = present(job.settings.teacher_weights, "file of the teacher's weights")
            teachers.load_user(file, model, spec.arch, spec.normalise, job.material.data.shape)
            if weights_sha256(file) != spec.weights:
                raise BenchError(f"--teacher-weights {file}: the file has changed since the start; run it again")
        else:
            fit(model, *job.material.private, job.recipe, ctx, f"teacher {spec.arch}")
        save_network(path, model, test_accuracy(model, job.material.data, ctx.device))

    return load_network(job, job.store.step("teacher", spec, make), spec.arch)


def train_evaluator(job: Job, spec: EvaluatorSpec) -> Trained[nets.Classifier]:
    """Train the network that scores reconstructions: another architecture and seed, on all training images.

    If the attacker's images show other classes, they are one more class, the last (`Material.evaluator_knows_aux`).
    """
    ctx = job.context(derive(spec.seed, "evaluator", spec.arch, spec.data.dataset))
    m = job.material
    more = int(m.evaluator_knows_aux)

    def make(path: Path) -> None:
        images, labels = m.data.train_images, m.data.train_labels
        if more:
            images = torch.cat([images, m.aux])
            labels = torch.cat([labels, labels.new_full((len(m.aux),), m.data.classes)])
        model = new_network(spec.arch, m, ctx.seed, more).to(ctx.device)
        fit(model, images, labels, job.evaluator_recipe, ctx, f"evaluator {spec.arch}")
        save_network(path, model, test_accuracy(model, m.data, ctx.device))

    return load_network(job, job.store.step("evaluator", spec, make), spec.arch, more)


def fit(
    model: nets.Classifier, images: Tensor, labels: Tensor, recipe: teachers.Recipe, ctx: Context, stage: str
) -> None:
    """Train a network by a recipe, on all devices of the context, with a progress bar called `stage`."""
    with ctx.track(stage, recipe.steps(len(images))) as advance:
        teachers.fit(model, images, labels, recipe, ctx.device, ctx.seed, advance, ctx.autocast, ctx.ranks)


def train_ensemble(job: Job, spec: EnsembleSpec | None) -> Trained[nets.Ensemble] | None:
    """Train the teachers that the method needs on disjoint parts of the private images; None if it needs none."""
    shards = job.shards()
    if spec is None or shards is None:
        return None
    ctx = job.context(ensemble_seed(spec.seed, spec.data.dataset, spec.data.split))
    images = job.material.data
    seeds = [derive(ctx.seed, "member", j) for j in range(shards.count)]
    members = nets.Ensemble.build(shards.archs, shards.count, images.shape, images.classes, seeds)

    def make(path: Path) -> None:
        private, labels = job.material.private
        salt = clients_seed(spec.seed, spec.data.dataset, spec.data.split)
        parts = with_guests(private, labels, job.material.canaries, shards.count, shards.partition, shards.alpha, salt)
        with ctx.track(f"{shards.count} teachers {' '.join(shards.archs)}", shards.steps) as advance:
            teachers.fit_ensemble(
                *(members, private, labels, parts, shards),
                device=ctx.device,
                seed=ctx.seed,
                advance=advance,
                ranks=ctx.ranks,
            )
        batches = images.test_images.split(batch_size_for(images.test_images, VOTE_BATCH))
        votes = torch.cat([members.votes(to_float(batch).to(ctx.device)).cpu() for batch in batches])
        majority = Score.of(int((votes.argmax(1) == images.test_labels).sum()), len(votes))
        correct_votes = float(votes.gather(1, images.test_labels[:, None]).double().mean())
        sizes = [len(part) for part in parts]
        save_network(path, members, majority, member_accuracy=correct_votes / len(members), sizes=sizes)

    step = job.store.step("ensemble", spec, make)
    teachers.load(step.path / WEIGHTS, members)
    return Trained(step, members.to(ctx.device).eval().requires_grad_(False))


def make_release(
    job: Job, spec: ReleaseSpec, teacher: nets.Classifier | None, ensemble: Trained[nets.Ensemble] | None
) -> Trained[nets.Classifier]:
    """Convert a teacher into a private student by the method, and account for its use of the private data.

    Args:
        job: its private part is the training data of teacher and ensemble; the method gets it if it needs it.
        teacher: None for a method without a teacher.

    Raises:
        Overspent: the method spent more than its budget.
        RunFailed: the student cannot be loaded into the network that its method names.
    """
    m, data_spec = job.material, spec.teacher.data
    ctx = replace(
        job.context(derive(spec.seed, "method", spec.method)),
        clients_seed=clients_seed(spec.seed, data_spec.dataset, data_spec.split),
    )

    def make(path: Path) -> None:
        torch.manual_seed(ctx.seed)
        inputs = Teacher(
            model=teacher if teacher is not None and "teacher" in job.method.needs else Withheld(),
            arch=spec.teacher.arch,
            shape=m.data.shape,
            classes=m.data.classes,
            dataset=m.data.name,
            private=m.private if "private_data" in job.method.needs else None,
            ensemble=None if ensemble is None else ensemble.network,
            public=m.public,
            guests=m.canaries,
            pretrained=job.pretrained_network(),
            groups=m.private_groups if "private_data" in job.method.needs else None,
        )
        if job.pretrained is not None and weights_sha256(job.pretrained.file) != job.pretrained.sha256:
            raise BenchError(f"{job.pretrained.file}: the file has changed since the start; run it again")
        release = job.method.convert(inputs, spec.student, job.settings.budget, ctx)
        accountant.check_budget(release.ledger, release.claim, job.settings.budget)
        save_release(path, job, release)

    step = job.store.step("release", spec, make)
    return load_network(job, step, step.json(RESULT)["arch"])


class Withheld(nn.Module):
    """Takes the place of the teacher for a method that does not declare that it needs one; every use is an error."""

    def forward(self, images: Tensor) -> Tensor:
        """Always raise RuntimeError."""
        raise RuntimeError('the method queries the teacher; its `needs` must name "teacher"')


def save_release(path: Path, job: Job, release: Release) -> None:
    """Store a release with its accuracies and its privacy account in a step's directory.

    Raises:
        RunFailed: the student cannot be loaded into the network that its method names.
    """
    images = job.material.data
    if release.generator is not None:
        teachers.save(path / GENERATOR, release.generator)
    if release.synthetic is not None:
        save_file({"images": quantised(release.synthetic)}, path / SYNTHETIC)
    score = test_accuracy(release.student, images, job.device)
    compared = {"control": release.control, "votes": release.votes, "linear": release.linear}
    baselines = {
        name: test_accuracy(network.to(job.device).eval(), images, job.device)
        for name, network in compared.items()
        if network is not None
    }
    parts = {"student": release.student, "generator": release.generator, "synthetic": release.synthetic}
    covers = [name for name, part in parts.items() if part is not None]
    save_network(
        path,
        release.student,
        score,
        arch=release.arch,
        solved=release.solved,
        privacy=privacy_account(release.ledger, release.claim, job.settings.budget, images.classes, covers),
        input={"shape": list(images.shape), "class_names": list(map(encodable, images.class_names))},
        **baselines,
    )
    try:
        teachers.load(path / WEIGHTS, new_network(release.arch, job.material, 0))
    except BenchError as error:
        raise RunFailed(
            f"the student of {job.settings.method} does not fit the network {release.arch} that it names: {error}"
        ) from None


def privacy_account(ledger: Ledger, claim: Claim | None, budget: Budget, classes: int, covers: list[str]) -> Account:
    """Account for a release: claimed epsilon, accounted epsilon per unit, and the information in its responses.

    Args:
        classes: number of classes of the responses.
        covers: the parts of the release that the account covers.

    Raises:
        BenchError: the ledger does not have the budget's unit.
    """
    units = sorted({entry.unit for entry in ledger.entries()})
    accounted = {
        str(unit): AccountedRecord.model_validate(accountant.account(ledger, unit, budget.delta).to_json())
        for unit in units
    }
    if str(budget.unit) not in accounted:
        raise BenchError(f"--unit {budget.unit}: the method's ledger has the units {', '.join(accounted)}; name one")
    return Account(
        claimed=None if claim is None else ClaimRecord.model_validate(claim.to_json()),
        accounted=accounted[str(budget.unit)],
        accounted_units=accounted,
        audited=None,
        events=[LedgerEntry.model_validate(entry) for entry in ledger.to_json()],
        noise_version=noise.VERSION,
        information=InformationRecord.model_validate(information.of_ledger(ledger, classes).to_json()),
        covers=covers,
    )


def measure_utility(job: Job, networks: Networks) -> StageResult:
    """Return the accuracies of a run with 95 % intervals, and a picture of the synthetic images that were released."""
    trained = {"teacher": networks.teacher, "evaluator": networks.evaluator, "ensemble": networks.ensemble}
    existing = {name: one for name, one in trained.items() if one is not None} | {"release": networks.student}
    metrics: Metrics = {}
    for name, one in existing.items():
        metrics |= one.result.metrics("accuracy" if name == "release" else f"{name}_accuracy")
    if networks.ensemble is not None:
        metrics["member_accuracy"] = networks.ensemble.result.member_accuracy
    student = networks.student.result
    if student.control is not None:
        metrics |= student.control.metrics("control_accuracy")
    if student.votes is not None:
        metrics |= student.votes.metrics("votes_accuracy")
    if student.linear is not None:
        metrics |= student.linear.metrics("linear_accuracy")
    # The baseline that always predicts the commonest class has that class's frequency, which may exceed 1 / classes
    labels = job.material.data.test_labels
    metrics["times_chance"] = student.accuracy * len(labels) / int(torch.bincount(labels).max())
    images, pictures = synthetic_images(networks.student), Plots()
    if images is not None and len(images) and not data.facts(job.material.data.name).of_people:
        draw = partial(draw_synthetic, title=f"{job.settings.method}: synthetic images", images=images)
        pictures["synthetic"] = Plot("synthetic.png", draw)
    return StageResult(metrics, plots=pictures, seconds={name: one.step.seconds for name, one in existing.items()})


def draw_synthetic(path: Path, title: str, images: Tensor) -> None:
    """Draw at most six rows of ten images, or one shorter row."""
    columns = min(COLUMNS, len(images))
    whole_rows = images[: min(ROWS * COLUMNS, len(images) // columns * columns)]
    plots.grid(path, title, [""] * columns, [("", row) for row in whole_rows.split(columns)])


def synthetic_images(student: Trained[nets.Classifier]) -> Tensor | None:
    """Return (n, c, h, w) in [0, 1], the synthetic images released with a student, if there are any."""
    path = student.step.path / SYNTHETIC
    return to_float(load_tensors(path)["images"]) if path.exists() else None


def released_images(job: Job, student: Trained[nets.Classifier], access: Access) -> ReleasedImages | str:
    """Return the images or the generator released with a student; or the reason why there are none."""
    path, images = student.step.path / GENERATOR, job.material.data
    if path.exists() and isinstance(job.method, SamplingMethod):
        sampler = job.method.sampler(images.shape, images.classes, images.name)
        teachers.load(path, sampler.generator)
        network = sampler.generator.to(job.device).eval().requires_grad_(False)
        return ReleasedImages(access, None, replace(sampler, generator=network))
    if access == "generator":
        return f"{job.settings.method} releases no generator that could be built again"
    released = synthetic_images(student)
    if released is None or not len(released):
        return f"{job.settings.method} releases neither a generator nor images"
    return ReleasedImages(access, released.to(job.device), None)


def select_steps(steps: Mapping[str, Shared], only: str | None) -> Mapping[str, Shared]:
    """Select the step that `bench prepare --only` names from the steps that runs share; all for None.

    Raises:
        BenchError: these runs have no such step.
    """
    if only is None:
        return steps
    if only not in steps:
        raise BenchError(f"--only {only}: expected a step that these runs share: {', '.join(steps) or 'there is none'}")
    return {only: steps[only]}
