"""faces with few images per person: rotated, scaled, shifted, mirrored, with changed brightness and partly erased"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench import validate
from bench.config import Size
from bench.data.affine import apply_affine
from bench.teachers.recipes.standard import Recipe

GREYED = 0.5
"""Largest weight of the grey value when an image's colours are desaturated."""


@dataclass(frozen=True)
class Faces(Recipe):
    """The standard recipe with strong augmentation; without it a network memorises about 40 images per person."""

    version: ClassVar[int] = 1
    tiers: ClassVar[dict[str, dict[str, int]]] = {
        "smoke": {"epochs": 1, "max_steps": 4, "batch": 32},
        "quick": {"epochs": 40, "batch": 64},
    }

    lr: float = 3e-3
    """Peak learning rate."""
    weight_decay: float = 0.05
    """Decay of weight matrices and kernels; biases and normalisation parameters have none."""
    label_smoothing: float = 0.1
    """Share of the target spread evenly over all classes."""
    shift: Size[int] = 0
    """Largest additional random shift in each direction, in pixels; black at the border."""
    flip: bool = True
    """Mirror half of the images left to right."""
    turn: float = 10.0
    """Largest random rotation, in degrees."""
    scale: float = 0.15
    """Largest relative change of an image's size."""
    move: float = 0.12
    """Largest shift, as a share of the image's side."""
    light: float = 0.3
    """Largest relative change of brightness, and of contrast."""
    erase: float = 0.5
    """Probability that a rectangle of an image is replaced by the image's mean colour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 0, "turn", "scale", "move", "light")
        validate.between(self, 0, 1, "erase")

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment each image with independent random draws."""
        found = super().augment(images, generator).float() / 255
        drawn = torch.rand(11, len(images), generator=generator).to(images.device)
        turn, even = self.turn * torch.pi / 180, 2 * drawn[:5] - 1
        found = apply_affine(found, even, turn=turn, scale=self.scale, shear=0.0, move=2 * self.move)
        found = lightened(found, self.light * (2 * drawn[5:7] - 1), GREYED * drawn[7])
        return (erased(found, drawn[8:], self.erase) * 255).round().to(images.dtype)


def lightened(images: Tensor, changes: Tensor, grey: Tensor) -> Tensor:
    """Change brightness and contrast of (n, c, h, w) images in [0, 1], and desaturate them.

    Args:
        changes: (2, n) relative changes of brightness and of contrast; 0 = none.
        grey: (n,) in [0, 1]; 1 = fully grey.
    """
    brightness, contrast = (1 + change[:, None, None, None] for change in changes)
    mean = images.mean((1, 2, 3), keepdim=True)
    images = ((images - mean) * contrast + mean) * brightness
    return images.lerp(images.mean(1, keepdim=True).expand_as(images), grey[:, None, None, None]).clamp(0, 1)


def erased(images: Tensor, drawn: Tensor, chance: float) -> Tensor:
    """Replace a rectangle in some of (n, c, h, w) images by the image's mean colour.

    Its sides are 0.1 to 0.35 of the image's; its parts outside of the image are cut off.

    Args:
        drawn: (3, n) uniform in [0, 1]: whether to erase, and the vertical and horizontal position; the first also sets
            the size.
    """
    _, _, height, width = images.shape
    whether, down, across = drawn
    share = 0.1 + 0.25 * (whether / max(chance, 1e-9)).clamp(max=1)

    def within(side: int, centre: Tensor) -> Tensor:
        positions = (torch.arange(side, device=centre.device) + 0.5) / side
        return (positions - centre[:, None]).abs() < share[:, None] / 2

    inside = within(height, down)[:, :, None] & within(width, across)[:, None, :]
    inside &= (whether < chance)[:, None, None]
    return torch.where(inside[:, None], images.mean((2, 3), keepdim=True), images)
