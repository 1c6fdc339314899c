"""Identification of the person on reconstructed images, by the nearest mean face descriptor of the private images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.metrics.inversion import all_finite

_CHUNK = 1024


@dataclass(frozen=True)
class Identification:
    """Result of identifying n images.

    Attributes:
        confusion: (c, c) int64 counts, row the target person, column the person with the nearest mean; on the CPU.
        near: number of images closer than the threshold to the target person.
        distance: median Euclidean distance to the target person's mean.
    """

    confusion: Tensor
    near: int
    distance: float

    @property
    def right(self) -> int:
        """Return the number of images whose nearest person is the target."""
        return int(self.confusion.trace())

    @property
    def images(self) -> int:
        """Return n, the number of images."""
        return int(self.confusion.sum())


def class_means(descriptors: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return (classes, d) float64: the mean descriptor of each person.

    Args:
        descriptors: (m, d) finite. labels: (m,) int64, each in [0, classes).

    Raises:
        ValueError: a class without images, mismatched shapes, or a value that is not finite.
    """
    _check(descriptors, labels)
    counts = labels.bincount(minlength=classes)
    if len(counts) > classes or bool((counts == 0).any()):
        raise ValueError(f"images of {int((counts > 0).sum())} people; expected {classes}, numbered from 0")
    sums = torch.zeros(classes, descriptors.shape[1], dtype=torch.float64)
    return sums.index_add_(0, labels, descriptors.double()) / counts[:, None]


def identify(descriptors: Tensor, targets: Tensor, means: Tensor, near: float) -> Identification:
    """Identify each image by the nearest mean (closed set); ties go to the lower index.

    Args:
        descriptors: (n, d) finite, n >= 1. targets: (n,) int64, the target person of each image.
        means: (c, d) of `class_means`.
        near: distance below which an image counts as showing the person.

    Raises:
        ValueError: mismatched shapes, a target out of range, or a value that is not finite.
    """
    _check(descriptors, targets)
    people, means = len(means), means.double()
    if targets.min() < 0 or targets.max() >= people:
        raise ValueError(f"a target is outside 0 to {people - 1}")
    exact = "donot_use_mm_for_euclid_dist"  # distances not computed by a difference of squares
    parts = descriptors.double().split(_CHUNK)
    nearest = torch.cat([torch.cdist(part, means, compute_mode=exact).argmin(1) for part in parts])
    counts = (targets * people + nearest).bincount(minlength=people**2).view(people, people)
    own = (descriptors.double() - means[targets]).norm(dim=1)
    return Identification(counts, int((own < near).sum()), float(own.quantile(0.5)))


def _check(descriptors: Tensor, labels: Tensor) -> None:
    if not len(descriptors) or descriptors.ndim != 2 or labels.shape != descriptors.shape[:1]:
        raise ValueError(
            f"descriptors {tuple(descriptors.shape)} with labels {tuple(labels.shape)}: expected (n, d) and (n,), n > 0"
        )
    if not all_finite(descriptors):
        raise ValueError("a descriptor is NaN or infinite")
