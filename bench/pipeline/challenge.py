"""Inputs of a membership attack: suspects, the attacker's own images, and reference models trained like the target.

Half of the suspects are private records, half are test images. Both halves have the same number of records of each
class, so that the class of a suspect does not reveal its half. Under split canaries the private suspects are those with
a wrong label, and the test images get a wrong label in the same way. Suspects are disjoint from the attacker's own
images. Half of those are the population, which is in no training set. The other half, the reserve, trains reference
models, together with half of the suspects for each model, up to about the number of records that the target had. The
test images are otherwise only used for the accuracy in the record.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bench import data
from bench.api import Access, AttackerKnowledge, Reference, Target
from bench.data import to_float
from bench.metrics.distribution import equal_parts
from bench.nets import Classifier
from bench.pipeline.job import Job
from bench.pipeline.material import LARGEST_SUSPECTS, MOST_SUSPECTS, Material
from bench.pipeline.stages import make_release, train_ensemble, train_teacher
from bench.seeds import derive
from bench.storage.specs import ReleaseSpec, TeacherSpec, digest

Records = tuple[Tensor, Tensor]
Kind = Literal["teacher", "student"]
SEED = 2020
UNKNOWN = -1
"""The label of an attacker's image whose class is not private or not known."""


@dataclass(frozen=True)
class Challenge:
    """The suspects, and the other images of the attacker; images are uint8.

    Attributes:
        images, labels: (n, c, h, w) and (n,), the suspects, shuffled.
        members: (n,) bool, true for the half that is in the private part. Attacks do not see it.
        population, reserve: the attacker's own labelled images, split into two halves at random. Unlabelled images all
            go to the population with label UNKNOWN, and the reserve is empty, as nothing can be trained on it.
    """

    images: Tensor
    labels: Tensor
    members: Tensor
    population: Records
    reserve: Records

    @cached_property
    def fingerprint(self) -> str:
        """The digest of all images, labels and memberships."""
        tensors = (self.images, self.labels, self.members, *self.population, *self.reserve)
        sha = hashlib.sha256()
        for tensor in tensors:
            sha.update(tensor.contiguous().numpy().data)
        return sha.hexdigest()[:16]


def make_challenge(material: Material) -> Challenge:
    """Build the challenge of a run, the same for all attacks, seeds and methods without public images.

    The public images of a method are half of the attacker's images: population and reserve are then half as large.

    Raises:
        ValueError: no class has both private records and test images.
    """
    rng = np.random.RandomState(SEED)
    (images, labels), found = material.private, material.data
    candidates, test_labels = torch.arange(len(labels)), found.test_labels
    if material.mislabelled is not None:
        candidates = material.mislabelled
        test_labels = data.wrong_labels(f"{found.name}:test", range(len(test_labels)), test_labels, found.classes)
    m = min(len(candidates), len(test_labels), MOST_SUSPECTS, LARGEST_SUSPECTS // (8 * images[0].numel()))
    drawn = candidates[torch.from_numpy(rng.permutation(len(candidates))[:m])]
    matched, outside = equal_parts(labels[drawn], test_labels, SEED)
    inside = drawn[matched]
    m = len(inside)
    order = torch.from_numpy(rng.permutation(2 * m))
    if material.aux_labels is None:
        population = material.aux, torch.full((len(material.aux),), UNKNOWN)
        reserve = material.aux[:0], torch.empty(0, dtype=torch.int64)
    else:
        # At random, as images may be sorted by class: halves in the given order would each miss half of the classes
        mixed = torch.from_numpy(rng.permutation(len(material.aux)))
        parts = mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]
        population, reserve = ((material.aux[part], material.aux_labels[part]) for part in parts)
    return Challenge(
        torch.cat([images[inside], found.test_images[outside]])[order],
        torch.cat([labels[inside], test_labels[outside]])[order],
        (torch.arange(2 * m) < m)[order],
        population,
        reserve,
    )


