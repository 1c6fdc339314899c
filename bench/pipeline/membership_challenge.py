"""Who is asked about in a membership attack: half of the suspects are private records, half are test images.

Of each class there are as many of one half as of the other: the class of a suspect says nothing about where it is from.
Under split canaries the private ones are those with a wrong label, and as wrong a label is given to the test images.
Suspects are disjoint from the attacker's own images, of which one half is the population, in no training records; the
other half, the reserve, trains reference models, together with the half of the suspects that each of them is given, up
to about as many records as the target had (`reference_models`). The test images' only other use is the accuracy in the
record.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bench import data
from bench.metrics.distribution import equal_parts
from bench.pipeline.material import Material

Records = tuple[Tensor, Tensor]

MOST, SEED = 2000, 2020
LARGEST = 2**28
"""Bytes that all suspects may have as float32: of colour images above 74x74 pixels there are fewer than MOST a side."""
UNLABELLED = (
    "the attacker's images are of other classes than the private ones, or of another data set, so that they have no "
    "labels to learn from, as it does; use --split iid, or loss-threshold or label-only, which do not"
)
UNKNOWN = -1
"""The label of an image of the attacker's that is of no private class, or of one that nobody told."""


@dataclass(frozen=True)
class Challenge:
    """Who is asked about, and what the attacker has besides; images are uint8.

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
    (images, labels), test = material.private, (material.data.test_images, _test_labels(material))
    asked = torch.arange(len(labels)) if material.mislabelled is None else material.mislabelled
    m = min(len(asked), len(test[1]), MOST, LARGEST // (8 * images[0].numel()))
    drawn = asked[torch.from_numpy(rng.permutation(len(asked))[:m])]
    matched, outside = equal_parts(labels[drawn], test[1], SEED)
    inside = drawn[matched]
    m = len(inside)
    order = torch.from_numpy(rng.permutation(2 * m))
    population, reserve = _halves(material, rng)
    return Challenge(
        torch.cat([images[inside], test[0][outside]])[order],
        torch.cat([labels[inside], test[1][outside]])[order],
        (torch.arange(2 * m) < m)[order],
        population,
        reserve,
    )


def _test_labels(material: Material) -> Tensor:
    """Of the test images, as the suspects among them are labelled: as wrongly as the private ones are."""
    found = material.data
    if material.mislabelled is None:
        return found.test_labels
    return data.wrong_labels(f"{found.name}:test", range(len(found.test_labels)), found.test_labels, found.classes)


def _halves(material: Material, rng: np.random.RandomState) -> tuple[Records, Records]:
    """The population and the reserve."""
    aux, labels = material.aux, material.aux_labels
    if labels is None:
        return (aux, torch.full((len(aux),), UNKNOWN)), (aux[:0], torch.empty(0, dtype=torch.int64))
    # By chance, as images may lie class by class: a half in their order would lack half of the classes
    mixed = torch.from_numpy(rng.permutation(len(aux)))
    population, reserve = mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]
    return (aux[population], labels[population]), (aux[reserve], labels[reserve])
