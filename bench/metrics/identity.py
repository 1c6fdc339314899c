"""Who is on reconstructed images, by descriptors of faces: which person's private images they are nearest to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.metrics.inversion import all_finite

_CHUNK = 1024


@dataclass(frozen=True)
class Identified:
    """What a judge says of n images.

    Attributes:
        confusion: (c, c) int64 counts, row the person aimed at, column the one whose mean is nearest; on the CPU.
        near: how many are nearer than the threshold to the person aimed at.
        distance: median Euclidean distance to the mean of the person aimed at.
    """

    confusion: Tensor
    near: int
    distance: float

    @property
    def right(self) -> int:
        """Images that are nearest to the person aimed at."""
        return int(self.confusion.trace())

    @property
    def images(self) -> int:
        """n."""
        return int(self.confusion.sum())


def class_means(descriptors: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(classes, d) float64: the mean descriptor of each person.

    Args:
        descriptors: (m, d) finite. labels: (m,) int64, each in [0, classes).

    Raises:
        ValueError: a class without any image, shapes that do not belong together, or a value not finite.
    """
    _check(descriptors, labels)
    counts = labels.bincount(minlength=classes)
    if len(counts) > classes or bool((counts == 0).any()):
        raise ValueError(f"images of {int((counts > 0).sum())} people; expected {classes}, numbered from 0")
    sums = torch.zeros(classes, descriptors.shape[1], dtype=torch.float64)
    return sums.index_add_(0, labels, descriptors.double()) / counts[:, None]


def identified(descriptors: Tensor, targets: Tensor, means: Tensor, near: float) -> Identified:
    """Closed-set identification by the nearest mean; ties go to the lower number.

    Args:
        descriptors: (n, d) finite, n >= 1. targets: (n,) int64, the person each image was aimed at.
        means: (c, d) of `class_means`.
        near: distance below which an image is taken for the person's.

    Raises:
        ValueError: shapes that do not belong together, a target out of range, or a value not finite.
    """
    _check(descriptors, targets)
    people, means = len(means), means.double()
    if targets.min() < 0 or targets.max() >= people:
        raise ValueError(f"a target is outside 0 to {people - 1}")
    nearest = torch.cat([_distances(part, means).argmin(1) for part in descriptors.double().split(_CHUNK)])
    counts = (targets * people + nearest).bincount(minlength=people**2).view(people, people)
    own = (descriptors.double() - means[targets]).norm(dim=1)
    return Identified(counts, int((own < near).sum()), float(own.quantile(0.5)))


def _distances(descriptors: Tensor, means: Tensor) -> Tensor:
    """(n, c), exact: no difference of squares."""
    return torch.cdist(descriptors, means, compute_mode="donot_use_mm_for_euclid_dist")


def _check(descriptors: Tensor, labels: Tensor) -> None:
    if not len(descriptors) or descriptors.ndim != 2 or labels.shape != descriptors.shape[:1]:
        raise ValueError(
            f"descriptors {tuple(descriptors.shape)} with labels {tuple(labels.shape)}: expected (n, d) and (n,), n > 0"
        )
    if not all_finite(descriptors):
        raise ValueError("a descriptor is NaN or infinite")
