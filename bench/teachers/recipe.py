"""How to train a classifier: public hyper-parameters; a tier changes its sizes alone.

The learning rate, its schedule and the optimiser are the same in all tiers. How far images are shifted is a size here:
it says as how many images each record is seen, (2 s + 1)^2, of which few steps have a use for few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bench import validate
from bench.config import Size
from bench.errors import unknown


@dataclass(frozen=True)
class Recipe:
    """A supervised training run. The defaults are the tier `paper`, meant for a GPU."""

    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"epochs": 1, "max_steps": 8, "batch": 64, "shift": 0},
        "quick": {"epochs": 10, "max_steps": 1000, "batch": 64, "shift": 1},
    }

    epochs: Size[int] = 30
    """Passes over the training images."""
    max_steps: Size[int] = 0
    """Optimiser steps after which training ends even if passes remain; 0 = no limit."""
    batch: Size[int] = 256
    """Images per step; at least 2, for BatchNorm."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """adamw, or sgd with Nesterov momentum 0.9."""
    lr: float = 2e-3
    """Peak learning rate."""
    warmup: float = 0.1
    """Share of the steps in which the rate rises linearly to its peak; it then falls to 0 along a cosine."""
    weight_decay: float = 0.02
    """Decay of weight matrices and kernels; biases and normalisation parameters have none."""
    label_smoothing: float = 0.0
    """Share of the target spread evenly over all classes."""
    shift: Size[int] = 2
    """Random translation by up to so many pixels in each direction, black at the border; 0 = none."""
    flip: bool = False
    """Mirror half of the images left to right; wrong for digits and letters."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "epochs")
        validate.at_least(self, 2, "batch")
        validate.at_least(self, 0, "max_steps", "weight_decay", "label_smoothing", "shift")
        validate.below(self, 1, "label_smoothing")
        validate.between(self, 0, 1, "warmup")
        validate.positive(self, "lr")
        validate.one_of(self, "optimizer", "adamw", "sgd")

    @classmethod
    def at(cls, tier: str, **overrides: Any) -> Recipe:
        """The recipe of a tier (smoke, quick, paper), some fields changed. Raises BenchError for another tier."""
        known = {**cls.tiers, "paper": {}}
        if tier not in known:
            raise unknown("tier", tier, known)
        return cls(**{**known[tier], **overrides})

    def steps(self, images: int) -> int:
        """Optimiser steps that `fit` takes on so many training images.

        >>> [Recipe(epochs=3, batch=100, max_steps=8).steps(n) for n in (1, 201, 202, 500)]
        [0, 6, 8, 8]
        """
        total = self.epochs * self.steps_per_epoch(images)
        return min(total, self.max_steps) if self.max_steps else total

    def steps_per_epoch(self, images: int) -> int:
        """Batches in one pass; a last batch of a single image is left out, since BatchNorm has no variance for it."""
        full, rest = divmod(images, self.batch)
        return full + (rest > 1)