def halves(count: int, suspects: int) -> Tensor:
    """Return (count, suspects) bool: row i marks the random half of the suspects on which reference i is trained.

    Every suspect is in exactly half of the rows.

    Raises:
        ValueError: a count that is odd, or less than 2.
    """
    if count < 2 or count % 2:
        raise ValueError(f"{count} reference models; expected an even number, at least 2")
    ranks = np.random.RandomState(SEED).rand(count, suspects).argsort(0)
    return torch.from_numpy(ranks < count // 2)


def knowledge_fingerprint(job: Job, release: ReleaseSpec, challenge: Challenge) -> str:
    """Return the digest of all inputs of a membership attack except its target."""
    return digest({"suspects": challenge.fingerprint, "recipe": job.recipe.settings(), "arch": release.teacher.arch})


@dataclass(frozen=True)
class ReferenceTeacher:
    """A network trained by the teacher's recipe on other records, and the job with these as its private part."""

    job: Job
    spec: TeacherSpec
    network: Classifier


class ReferenceModels:
    """Train the reference models that attacks request; each is a stored step, and its seconds are recorded.

    Args:
        release: the release of the run.
    """

    def __init__(self, job: Job, release: ReleaseSpec, challenge: Challenge, access: Access) -> None:
        self._job, self._release, self._challenge, self._access = job, release, challenge, access
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds by step as in a StageResult; {} if no attack requested a model."""
        found: dict[str, list[float]] = {"references": [], "unaware": []}
        for name, seconds in self._seconds.items():
            found["unaware" if name.startswith("unaware") else "references"].append(seconds)
        return {name: sum(seconds) for name, seconds in found.items() if seconds}

    def unaware(self) -> ReferenceTeacher | None:
        """Train a network by the teacher's recipe on none of the suspects.

        None if the attacker has fewer than two records for it, or if the teacher has a user's own weights, whose recipe
        is unknown. The network is trained on the reserve, up to as many records as the target had. Attack success on it
        cannot come from training on the suspects: it shows differences between members and others by chance or by
        origin.
        """
        if self._job.settings.teacher_weights is not None:
            return None
        records = len(self._job.material.private[0])
        images, labels = (part[:records] for part in self._challenge.reserve)
        if len(images) < 2:
            return None
        return self._train_teacher((images, labels), "unaware")

    def knowledge(self, of: Kind) -> AttackerKnowledge:
        """Return the knowledge that the attacker of one target has.

        Args:
            of: the kind of the target. References of a teacher are always teachers, even if the attack requests
                another kind.
        """
        challenge, device = self._challenge, self._job.device

        def references(count: int, kind: Kind) -> list[Reference]:
            """Train references on the halves of the suspects."""
            images, found = self._job.material.data, []
            for i, mask in enumerate(halves(count, len(self._challenge.labels))):
                network = self._train_reference(mask, f"{i}-of-{count}", "teacher" if of == "teacher" else kind)
                target = Target(network, self._access, images.shape, images.classes)
                found.append(Reference(target, mask.to(self._job.device)))
            return found

        def population() -> tuple[Tensor, Tensor]:
            images, labels = challenge.population
            return to_float(images).to(device), labels.to(device)

        images, labels = to_float(challenge.images).to(device), challenge.labels.to(device)
        return AttackerKnowledge(images, labels, population, references)

    def _train_reference(self, mask: Tensor, name: str, kind: Kind) -> Classifier:
        """Train a reference like the target, on the suspects of `mask` and the reserve, up to the target's record
        count.

        The count assumes half of the suspects; `mask` may have a few more or fewer. A reference with many more records
        than the target would overfit less and separate members from others less well.
        """
        challenge, release = self._challenge, self._release
        room = max(0, len(self._job.material.private[0]) - len(challenge.labels) // 2)
        images, labels = (
            torch.cat([suspects[mask], reserve[:room]])
            for suspects, reserve in zip((challenge.images, challenge.labels), challenge.reserve, strict=True)
        )
        teacher = self._train_teacher((images, labels), f"reference-{name}")
        if kind == "teacher":
            return teacher.network
        # A separate seed: with the target's seed the reference would have the target's privacy noise, which is secret
        seed = derive(release.seed, "reference", name)
        ensemble_spec = None
        if release.ensemble is not None:
            ensemble_spec = replace(release.ensemble, data=teacher.spec.data, seed=seed)
        ensemble = train_ensemble(teacher.job, ensemble_spec)
        if ensemble is not None:
            self._seconds[f"{name} ensemble"] = ensemble.step.seconds
        student_spec = replace(release, teacher=teacher.spec, ensemble=ensemble_spec, seed=seed)
        student = make_release(teacher.job, student_spec, teacher.network, ensemble)
        self._seconds[f"{name} student"] = student.step.seconds
        return student.network

    def _train_teacher(self, records: Records, name: str) -> ReferenceTeacher:
        """Train a network by the teacher's recipe on other records."""
        job = replace(self._job, material=replace(self._job.material, private=records))
        teacher = self._release.teacher
        # These records come from the challenge; data set and split do not determine them
        data_spec = replace(teacher.data, split=f"{teacher.data.split}/{name}-of-{self._challenge.fingerprint}")
        spec = replace(
            teacher,
            data=data_spec,
            weights=None,
            recipe=job.recipe.settings(),
            normalise=None,
            seed=self._release.seed,
        )
        trained = train_teacher(job, spec)
        self._seconds[f"{name} teacher"] = trained.step.seconds
        return ReferenceTeacher(job, spec, trained.network)
