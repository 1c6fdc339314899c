"""Simulators of Sim-PE: sources of random images, and of variations of given images.

`Drawings` varies the data set's prior, `NearestImages` walks in a set of public images, `UserSimulator` checks the
images of a user's own object; `text.py` has rendered text. None of them reads private data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bench import priors
from bench.data.affine import apply_affine, draw_affine
from bench.errors import BadPlugin
from bench.priors.drawn import DrawnPrior, LatentDraws, LatentPlan

Shape = tuple[int, int, int]
PART = 512
"""Most images that are drawn or varied at once."""
MOST_CHANGE = 0.6
"""Change of a drawing's latents at degree 1; at 1 it would be another drawing."""


@dataclass(frozen=True)
class Population:
    """Images, (n, c, h, w) float32 in [0, 1], and the simulator's parameters of each, (n, k); k may be 0."""

    images: Tensor
    parameters: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Tensor | slice) -> Population:
        return Population(self.images[rows], self.parameters[rows])


class Simulator(Protocol):
    """RANDOM_API and VARIATION_API of the paper."""

    def random(self, count: int, rng: torch.Generator) -> Population:
        """Draw images at random."""
        ...

    def vary(self, population: Population, degree: float, rng: torch.Generator) -> Population:
        """Draw a variation of each image; a degree of 0 changes as little, 1 as much as the simulator can."""
        ...


def in_parts(count: int, make: Callable[[slice], Population]) -> Population:
    """Join the populations that `make` returns for PART rows at a time; `count` >= 1."""
    parts = [make(slice(start, min(start + PART, count))) for start in range(0, count, PART)]
    return Population(torch.cat([part.images for part in parts]), torch.cat([part.parameters for part in parts]))


@dataclass(frozen=True)
class Drawings:
    """Drawings of a prior, whose parameters are the normal numbers z that its program reads.

    A variation is drawn with sqrt(1 - a^2) z + a N(0, I), a = MOST_CHANGE degree, so that variations of random drawings
    have the prior's own distribution.
    """

    prior: DrawnPrior
    shape: Shape
    plan: LatentPlan

    @classmethod
    def of(cls, prior: DrawnPrior, shape: Shape) -> Drawings:
        """Return the simulator of a prior."""
        return cls(prior, shape, LatentPlan.of(prior, shape))

    def random(self, count: int, rng: torch.Generator) -> Population:
        """Draw from the prior."""

        def draw(rows: slice) -> Population:
            return self._draw(torch.randn(rows.stop - rows.start, self.plan.width, generator=rng, device=rng.device))

        return in_parts(count, draw)

    def vary(self, population: Population, degree: float, rng: torch.Generator) -> Population:
        """Change all latents by the degree."""

        def change(rows: slice) -> Population:
            z, a = population.parameters[rows], MOST_CHANGE * degree
            noise = torch.randn(z.shape, generator=rng, device=rng.device)
            return self._draw(math.sqrt(1 - a**2) * z + a * noise)

        return in_parts(len(population), change)

    def _draw(self, latents: Tensor) -> Population:
        images = self.prior.draw_from(LatentDraws(self.plan, latents), len(latents), self.shape)
        return Population(images, latents)


@dataclass(frozen=True)
class Moved:
    """Drawings of a prior without parameters, such as a mixture: a variation rotates, scales, shears and shifts."""

    prior: priors.Prior
    shape: Shape

    def random(self, count: int, rng: torch.Generator) -> Population:
        """Draw from the prior."""
        images = self.prior.draw(count, self.shape, rng)
        return Population(images, torch.empty(count, 0, device=rng.device))

    def vary(self, population: Population, degree: float, rng: torch.Generator) -> Population:
        """Apply a small affine map to each image, larger by the degree."""
        drawn = 2 * degree * draw_affine(len(population), rng)
        return Population(apply_affine(population.images, drawn).clamp(0, 1), population.parameters)


