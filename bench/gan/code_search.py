"""Inversion by searching a decoder's codes for images that the target classifies confidently under augmentation.

It implements steps 2 and 3 of `pca-mi`, and 3 and 4 of `eigen-gan`, with their common options. For each class and draw,
Adam minimises over the code z, from z = 0, with a random augmentation A of the image in every step:

    cross-entropy(target(A(x(z))), class) + weight ||z||^2 + unlikeliness(x(z)),    x(z) the decoder.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Size
from bench.data.affine import apply_affine
from bench.validate import at_least, positive

FEWEST = 3
"""Smallest number of images from which two principal directions can be computed."""


class Decoder(Protocol):
    """The decoder x(z), with the functions that a search of z needs."""

    @property
    def size(self) -> int:
        """Return k, the length of a code."""

    def __call__(self, z: Tensor) -> Tensor:
        """Map (n, k) codes to (n, c, h, w) images in [0, 1], each row independently."""

    def code(self, images: Tensor) -> Tensor:
        """Return the (n, k) codes of the images."""

    def unlikeliness(self, images: Tensor) -> Tensor | float:
        """Return the penalty of (n, c, h, w) images, summed over them, which the search adds to its loss."""


@dataclass(frozen=True)
class CodeSearch(ABC):
    """Inversion by a search over the codes of a decoder, which subclasses fit on the attacker's images."""

    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    own: ClassVar[bool] = True

    components: int = 200
    """k, the number of principal directions, which is the length of a code."""
    images: Size[int] = 3000
    """Largest number of the attacker's images from which the directions are computed."""
    steps: Size[int] = 150
    """Adam steps for every image."""
    lr: float = 0.1
    """Adam's step size, in standard deviations of the principal components."""
    weight: float = 2e-4
    """Weight of ||z||^2 next to the cross-entropy of one image; a larger one keeps images nearer to the mean image."""
    shift: int = 2
    """Largest shift of an image, in pixels, before a query; the border is repeated."""
    turn: float = 10.0
    """Largest rotation of an image, in degrees, before a query."""
    scale: float = 0.15
    """Largest relative change of an image's size before a query."""
    move: float = 0.12
    """Largest additional shift before a query, as a share of the side; black beyond the border."""
    mirror: Literal["auto", "yes", "no"] = "auto"
    """Whether every second query is mirrored; auto = colour images only."""
    draws: Size[int] = 5
    """Independent reconstructions of every class, with different augmentations."""
    batch: Size[int] = 1000
    """Images searched at once; changes only rounding."""

    def __post_init__(self) -> None:
        at_least(self, 1, "components", "steps", "draws", "batch")
        at_least(self, FEWEST, "images")
        at_least(self, 0, "weight", "shift", "turn", "scale", "move")
        positive(self, "lr")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: too few auxiliary images for principal directions."""
        return None if aux >= FEWEST else f"{aux} auxiliary images: principal directions need at least {FEWEST}"

    @abstractmethod
    def decoder(self, aux: Tensor, ctx: Context) -> Decoder:
        """Return the decoder x(z), fitted on the attacker's images."""

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct every class `draws` times."""
        decoder = self.decoder(aux, ctx)
        classes = torch.arange(target.classes, device=ctx.device)
        targets, draws = classes.repeat(self.draws), torch.arange(self.draws, device=ctx.device)
        shifts, warps = (
            each.split(self.batch, -1) for each in self._draw_augmentations(len(targets), target.shape, ctx)
        )
        parts = list(zip(targets.split(self.batch), shifts, warps, strict=True))
        with ctx.track("searching codes", self.steps * len(parts)) as advance:
            found = [self._search(decoder, *part, target, ctx, advance) for part in parts]
        return AttackResult(torch.cat(found), targets, draws.repeat_interleave(len(classes)))

    def _draw_augmentations(self, count: int, shape: tuple[int, int, int], ctx: Context) -> tuple[Tensor, Tensor]:
        """Draw the augmentation of every step.

        Returns:
            (steps, 3, count) int64: shift down and right in pixels, and 1 to mirror;
            (steps, 5, count) in [-1, 1]: angle, unused, size and two shifts.
        """
        rng = ctx.generator("pca-mi/moves")
        size = (self.steps, 2, count)
        shifts = torch.randint(-self.shift, self.shift + 1, size, generator=rng, device=ctx.device)
        mirrors = torch.randint(0, 2, (self.steps, 1, count), generator=rng, device=ctx.device)
        mirrored = shape[0] == 3 if self.mirror == "auto" else self.mirror == "yes"
        warps = 2 * torch.rand(self.steps, 5, count, generator=rng, device=ctx.device) - 1
        return torch.cat([shifts, mirrors * int(mirrored)], 1), warps

    def _augment(self, images: Tensor, shift: Tensor, warp: Tensor) -> Tensor:
        """Augment (n, c, h, w) images by (3, n) and (5, n) draws of `_draw_augmentations`."""
        images = shift_and_mirror(images, shift.T, self.shift)
        if not self.turn and not self.scale and not self.move:
            return images
        angle = self.turn * math.pi / 180
        return apply_affine(images, warp, turn=angle, scale=self.scale, shear=0.0, move=2 * self.move)

    def _search(
        self, decoder: Decoder, labels: Tensor, shifts: Tensor, warps: Tensor, target: Target, ctx: Context,
        advance: Advance,
    ) -> Tensor:  # fmt: skip
        """Search the codes for (n,) labels and return the (n, c, h, w) images."""
        z = torch.zeros(len(labels), decoder.size, device=ctx.device, requires_grad=True)
        adam = torch.optim.Adam([z], lr=self.lr)
        for shift, warp in zip(shifts, warps, strict=True):
            with ctx.precision():
                images = decoder(z)
                logits = target.logits(self._augment(images, shift, warp)).float()
            # Sums, not means: an image's search must not depend on the other images
            cost = F.cross_entropy(logits, labels, reduction="sum") + self.weight * z.square().sum()
            (z.grad,) = torch.autograd.grad(cost + decoder.unlikeliness(images), z)
            adam.step()
            advance(1)
        return decoder(z).detach()

    def prior(self, count: int, aux: Tensor, ctx: Context) -> Tensor:
        """Return (count, c, h, w) images of standard normal codes."""
        decoder = self.decoder(aux, ctx)
        size, rng = (count, decoder.size), ctx.generator("pca-mi/prior")
        return decoder(torch.randn(size, generator=rng, device=ctx.device))

    def nearest(self, images: Tensor, aux: Tensor, ctx: Context) -> Tensor:
        """Return (n, c, h, w): `images` as the decoder reconstructs them from their codes."""
        decoder = self.decoder(aux, ctx)
        return decoder(decoder.code(images))


def shift_and_mirror(images: Tensor, shift: Tensor, most: int) -> Tensor:
    """Shift each image, repeating its border, and mirror it.

    Args:
        images: (n, c, h, w).
        shift: (n, 3) int64: pixels down and right, in [-most, most], and 1 to mirror.
    """
    n, c, height, width = images.shape
    padded = F.pad(images, (most, most, most, most), mode="replicate")
    across = torch.arange(width, device=images.device)
    columns = torch.where(shift[:, 2:].bool(), across.flip(0), across) + most - shift[:, 1:2]
    rows = torch.arange(height, device=images.device) + most - shift[:, :1]
    every = torch.arange(n, device=images.device)[:, None, None, None]
    channels = torch.arange(c, device=images.device)[None, :, None, None]
    return padded[every, channels, rows[:, None, :, None], columns[:, None, None, :]]
