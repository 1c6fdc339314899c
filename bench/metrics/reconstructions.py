"""What a metric of reconstructed images is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Labelled:
    """Labelled images, as the evaluator sees them.

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
    """What an attack brought back, and what it is compared with.

    Attributes:
        images: (n, c, h, w) uint8.
        targets: (n,) int64, the class each was aimed at.
        features: (n, f) float32, the evaluator's penultimate features; no attack saw the evaluator.
        logits: (n, classes) float64, the evaluator's.
        private: the teacher's training images.
        held_out: test images, which trained nothing (but for copies of them that a data set may have among the others).
    """

    images: Tensor
    targets: Tensor
    features: Tensor
    logits: Tensor
    private: Labelled
    held_out: Labelled
