"""Inputs of a membership attack: suspects, the attacker's own images, and models made as the target was.

Half of the suspects are private records, half are test images. Of each class there are as many of one half as of the
other: the class of a suspect says nothing about where it is from. Under split canaries the private ones are those with
a wrong label, and as wrong a label is given to the test images. Suspects are disjoint from the attacker's own images,
of which one half is the population, in no training records; the other half, the reserve, trains reference models,
together with the half of the suspects that each of them is given, up to about as many records as the target had. The
test images' only other use is the accuracy in the record.
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
from bench.pipeline.trained import Trained
from bench.seeds import derive
from bench.storage.specs import ReleaseSpec, TeacherSpec, canonical

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
        members: (n,) bool, the half that is in the private part. No attack sees it.
        population, reserve: the attacker's own labelled images, in two halves by chance. Where they have no labels all
            are the population, each labelled UNKNOWN, and the reserve is empty: nothing can be trained on it.
    """

    images: Tensor
    labels: Tensor
    members: Tensor
    population: Records
    reserve: Records

    @cached_property
    def fingerprint(self) -> str:
        """Of all that is in here."""
        tensors = (self.images, self.labels, self.members, *self.population, *self.reserve)
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()[:16]


def make_challenge(material: Material) -> Challenge:
    """The challenge of a run, the same for all attacks, seeds and methods without public images.

    A method's public images are half of the attacker's: its population and its reserve are half as large.

    Raises:
        ValueError: no class is among the private records and the test images.
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
        # By chance, as images may lie class by class: a half in their order would lack half of the classes
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
    """(count, suspects) bool: who trains which reference; every suspect is in exactly half of them, by chance.

    Raises:
        ValueError: a count that is odd, or less than 2.
    """
    if count < 2 or count % 2:
        raise ValueError(f"{count} reference models; expected an even number, at least 2")
    ranks = np.random.RandomState(SEED).rand(count, suspects).argsort(0)
    return torch.from_numpy(ranks < count // 2)


def knowledge_fingerprint(job: Job, release: ReleaseSpec, challenge: Challenge) -> str:
    """Of all that a membership attack is given besides its target."""
    made = {"suspects": challenge.fingerprint, "recipe": job.recipe.settings(), "arch": release.teacher.arch}
    return hashlib.sha256(canonical(made).encode()).hexdigest()[:16]


class ReferenceModels:
    """Trains the models that attacks ask for, each step made once and kept; remembers how long they took.

    Args:
        release: of the run.
    """

    def __init__(self, job: Job, release: ReleaseSpec, challenge: Challenge, access: Access) -> None:
        self._job, self._release, self._challenge, self._access = job, release, challenge, access
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """As in a StageResult; nothing where no attack asked for a model."""
        found: dict[str, list[float]] = {"references": [], "unaware": []}
        for name, seconds in self._seconds.items():
            found["unaware" if name.startswith("unaware") else "references"].append(seconds)
        return {name: sum(seconds) for name, seconds in found.items() if seconds}

    def unaware(self) -> tuple[TeacherSpec, Classifier] | None:
        """A network by the teacher's recipe that saw no suspect; None where the attacker has no two records for it, and
        beside a user's own weights, whose recipe is not known.

        It is trained on the reserve, up to as many records as the target's. What an attack finds in it, no training on
        the suspects has put there: members and others may differ by chance, or by where they are from.
        """
        if self._job.settings.teacher_weights is not None:
            return None
        records = len(self._job.material.private[0])
        images, labels = (part[:records] for part in self._challenge.reserve)
        if len(images) < 2:
            return None
        _, spec, teacher = self._teacher((images, labels), "unaware")
        return spec, teacher.network

    def knowledge(self, of: Kind) -> AttackerKnowledge:
        """What the attacker of one target holds.

        Args:
            of: what the target is. A teacher's references are teachers, whatever kind the attack asks for.
        """
        asked, device = self._challenge, self._job.device

        def references(count: int, kind: Kind) -> list[Reference]:
            return self._references(count, "teacher" if of == "teacher" else kind)

        def population() -> tuple[Tensor, Tensor]:
            images, labels = asked.population
            return to_float(images).to(device), labels.to(device)

        images, labels = to_float(asked.images).to(device), asked.labels.to(device)
        return AttackerKnowledge(images, labels, population, references)

    def _references(self, count: int, kind: Kind) -> list[Reference]:
        data, found = self._job.material.data, []
        for i, mask in enumerate(halves(count, len(self._challenge.labels))):
            network = self._train(mask, f"{i}-of-{count}", kind)
            target = Target(network, self._access, data.shape, data.classes)
            found.append(Reference(target, mask.to(self._job.device)))
        return found

    def _train(self, mask: Tensor, name: str, kind: Kind) -> Classifier:
        """A network made as the target was, on the suspects of `mask`, and on the reserve up to the target's records.

        Half of the suspects are counted, of which `mask` may have some more or fewer. With many more records than the
        target it would overfit less, and tell members from others less well.
        """
        asked, release = self._challenge, self._release
        room = max(0, len(self._job.material.private[0]) - len(asked.labels) // 2)
        images, labels = (
            torch.cat([suspects[mask], reserve[:room]])
            for suspects, reserve in zip((asked.images, asked.labels), asked.reserve, strict=True)
        )
        job, spec, teacher = self._teacher((images, labels), f"reference-{name}")
        if kind == "teacher":
            return teacher.network
        # A seed of its own: with the target's, the reference would have the target's privacy noise, which nobody knows
        own = derive(release.seed, "reference", name)
        wanted = None if release.ensemble is None else replace(release.ensemble, data=spec.data, seed=own)
        ensemble = train_ensemble(job, wanted)
        if ensemble is not None:
            self._seconds[f"{name} ensemble"] = ensemble.step.seconds
        made = replace(release, teacher=spec, ensemble=wanted, seed=own)
        student = make_release(job, made, teacher.network, ensemble)
        self._seconds[f"{name} student"] = student.step.seconds
        return student.network

    def _teacher(self, records: Records, name: str) -> tuple[Job, TeacherSpec, Trained[Classifier]]:
        """A network by the teacher's recipe on other records, with the job in which these are the private ones."""
        job = replace(self._job, material=replace(self._job.material, private=records))
        # Which records they are is a matter of the challenge, which data set and split do not tell
        of = self._release.teacher
        where = replace(of.data, split=f"{of.data.split}/{name}-of-{self._challenge.fingerprint}")
        recipe = job.recipe.settings()
        spec = replace(of, data=where, weights=None, recipe=recipe, normalise=None, seed=self._release.seed)
        teacher = train_teacher(job, spec)
        self._seconds[f"{name} teacher"] = teacher.step.seconds
        return job, spec, teacher
