"""cross-entropy on randomly shifted images, by AdamW or SGD, with a warm-up and a cosine schedule"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bench import plugins, validate
from bench.config import Size, sizes
from bench.data.affine import augmented

KIND = "teacher recipe"


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters for training a classifier, which are public; the defaults are those of tier `paper`, for a GPU.

    Another recipe is a plug-in, a class in its own file that extends this one: it adds fields, or overrides the
    augmentation (`augment`) and the loss (`loss`).

    Class variables:
        version: increased when the resulting teachers change; part of the hash of every recipe except this one.
        tiers: size settings per tier.
    """

    version: ClassVar[int] = 1
    tiers: ClassVar[dict[str, dict[str, int]]] = {
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
    """Random translation by up to this many pixels in each direction, black at the border; 0 = none."""
    flip: bool = False
    """Mirror half of the images left to right; wrong for digits and letters."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "epochs")
        validate.at_least(self, 2, "batch")  # BatchNorm needs at least two images for a variance
        validate.at_least(self, 0, "max_steps", "weight_decay", "label_smoothing", "shift")
        validate.below(self, 1, "label_smoothing")
        validate.between(self, 0, 1, "warmup")
        validate.positive(self, "lr")
        validate.one_of(self, "optimizer", "adamw", "sgd")

    @classmethod
    def at(cls, tier: str, **overrides: Any) -> Recipe:
        """Return the recipe of a tier with some fields changed. Raises BenchError for an unknown tier."""
        return cls(**{**sizes(cls.tiers, tier), **overrides})

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment a batch of training images.

        Args:
            images: (n, c, h, w) uint8.
            generator: on the CPU; the source of all random draws.

        Returns:
            Images of the same shape and type.
        """
        return augmented(images, self.shift, self.flip, generator)

    def loss(
        self, forward: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return the scalar loss that an optimiser step minimises.

        Args:
            forward: the network's forward function, (n, c, h, w) -> (n, classes) float32 logits.
            images: (n, c, h, w) float32 in [0, 1], augmented.
            labels: (n,) int64.
            generator: as in `augment`.
        """
        return F.cross_entropy(forward(images), labels, label_smoothing=self.label_smoothing)

    def settings(self) -> dict[str, Any]:
        """Return the fields as plain data, for the record and the hash; and the recipe's name unless it is this one."""
        if type(self) is Recipe:
            return asdict(self)
        names = {entry.module.partition(":")[0]: name for name, entry in plugins.entries(KIND).items()}
        module = type(self).__module__  # a class that is not installed is named after its module
        return {**asdict(self), "recipe": names.get(module, module), "recipe_version": self.version}

    def steps(self, images: int) -> int:
        """Return the number of optimiser steps that `fit` takes on this many training images.

        >>> [Recipe(epochs=3, batch=100, max_steps=8).steps(n) for n in (1, 201, 202, 500)]
        [0, 6, 8, 8]
        """
        total = self.epochs * self.steps_per_epoch(images)
        return min(total, self.max_steps) if self.max_steps else total

    def steps_per_epoch(self, images: int) -> int:
        """Return the number of batches in one pass over this many images.

        A last batch of a single image is dropped, as BatchNorm has no variance for it.
        """
        full, rest = divmod(images, self.batch)
        return full + (rest > 1)
