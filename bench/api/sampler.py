"""An image generator together with the distribution of its latents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
Drawing = TypeVar("Drawing", bound=nn.Module, covariant=True)
Latents = Callable[[int, torch.Generator], Tensor]
"""Function (count, generator) -> (count, latent) latents."""


def gaussian_latents(length: int) -> Latents:
    """Return a function that draws (n, length) latents z ~ N(0, I)."""
    return lambda count, rng: torch.randn(count, length, generator=rng, device=rng.device)


def uniform_latents(length: int) -> Latents:
    """Return a function that draws (n, length) latents z uniformly from [-1, 1)."""
    return lambda count, rng: 2 * torch.rand(count, length, generator=rng, device=rng.device) - 1


@dataclass(frozen=True)
class Sampler(Generic[Drawing]):
    """A generator, and the way to draw images from it.

    Attributes:
        generator: maps (n, latent) latents, and (n,) int64 labels if it is conditional, to (n, c, h, w) in [0, 1].
        latents: function (count, generator) -> (count, latent), draws the inputs of the generator.
        classes: number of classes of a conditional generator; 0 for an unconditional one.
    """

    generator: Drawing
    latents: Latents
    classes: int = 0

    def decode(self, z: Tensor, labels: Tensor) -> Tensor:
        """Map (n, latent) latents and (n,) labels to (n, c, h, w) images.

        An unconditional generator ignores the labels.
        """
        images: Tensor = self.generator(z, labels) if self.classes else self.generator(z)
        return images
