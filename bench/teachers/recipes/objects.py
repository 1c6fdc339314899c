"""objects and garments: mirrored and moved a little, several whole passes instead of a thousand steps"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bench.config import Size
from bench.teachers.recipes.standard import Recipe


@dataclass(frozen=True)
class Objects(Recipe):
    """The standard recipe for images that may be mirrored, with whole passes at tier `quick`."""

    version: ClassVar[int] = 1
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"epochs": 1, "max_steps": 8, "batch": 64},
        "quick": {"epochs": 6, "batch": 64},
    }

    weight_decay: float = 0.05
    """Decay of weight matrices and kernels; biases and normalisation parameters have none."""
    shift: Size[int] = 2
    """Pixels by which an image is moved at most, black at the border."""
    flip: bool = True
    """Mirror half of the images left to right."""
