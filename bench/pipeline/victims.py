"""Images that an attacked network is seen to answer, for attacks that watch its answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.pipeline.material import Material, smallest_class, some_of_each_class

VICTIMS = 10
"""Images of each class, of either kind."""


@dataclass(frozen=True)
class Victims:
    """Images that the target is seen to answer: private ones, and as many that it was never taught.

    Attributes:
        images: (m, c, h, w) uint8.
        labels: (m,) int64.
        private: (m,) bool.
    """

    images: Tensor
    labels: Tensor
    private: Tensor


def choose_victims(material: Material) -> Victims:
    """Up to VICTIMS images of each class from the private part, and as many of the test set; the same for all runs."""
    test = (material.data.test_images, material.data.test_labels)
    count = min(VICTIMS, *(smallest_class(labels) for _, labels in (material.private, test)))
    inside, outside = (some_of_each_class(labels, count) for _, labels in (material.private, test))
    return Victims(
        torch.cat([material.private[0][inside], test[0][outside]]),
        torch.cat([material.private[1][inside], test[1][outside]]),
        torch.arange(len(inside) + len(outside)) < len(inside),
    )
