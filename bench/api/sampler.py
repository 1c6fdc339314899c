"""A generator of images, and how it is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
Drawing = TypeVar("Drawing", bound=nn.Module, covariant=True)
Latents = Callable[[int, torch.Generator], Tensor]


def gaussian_latents(length: int) -> Latents:
    """z ~ N(0, I), (n, length)."""
    return lambda count, rng: torch.randn(count, length, generator=rng, device=rng.device)


def uniform_latents(length: int) -> Latents:
    """z even in [-1, 1), (n, length)."""
    return lambda count, rng: 2 * torch.rand(count, length, generator=rng, device=rng.device) - 1


@dataclass(frozen=True)
class Sampler(Generic[Drawing]):
    """A generator, and how images are drawn from it.

    Attributes:
        generator: (n, latent), and (n,) int64 labels if it is conditional, to (n, c, h, w) in [0, 1].
        latents: (count, generator) to (count, latent), what is put to it.
        classes: of the labels that it takes too; 0 for a generator without labels.
    """

    generator: Drawing
    latents: Latents
    classes: int = 0

    def decode(self, z: Tensor, labels: Tensor) -> Tensor:
        """(n, c, h, w) of (n, latent) and (n,) labels, which a generator without labels is not told."""
        images: Tensor = self.generator(z, labels) if self.classes else self.generator(z)
        return images
