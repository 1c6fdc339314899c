"""Inputs of the metrics of reconstructed images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Labelled:
    """Labelled images with their evaluator features.

    Attributes:
        images: (m, c, h, w) uint8.
        labels: (m,) int64.
        features: (m, f) float32, the evaluator's penultimate features.
    """

    images: Tensor
    labels: Tensor
    features: Tensor


@dataclass(frozen=True)
class Reconstructions:
    """Reconstructions of an attack, and the images that they are compared with.

    Attributes:
        images: (n, c, h, w) uint8.
        targets: (n,) int64, the target class of each image.
        features: (n, f) float32, the evaluator's penultimate features; no attack had access to the evaluator.
        logits: (n, classes) float64, the evaluator's.
        private: the teacher's training images.
        held_out: test images, in no training set (except duplicates that a data set may contain).
    """

    images: Tensor
    targets: Tensor
    features: Tensor
    logits: Tensor
    private: Labelled
    held_out: Labelled
