"""What a membership attack is played with: suspects, a population, and models made as the target was.

Suspects are private records and as many test images. They are disjoint from the attacker's own images, of which one
half is the population, in nobody's training records; the other half trains reference models, together with the half of
the suspects that each of them is given. The test images' only other use is the accuracy in the record.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bench.api import Evidence, Reference, Target, Teacher
from bench.config import plain
from bench.data import to_float
from bench.nets import Classifier
from bench.pipeline import steps
from bench.pipeline.job import Job, shards_of
from bench.storage.records import EnsembleSpec, ReleaseSpec, canonical

Kind = Literal["teacher", "student"]
Records = tuple[Tensor, Tensor]

MOST, SEED = 2000, 2020
UNLABELLED = (
    "the attacker's images are of other classes than the private ones, or of another data set, so that they have no "
    "labels to compare with; use --split iid"
)


@dataclass(frozen=True)
class Suspects:
    """Who is asked about; images are uint8.

    Attributes:
        images, labels: (n, c, h, w) and (n,), shuffled.
        members: (n,) bool, the half that is in the private part. No attack sees it.
        population, reserve: the attacker's own labelled images, in two halves.
    """

    images: Tensor
    labels: Tensor
    members: Tensor
    population: Records
    reserve: Records

    @property
    def fingerprint(self) -> str:
        """Of all that is in here."""
        tensors = (self.images, self.labels, self.members, *self.population, *self.reserve)
        return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()[:16]


def assemble(material: steps.Material) -> Suspects:
    """The suspects of a run; the same for all methods, attacks and seeds. Raises ValueError without labelled images."""
    if material.aux_labels is None:
        raise ValueError(UNLABELLED)
    rng = np.random.RandomState(SEED)
    (images, labels), test = material.private, (material.data.test_images, material.data.test_labels)
    m = min(len(labels), len(test[1]), MOST)
    inside, outside = (torch.from_numpy(rng.permutation(n)[:m]) for n in (len(labels), len(test[1])))
    order = torch.from_numpy(rng.permutation(2 * m))
    half = len(material.aux) // 2
    return Suspects(
        torch.cat([images[inside], test[0][outside]])[order],
        torch.cat([labels[inside], test[1][outside]])[order],
        (torch.arange(2 * m) < m)[order],
        (material.aux[:half], material.aux_labels[:half]),
        (material.aux[half:], material.aux_labels[half:]),
    )


def halves(count: int, suspects: int) -> Tensor:
    """(count, suspects) bool: who trains which reference; every suspect is in exactly half of them, by chance.

    Raises:
        ValueError: a count that is odd, or less than 2.
    """
    if count < 2 or count % 2:
        raise ValueError(f"{count} reference models; expected an even number, at least 2")
    ranks = np.random.RandomState(SEED).rand(count, suspects).argsort(0)
    return torch.from_numpy(ranks < count // 2)


def holdings(job: Job, release: ReleaseSpec, suspects: Suspects) -> str:
    """Fingerprint of all that a membership attack is given besides its target."""
    made = {"suspects": suspects.fingerprint, "recipe": plain(job.recipe), "arch": release.teacher.arch}
    return hashlib.sha256(canonical(made).encode()).hexdigest()[:16]


def evidence(job: Job, release: ReleaseSpec, suspects: Suspects, of: Kind, seconds: dict[str, float]) -> Evidence:
    """What the attacker of one target holds.

    Args:
        release: of the run.
        of: what the target is. A teacher's references are teachers, whatever kind the attack asks for.
        seconds: where the time that references took is noted.
    """
    images, device = to_float(suspects.images).to(job.device), job.device
    population = (to_float(suspects.population[0]).to(device), suspects.population[1].to(device))

    def references(count: int, kind: Kind) -> list[Reference]:
        made = [
            _reference(job, release, suspects, mask, f"{i}-of-{count}", "teacher" if of == "teacher" else kind, seconds)
            for i, mask in enumerate(halves(count, len(suspects.labels)))
        ]
        shape, classes = job.material.data.shape, job.material.data.classes
        assert job.attack is not None
        return [
            Reference(Target(network, job.attack.access, shape, classes), mask.to(device)) for network, mask in made
        ]

    return Evidence(images, suspects.labels.to(device), population, references)


def _reference(
    job: Job, release: ReleaseSpec, suspects: Suspects, mask: Tensor, name: str, kind: Kind, seconds: dict[str, float]
) -> tuple[Classifier, Tensor]:
    """A network made as the target was, on the suspects of `mask` and the reserve; each step made once and kept."""
    images = torch.cat([suspects.images[mask], suspects.reserve[0]])
    labels = torch.cat([suspects.labels[mask], suspects.reserve[1]])
    material = replace(job.material, private=(images, labels))
    where = replace(release.teacher.data, split=f"{release.teacher.data.split}/reference-{name}")
    spec = replace(release.teacher, data=where, weights=None, recipe=plain(job.recipe), normalise=None)
    spec = replace(spec, seed=release.seed)
    step, teacher = steps.teacher(job.store, spec, job.recipe, material, None, job.context)
    seconds["references"] = seconds.get("references", 0.0) + step.seconds
    if kind == "teacher":
        return teacher, mask
    shards, members, ensemble = shards_of(job), None, None
    if shards is not None:
        ensemble = EnsembleSpec(where, asdict(shards), release.seed)
        step, members = steps.ensemble(job.store, ensemble, shards, material, job.context)
        seconds["references"] += step.seconds
    private = material.private if "private_data" in job.method.needs else None
    world = job.material.data
    taught = Teacher(teacher, spec.arch, world.shape, world.classes, world.name, private, members, material.public)
    made = replace(release, teacher=spec, ensemble=ensemble)
    step, student = steps.release(job.store, made, job.method, job.settings.budget, taught, material, job.context)
    seconds["references"] += step.seconds
    return student, mask
