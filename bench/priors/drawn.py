"""Priors as simulators: each image is a function of fixed normal numbers, its latents, which can be changed a little.

A prior's random program is run with `LatentDraws` instead of `Draws`. Call number i of the program reads the same
columns of an image's latents in every run, also if the image is drawn with others, so that latents that are close give
images that are close. A first run (`LatentPlan.of`) finds the columns.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.priors import Prior, Shape
from bench.priors.drawing import Draws

PLANNED = 251
"""Number of images of the run that finds the columns; a prime, so that no other axis has this length."""
Key = tuple[int, ...]
"""Number of a call among those of its draws, after the key of the `of_rows` that made these."""


class DrawnPrior(Prior):
    """A prior that takes all its random numbers from one `Draws`."""

    @abstractmethod
    def draw_from(self, draws: Draws, count: int, shape: Shape) -> Tensor:
        """Draw (count, c, h, w) images in [0, 1]; called as `draw_part`."""

    def draw_part(self, count: int, shape: Shape, rng: torch.Generator) -> Tensor:
        """Draw with independent random numbers."""
        return self.draw_from(Draws(rng), count, shape)


@dataclass(frozen=True)
class Columns:
    """Latents that a call reads: `width` columns from `start`; `axis` of its result runs over images, None = none."""

    axis: int | None
    start: int
    width: int


@dataclass
class LatentPlan:
    """Columns of every call of a prior's program, and their number in total."""

    columns: dict[Key, Columns]
    width: int = 0

    @classmethod
    def of(cls, prior: DrawnPrior, shape: Shape) -> LatentPlan:
        """Find the columns by drawing PLANNED images."""
        plan = cls({})
        prior.draw_from(Planning(plan), PLANNED, shape)
        return plan


class LatentDraws(Draws):
    """Draws that are functions of given latents, (n, `plan.width`) normal numbers, one row for each image.

    A draw that all images share, such as an offset of the whole batch, is the middle of its distribution.
    """

    def __init__(self, plan: LatentPlan, latents: Tensor, key: Key = ()) -> None:
        self.plan, self.latents, self.device = plan, latents, latents.device
        self._key, self._calls = key, 0

    def normal(self, *size: int) -> Tensor:
        """Return the latents of this call."""
        found = self.plan.columns[self._next()]
        if found.axis is None:
            return torch.zeros(size, device=self.device)
        read = self.latents[:, found.start : found.start + found.width]
        if found.axis == 0:
            return read.reshape(size)
        return read.reshape(size[1], size[0], *size[2:]).transpose(0, 1)

    def uniform(self, low: float, high: float, *size: int) -> Tensor:
        """Return uniform numbers: the distribution function of the latents."""
        return low + (high - low) * torch.special.ndtr(self.normal(*size))

    def chance(self, share: float, *size: int) -> Tensor:
        """Return booleans, True with probability `share`."""
        return self.uniform(0, 1, *size) < share

    def integers(self, low: int, high: int, *size: int) -> Tensor:
        """Return integers of low..high."""
        return self.uniform(low, high + 1, *size).floor().long().clamp(max=high)

    def of_rows(self, rows: Tensor) -> Draws:
        """Return draws for the selected images, which read columns that no other call reads."""
        return LatentDraws(self.plan, self.latents[rows], self._next())

    def _next(self) -> Key:
        self._calls += 1
        return (*self._key, self._calls)


class Planning(LatentDraws):
    """Draws of the run that finds the columns: latents are made as they are requested."""

    def __init__(self, plan: LatentPlan, count: int = PLANNED, key: Key = ()) -> None:
        super().__init__(plan, torch.empty(count, 0), key)
        self._rng = torch.Generator().manual_seed(0)

    def normal(self, *size: int) -> Tensor:
        """Draw normal numbers and note which columns they are."""
        count = len(self.latents)
        axis = next((axis for axis in (0, 1) if len(size) > axis and size[axis] == count), None)
        width = math.prod(size) // count if axis is not None and count else 0
        self.plan.columns[self._next()] = Columns(axis, self.plan.width, width)
        self.plan.width += width
        return torch.randn(size, generator=self._rng)

    def of_rows(self, rows: Tensor) -> Draws:
        """Return planning draws for as many images as are selected."""
        return Planning(self.plan, len(self.latents[rows]), self._next())