class NearestImages:
    """A set of public images. RANDOM draws from it; VARIATION draws one of the m nearest images (Sim-PE, section 3.2).

    m is degree^3 of the set, at least 2: an image itself and its nearest one.

    Args:
        images: (M, c, h, w) in [0, 1], M >= 2.
        features: (M, D), in which distances are measured.
    """

    def __init__(self, images: Tensor, features: Tensor) -> None:
        self.images, self.features = images, features.float()
        self._norms = self.features.square().sum(1)

    def random(self, count: int, rng: torch.Generator) -> Population:
        """Draw images with replacement; the parameter is the image's number."""
        return self._at(torch.randint(len(self.images), (count,), generator=rng, device=rng.device))

    def vary(self, population: Population, degree: float, rng: torch.Generator) -> Population:
        """Draw one of the m nearest images of each."""
        m = min(max(round(degree**3 * len(self.images)), 2), len(self.images))

        def neighbours(rows: slice) -> Population:
            chosen = self.features[population.parameters[rows, 0]]
            distance = self._norms - 2 * chosen @ self.features.T
            nearest = distance.topk(m, dim=1, largest=False).indices
            which = torch.randint(m, (len(chosen), 1), generator=rng, device=rng.device)
            return self._at(nearest.gather(1, which)[:, 0])

        return in_parts(len(population), neighbours)

    def _at(self, numbers: Tensor) -> Population:
        return Population(self.images[numbers], numbers[:, None])


class Source(Protocol):
    """A user's own simulator, an object with two functions of images (n, c, h, w) in [0, 1]."""

    def random(self, count: int, rng: torch.Generator) -> Tensor:
        """Return `count` random images."""
        ...

    def vary(self, images: Tensor, degree: float, rng: torch.Generator) -> Tensor:
        """Return a variation of each image."""
        ...


@dataclass(frozen=True)
class UserSimulator:
    """A user's own source of images, whose results are checked.

    Both functions raise BadPlugin for results that are not `count` finite images in [0, 1] of the data set's shape.
    """

    source: Source
    shape: Shape

    def __post_init__(self) -> None:
        for name in ("random", "vary"):
            if not callable(getattr(self.source, name, None)):
                raise BadPlugin(
                    f"the simulator {type(self.source).__name__} has no function {name}; expected random(count, rng) "
                    "and vary(images, degree, rng)"
                )

    def random(self, count: int, rng: torch.Generator) -> Population:
        """Draw the user's random images."""
        return self._checked(self.source.random(count, rng), count, "random", rng)

    def vary(self, population: Population, degree: float, rng: torch.Generator) -> Population:
        """Draw the user's variations, of copies of the images."""
        found = self.source.vary(population.images.clone(), degree, rng)
        return self._checked(found, len(population), "vary", rng)

    def _checked(self, images: Tensor, count: int, function: str, rng: torch.Generator) -> Population:
        expected, name = (count, *self.shape), f"{type(self.source).__name__}.{function}"
        if not isinstance(images, Tensor) or not images.is_floating_point():
            kind = f"a tensor of {images.dtype}" if isinstance(images, Tensor) else f"a {type(images).__name__}"
            raise BadPlugin(f"{name} returned {kind}; expected a tensor of floats {expected}; fix the simulator")
        if tuple(images.shape) != expected:
            raise BadPlugin(f"{name} returned shape {tuple(images.shape)}; expected {expected}; fix the simulator")
        if not bool(images.isfinite().all()):
            raise BadPlugin(f"{name} returned NaN or infinite pixels; expected pixels in [0, 1]; fix the simulator")
        low, high = float(images.min()), float(images.max())
        if low < 0 or high > 1:
            raise BadPlugin(
                f"{name} returned pixels from {low:.3g} to {high:.3g}; expected pixels in [0, 1]; fix the simulator"
            )
        return Population(images.float().to(rng.device), torch.empty(count, 0, device=rng.device))
