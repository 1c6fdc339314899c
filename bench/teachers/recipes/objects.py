"""objects and garments: the standard recipe with mirrored images; at tier quick 6 passes, not a thousand steps"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.teachers.recipes.standard import Recipe


@dataclass(frozen=True)
class Objects(Recipe):
    """The standard recipe for images that may be mirrored; at tier `quick` with several complete passes."""

    version: ClassVar[int] = 1
    tiers: ClassVar[dict[str, dict[str, int]]] = {
        "smoke": {"epochs": 1, "max_steps": 8, "batch": 64, "shift": 0},
        "quick": {"epochs": 6, "batch": 64, "shift": 2},
    }

    weight_decay: float = 0.05
    """Decay of weight matrices and kernels; biases and normalisation parameters have none."""
    flip: bool = True
    """Mirror half of the images left to right."""
