"""Where images come from that are drawn from class moments; see `class_moments.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bench.distillation.class_moments import Gaussians

SMALL = 1000
"""Private records per class below which moments are pooled."""


class Prior(NamedTuple):
    """Where images come from: class Gaussians, and how a projection becomes an image."""

    gaussians: Gaussians
    develop: Callable[[Tensor], Tensor]
    shape: tuple[int, int, int]

    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """(count, c, h, w) images in [0, 1] and the classes they were drawn for."""
        projections, classes = self.gaussians.draw(count, rng, self.shape)
        return self.develop(projections), classes
