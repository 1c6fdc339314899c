"""Access of an attack to its target: a network, or released images or a generator, limited to one access level.

A released generator is a `Sampler`, which also has the distribution of its latents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from bench.data import corrupted
from bench.validate import present

Access = Literal["label", "scores", "weights", "samples", "generator"]
ACCESS_LEVELS: tuple[Access, ...] = ("label", "scores", "weights")
"""Access levels to a network, from least to most; each includes the ones before it."""
RELEASE_LEVELS: tuple[Access, ...] = ("samples", "generator")
"""Access levels to a release: its images only, or also the generator that draws them, with gradients."""
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


class AccessDenied(Exception):
    """Raised when an attack uses more access than it declared."""


class Target:
    """An attacked network behind one access level: counts the queries and refuses calls above that level.

    One query is one image passed through the model. `label` returns class indices, `scores` adds softmax probabilities,
    `weights` adds differentiable logits and the module itself.

    Args:
        model: in eval mode, frozen.
        access: the level.
        shape: (c, h, w) of the model's images.
        classes: number of its classes.
        victims: (m, c, h, w) images that another user sends to the model; an attack may receive the model's responses
            to them (`victim_scores`) or corrupted copies of them (`corrupted_victims`), never the images.

    Attributes:
        queries: number of queries so far.
    """

    def __init__(
        self,
        model: nn.Module,
        access: Access,
        shape: Shape,
        classes: int,
        victims: Tensor | None = None,
    ) -> None:
        self.access: Access = access
        self.shape = shape
        self.classes = classes
        self.queries = 0
        self.__model = model
        self.__victims = victims

    def labels(self, images: Tensor) -> Tensor:
        """Return the (n,) int64 argmax classes."""
        return self.__query(images, "label").argmax(1)

    def scores(self, images: Tensor) -> Tensor:
        """Return (n, classes) softmax probabilities. Raises AccessDenied below access `scores`."""
        return self.__query(images, "scores").softmax(1)

    def victim_scores(self) -> Tensor:
        """Return (m, classes) softmax probabilities of the victims' images.

        These do not count as the attacker's queries.

        Raises:
            AccessDenied: the access is `label`, or the target has no victims.
        """
        self.__require("scores")
        if self.__victims is None:
            raise AccessDenied("the target has no victims; the attack's `observes` must be True")
        with torch.no_grad():
            return torch.cat([self.__model(part).softmax(1) for part in self.__victims.split(512)])

    def corrupted_victims(self, how: str) -> Tensor:
        """Return corrupted copies of the victims' images, (m, c, h, w); allowed at every access level.

        Args:
            how: a corruption of `bench.data.corrupted`.

        Raises:
            AccessDenied: the target has no victims.
        """
        if self.__victims is None:
            raise AccessDenied("the target has no victims; the attack's `observes` must be True")
        return corrupted(self.__victims, how)

    def logits(self, images: Tensor) -> Tensor:
        """Return (n, classes) logits, differentiable in `images`. Raises AccessDenied below access `weights`."""
        self.__require("weights")
        self.queries += len(images)
        return self.__model(images)

    def module(self) -> nn.Module:
        """Return the network itself, in eval mode. Raises AccessDenied below access `weights`."""
        self.__require("weights")
        return self.__model

    def __query(self, images: Tensor, level: Access) -> Tensor:
        self.__require(level)
        self.queries += len(images)
        with torch.no_grad():
            return self.__model(images)

    def __require(self, level: Access) -> None:
        if ACCESS_LEVELS.index(self.access) < ACCESS_LEVELS.index(level):
            raise AccessDenied(f"the attack declared access '{self.access}', and this call needs '{level}'")


class ReleasedImages:
    """Released images or a released generator behind one access level; counts the images, refuses calls above it.

    Args:
        access: `samples` returns images; `generator` also decodes chosen latents, with gradients.
        images: the released (m, c, h, w) images in [0, 1]; None if a generator can draw them.
        sampler: the released generator, frozen and in eval mode; None if no generator is released.

    Attributes:
        queries: number of images returned so far.
        most: number of available images; None if a generator draws any number.
    """

    def __init__(self, access: Access, images: Tensor | None, sampler: Sampler | None) -> None:
        self.access: Access = access
        self.most = None if images is None else len(images)
        self.queries = 0
        self.__images = images
        self.__sampler = sampler

    def samples(self, count: int, rng: torch.Generator) -> Tensor:
        """Return at most `count` images, (n, c, h, w) in [0, 1]: generated ones, or the first of the released ones.

        Generated images are rounded to 8 bits; a conditional generator cycles through the classes.
        """
        sampler = self.__sampler
        if sampler is None:
            found = present(self.__images, "released image and no generator")[:count]
        else:
            parts = []
            with torch.no_grad():
                for labels in (torch.arange(count, device=rng.device) % max(1, sampler.classes)).split(500):
                    parts.append(sampler.decode(sampler.latents(len(labels), rng), labels))
            found = (torch.cat(parts) * 255).round() / 255
        self.queries += len(found)
        return found

    def latents(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw (count, latent) latents from the generator's own distribution.

        Raises AccessDenied below access `generator`.
        """
        return self.__generator().latents(count, rng)

    def decode(self, z: Tensor, labels: Tensor) -> Tensor:
        """Map (n, latent) latents and (n,) labels to (n, c, h, w) images, differentiably.

        Raises AccessDenied as `latents`.
        """
        self.queries += len(z)
        return self.__generator().decode(z, labels)

    def __generator(self) -> Sampler:
        if self.access != "generator" or self.__sampler is None:
            raise AccessDenied(f"the attack declared access '{self.access}', and this call needs a released generator")
        return self.__sampler
