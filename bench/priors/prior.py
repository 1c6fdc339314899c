"""What a prior over images is, and priors by name: `kinds/NAME.py`, or an entry point of the group `bench.priors`.

Names joined by `+`, such as `shapes+pen`, are one prior whose images are of each in turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from bench import data, plugins
from bench.errors import BenchError

KIND = "prior"
AUTO = "auto"
"""The name that stands for the data set's own prior."""
AND = "+"
"""Between the names of priors that take turns."""
CHANNELS = (1, 3)
SMALLEST = 8

Shape = tuple[int, int, int]


class Prior(ABC):
    """A distribution of images that no data went into: one class in a file of its own, whose name is the prior's.

    The first line of the file's docstring is what `bench list priors` says; the rest says what a person knew of the
    images when writing it.
    """

    pixels: ClassVar[int] = 2**18
    """Pixels that `draw_part` is asked for at once, some 300 images of 28x28: this bounds the memory."""

    def draw(self, count: int, shape: Shape, rng: torch.Generator) -> Tensor:
        """(count, c, h, w) float32 in [0, 1], on the device of `rng`.

        Args:
            count: how many images, 0 or more.
            shape: (c, h, w), c 1 or 3, sides of at least 8 pixels.
            rng: all that is random comes from it.

        Raises:
            BenchError: another shape.
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
        """As `draw`, for as many images as fit into memory at once; at least 1."""


class Mixture(Prior):
    """Images of several priors in turns, so that each has its share of any number."""

    def __init__(self, priors: Sequence[Prior]) -> None:
        self._priors = tuple(priors)

    def draw_part(self, count: int, shape: Shape, rng: torch.Generator) -> Tensor:
        """As many of each, one more of the first ones where the count leaves a rest."""
        images = torch.empty(count, *shape, device=rng.device)
        for place, prior in enumerate(self._priors):
            turns = images[place :: len(self._priors)]
            turns.copy_(prior.draw(len(turns), shape, rng))
        return images


def load(name: str) -> Prior:
    """The prior called `name`, or the mixture of those that `+` joins in it.

    Raises:
        BenchError: a name that there is not.
    """
    if AND in name:
        return Mixture([load(part) for part in name.split(AND)])
    return plugins.class_of(plugins.find(KIND, name), _is_prior, "one class that extends Prior")()


def for_dataset(name: str, dataset: str) -> Prior:
    """The prior called `name`; "auto" is the one that the facts of the data set name.

    Args:
        dataset: the name of its `ImageData`, such as that of a `Teacher`.
    """
    return load(data.facts(dataset).prior if name == AUTO else name)


def _is_prior(cls: type) -> bool:
    return issubclass(cls, Prior)
