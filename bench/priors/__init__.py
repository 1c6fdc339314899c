"""Priors: data-free distributions of images, used as queries to a teacher.

Every prior is a plug-in: a file in `kinds/`, or an entry point of the group `bench.priors`. Names joined by `+`, such
as `shapes+pen`, denote a mixture, whose images alternate between these priors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from bench import data, plugins
from bench.errors import BenchError

__all__ = ["AUTO", "Prior", "for_dataset", "load"]

KIND = "prior"
AUTO = "auto"
"""Name for the data set's own prior."""
AND = "+"
"""Separator between the names of priors in a mixture."""
CHANNELS = (1, 3)
SMALLEST = 8

Shape = tuple[int, int, int]


class Prior(ABC):
    """A data-free distribution of images: one class in its own file, whose name is the prior's.

    `bench list priors` shows the first line of the file's docstring; the rest states the prior knowledge that the
    author used.
    """

    pixels: ClassVar[int] = 2**18
    """Largest number of pixels per call of `draw_part`, about 300 images of 28x28, which limits the memory."""

    def draw(self, count: int, shape: Shape, rng: torch.Generator) -> Tensor:
        """Draw (count, c, h, w) float32 images in [0, 1], on the device of `rng`.

        Args:
            count: number of images, >= 0.
            shape: (c, h, w), c 1 or 3, sides of at least 8 pixels.
            rng: source of all randomness.

        Raises:
            BenchError: an unsupported shape.
        """
        channels, height, width = shape
        if channels not in CHANNELS or min(height, width) < SMALLEST:
            raise BenchError(
                f"images of {channels}x{height}x{width}: priors draw 1 or 3 channels and sides of {SMALLEST} or more"
            )
        images = torch.empty(count, *shape, device=rng.device)
        for part in images.split(max(self.pixels // (height * width), 1)):
            if len(part):
                part.copy_(self.draw_part(len(part), shape, rng))
        return images

    @abstractmethod
    def draw_part(self, count: int, shape: Shape, rng: torch.Generator) -> Tensor:
        """Draw images as `draw`; called with at least 1 and at most max(1, `pixels` / (h w)) images."""


class Mixture(Prior):
    """A mixture of several priors, whose images alternate, so that each prior has an equal share."""

    def __init__(self, priors: Sequence[Prior]) -> None:
        self._priors = tuple(priors)

    def draw_part(self, count: int, shape: Shape, rng: torch.Generator) -> Tensor:
        """Draw equal numbers from each prior, and one more from the first ones if there is a remainder."""
        images = torch.empty(count, *shape, device=rng.device)
        for first, prior in enumerate(self._priors):
            share = images[first :: len(self._priors)]
            share.copy_(prior.draw(len(share), shape, rng))
        return images


def load(name: str) -> Prior:
    """Return the prior called `name`, or the mixture of the priors joined by `+` in it.

    Raises:
        BenchError: an unknown name.
    """
    if AND in name:
        return Mixture([load(part) for part in name.split(AND)])
    entry = plugins.find(KIND, name)
    return plugins.class_of(entry, is_prior, "one class that extends Prior")()


def for_dataset(name: str, dataset: str) -> Prior:
    """Return the prior called `name`; "auto" returns the prior that the data set's facts specify.

    Args:
        dataset: the name of its `ImageData`, such as that of a `Teacher`.
    """
    return load(data.facts(dataset).prior if name == AUTO else name)


def is_prior(cls: type) -> bool:
    """Whether a class is a prior; a named function, as the lookup of classes is cached by it."""
    return issubclass(cls, Prior)
