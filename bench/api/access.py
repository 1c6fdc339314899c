"""What an attack sees of a network and of what is released besides it: as much as it declared, counted."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from bench.api.sampler import Sampler, Shape
from bench.data import corrupted
from bench.validate import present

Access = Literal["label", "scores", "weights", "samples", "generator"]
ACCESS_LEVELS: tuple[Access, ...] = ("label", "scores", "weights")
"""What may be seen of a network, each more than the one before."""
RELEASE_LEVELS: tuple[Access, ...] = ("samples", "generator")
"""What may be seen of the release besides the student: images; and the generator that draws them, with gradients."""


class AccessDenied(Exception):
    """An attack asked its target for more than it declared."""


class Target:
    """A model seen through one access level; counts queries; refuses what is not granted.

    One query is one image put through the model. `label` answers class indices, `scores` adds softmax probabilities,
    `weights` adds logits that gradients flow through and the module itself.

    Args:
        model: in eval mode, frozen.
        victims: (m, c, h, w) images that another user puts to the model; an attack may be shown the answers to them
            (`victim_scores`), or the images corrupted (`corrupted_victims`), never the images.
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
        """(n,) int64 argmax classes."""
        return self.__ask(images, "label").argmax(1)

    def scores(self, images: Tensor) -> Tensor:
        """(n, classes) softmax probabilities. Raises AccessDenied below access `scores`."""
        return self.__ask(images, "scores").softmax(1)

    def victim_scores(self) -> Tensor:
        """(m, classes) softmax probabilities that the victims' images are answered with; not the attacker's queries.

        Raises:
            AccessDenied: access `label`, or a target that no one else uses.
        """
        self.__require("scores")
        if self.__victims is None:
            raise AccessDenied("the target has no victims; the attack's `observes` must be True")
        with torch.no_grad():
            return torch.cat([self.__model(part).softmax(1) for part in self.__victims.split(512)])

    def corrupted_victims(self, how: str) -> Tensor:
        """(m, c, h, w) the victims' images, corrupted (`bench.data.corrupted`): given to attacks that assume as much.

        Raises:
            AccessDenied: a target that no one else uses.
        """
        if self.__victims is None:
            raise AccessDenied("the target has no victims; the attack's `observes` must be True")
        return corrupted(self.__victims, how)

    def logits(self, images: Tensor) -> Tensor:
        """(n, classes), differentiable in `images`. Raises AccessDenied below access `weights`."""
        self.__require("weights")
        self.queries += len(images)
        return self.__model(images)

    def module(self) -> nn.Module:
        """The network itself, in eval mode. Raises AccessDenied below access `weights`."""
        self.__require("weights")
        return self.__model

    def __ask(self, images: Tensor, level: Access) -> Tensor:
        self.__require(level)
        self.queries += len(images)
        with torch.no_grad():
            return self.__model(images)

    def __require(self, level: Access) -> None:
        if ACCESS_LEVELS.index(self.access) < ACCESS_LEVELS.index(level):
            raise AccessDenied(f"the attack declared access '{self.access}' and asked for '{level}'")


class ReleasedImages:
    """What is released besides a student, seen through one access level; counts images; refuses what is not granted.

    Args:
        access: `samples` gives images; `generator` also their generator's answers to chosen latents, with gradients.
        images: (m, c, h, w) in [0, 1] that were released; None where a generator is there to draw from.
        sampler: the released generator, frozen and in eval mode, if there is one.

    Attributes:
        queries: images seen so far.
        most: how many images there are; None where a generator draws as many as are asked for.
    """

    def __init__(self, access: Access, images: Tensor | None, sampler: Sampler | None) -> None:
        self.access: Access = access
        self.most = None if images is None else len(images)
        self.queries = 0
        self.__images = images
        self.__sampler = sampler

    def samples(self, count: int, rng: torch.Generator) -> Tensor:
        """Up to `count` images, as 8 bits hold them: draws of the generator, classes in turn; else those released."""
        sampler = self.__sampler
        if sampler is None:
            found = present(self.__images, "released image and no generator")[:count]
        else:
            parts = [_draw(sampler, start, min(start + 500, count), rng) for start in range(0, count, 500)]
            found = (torch.cat(parts) * 255).round() / 255
        self.queries += len(found)
        return found

    def latents(self, count: int, rng: torch.Generator) -> Tensor:
        """(count, latent) as they are drawn. Raises AccessDenied below access `generator`."""
        return self.__generator().latents(count, rng)

    def decode(self, z: Tensor, labels: Tensor) -> Tensor:
        """(n, c, h, w) of (n, latent), differentiable in them, and (n,) labels. Raises AccessDenied as `latents`."""
        self.queries += len(z)
        return self.__generator().decode(z, labels)

    def __generator(self) -> Sampler:
        if self.access != "generator" or self.__sampler is None:
            raise AccessDenied(f"the attack declared access '{self.access}' and asked for the released generator")
        return self.__sampler


@torch.no_grad()
def _draw(sampler: Sampler, start: int, stop: int, rng: torch.Generator) -> Tensor:
    """The samples of these numbers, so that the classes go on in turn from one part to the next."""
    labels = torch.arange(start, stop, device=rng.device) % max(1, sampler.classes)
    return sampler.decode(sampler.latents(len(labels), rng), labels)
