"""The step in which a method makes a student of a teacher: converted, held against the budget, kept with account."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bench import nets, teachers
from bench.api import Access, Release, ReleasedImages, SamplingMethod, Teacher
from bench.data import to_float
from bench.errors import BenchError, RunFailed
from bench.pipeline.job import Job
from bench.pipeline.material import quantised
from bench.pipeline.trained import WEIGHTS, Trained, load_network, new_network, save_network, test_accuracy
from bench.privacy import Budget, Claim, Ledger, accountant, information, noise
from bench.seeds import clients_seed, derive
from bench.storage.specs import ReleaseSpec
from bench.storage.store import load_tensors

GENERATOR = "generator.safetensors"
SYNTHETIC = "synthetic.safetensors"


def release(
    job: Job, spec: ReleaseSpec, teacher: nets.Classifier | None, ensemble: Trained[nets.Ensemble] | None
) -> Trained[nets.Classifier]:
    """The private student of a teacher; its result has the claim, the ledger and the accounted epsilons.

    Args:
        job: whose private part is what teacher and ensemble were trained on; a method that needs it gets it.
        teacher: None for a method that needs none.

    Raises:
        Overspent: the method spent more than its budget.
    """
    data = spec.teacher.data
    own, shared = derive(spec.seed, "method", spec.method), clients_seed(spec.seed, data.dataset, data.split)
    ctx = replace(job.context(own), clients_seed=shared)

    def make(path: Path) -> None:
        torch.manual_seed(ctx.seed)
        made = job.method.convert(_shown(job, spec, teacher, ensemble), spec.student, job.settings.budget, ctx)
        accountant.check_budget(made.ledger, made.claim, job.settings.budget)
        if made.generator is not None:
            teachers.save(path / GENERATOR, made.generator)
        if made.synthetic is not None:
            save_file({"images": quantised(made.synthetic)}, path / SYNTHETIC)
        save_network(path, made.student, _result(job, made))
        _expect_loadable(job, path, made.arch)

    step = job.store.step("release", asdict(spec), make)
    return load_network(job, step, step.json("result.json")["arch"])


def _expect_loadable(job: Job, path: Path, arch: str) -> None:
    """Raises RunFailed where a student is not the network that its method says: as that it is loaded from here on."""
    try:
        teachers.load(path / WEIGHTS, new_network(arch, job.material, 0))
    except BenchError as error:
        raise RunFailed(f"{job.settings.method} releases no {arch}, as it says: {error}") from None


class Withheld(nn.Module):
    """The teacher of a method that does not say that it needs one."""

    def forward(self, images: Tensor) -> Tensor:
        """Raises RuntimeError."""
        raise RuntimeError('the method asks the teacher; its `needs` must name "teacher"')


def _shown(
    job: Job, spec: ReleaseSpec, teacher: nets.Classifier | None, ensemble: Trained[nets.Ensemble] | None
) -> Teacher:
    """What the method is shown: what it says it needs, and nothing else."""
    m = job.material
    asked = teacher if teacher is not None and "teacher" in job.method.needs else Withheld()
    private = m.private if "private_data" in job.method.needs else None
    members = None if ensemble is None else ensemble.network
    world = (m.data.shape, m.data.classes, m.data.name)
    return Teacher(asked, spec.teacher.arch, *world, private, members, m.public, m.canaries)


def _result(job: Job, made: Release) -> dict[str, Any]:
    """What is kept of a release besides its networks."""
    data = job.material.data
    result = test_accuracy(made.student, data, job.device)
    if made.control is not None:
        result["control"] = test_accuracy(made.control.to(job.device).eval(), data, job.device)
    if made.votes is not None:
        result["votes"] = test_accuracy(made.votes.to(job.device).eval(), data, job.device)
    parts = {"student": made.student, "generator": made.generator, "synthetic": made.synthetic}
    account = privacy_account(made.ledger, made.claim, job.settings.budget)
    account["information"] = information.of_ledger(made.ledger, data.classes).to_json()
    account["covers"] = [name for name, part in parts.items() if part is not None]
    result |= {"arch": made.arch, "solved": made.solved, "privacy": account}
    return result | {"input": {"shape": list(data.shape), "class_names": list(data.class_names)}}


def privacy_account(ledger: Ledger, claim: Claim | None, budget: Budget) -> dict[str, Any]:
    """The three numbers of a record with their units: claimed, accounted (for every unit in the ledger), audited.

    Raises:
        BenchError: the budget's unit is none of the ledger's.
    """
    units = sorted({entry.unit for entry in ledger.entries()})
    accounted = {str(unit): accountant.account(ledger, unit, budget.delta).to_json() for unit in units}
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


def synthetic_images(student: Trained[nets.Classifier]) -> Tensor | None:
    """(n, c, h, w) in [0, 1], the synthetic images that were released with a student, if there are any."""
    path = student.step.path / SYNTHETIC
    return to_float(load_tensors(path)["images"]) if path.exists() else None


def released_images(job: Job, student: Trained[nets.Classifier], access: Access) -> ReleasedImages | str:
    """What is released besides a student, to be drawn from; or the reason why there is nothing to draw from."""
    path, data = student.step.path / GENERATOR, job.material.data
    if path.exists() and isinstance(job.method, SamplingMethod):
        sampler = job.method.sampler(data.shape, data.classes, data.name)
        teachers.load(path, sampler.generator)
        network = sampler.generator.to(job.device).eval().requires_grad_(False)
        return ReleasedImages(access, None, replace(sampler, generator=network))
    if access == "generator":
        return f"{job.settings.method} releases no generator that could be built again"
    images = synthetic_images(student)
    if images is None or not len(images):
        return f"{job.settings.method} releases neither a generator nor images"
    return ReleasedImages(access, images.to(job.device), None)
