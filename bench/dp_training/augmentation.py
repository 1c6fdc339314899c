"""Random augmentation of private records in DP-SGD, drawn from the privacy noise.

De et al. (arXiv 2204.13650, 2022) average the gradients of K augmented views of a record *before* clipping. A record
still changes a sum by at most the clipping norm, so views cost time and no privacy (*augmentation multiplicity*).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from bench.data.affine import apply_affine
from bench.privacy.noise import Noise

PADDED = 8
"""Crops are shifted by up to this fraction of the shorter side: 4 pixels of 32, as De et al. do on CIFAR-10."""

AugmentationName = Literal["affine", "crop", "crop-and-flip"]


class Augmentation(Protocol):
    """A random change of an image, given random numbers of that image."""

    def draw(self, count: int, noise: Noise) -> Tensor:
        """Draw (numbers, count) float32 random numbers for `count` views."""
        ...

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Change (n, c, h, w) images in [0, 1] by (numbers, n) drawn numbers, each image by its own column."""
        ...


class Affine:
    """Small rotations, scalings, shears and shifts, with a black border (`bench.data.affine`)."""

    def draw(self, count: int, noise: Noise) -> Tensor:
        """Draw (5, count), distributed as by `bench.data.affine.draw_affine`."""
        return torch.cat([noise.normal(2, count), noise.uniform(3, count) * 2 - 1]).float()

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Implement `Augmentation`."""
        return apply_affine(images, drawn)


@dataclass(frozen=True)
class Crop:
    """Random crops of the image after padding by its mirror image, as De et al. (2022); optionally mirrored.

    Attributes:
        flips: whether half of the views are mirrored left to right; wrong for digits and letters.
    """

    flips: bool

    def draw(self, count: int, noise: Noise) -> Tensor:
        """Draw (3, count) numbers in [0, 1]: two offsets and the mirroring."""
        return noise.uniform(3, count).float()

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Implement `Augmentation`. A pixel beyond the border at distance d is the one inside at distance d."""
        height, width = images.shape[2:]
        furthest = max(round(min(height, width) / PADDED), 1)
        down, right = (drawn[:2] * (2 * furthest + 1)).floor().long().clamp_max(2 * furthest) - furthest
        rows, columns = (
            _mirrored(shift[:, None] + torch.arange(size, device=images.device), size)
            for shift, size in ((down, height), (right, width))
        )
        if self.flips:
            columns = torch.where(drawn[2, :, None] < 0.5, columns.flip(1), columns)
        every = torch.arange(len(images), device=images.device)[:, None, None]
        return images[every, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _mirrored(positions: Tensor, size: int) -> Tensor:
    """Map positions on an image and its repeated mirror images to positions on the image, 0 to size - 1.

    >>> _mirrored(torch.tensor([-2, -1, 0, 1, 2, 3, 4]), 3).tolist()
    [1, 0, 0, 1, 2, 2, 1]
    """
    wrapped = positions % (2 * size)
    return torch.where(wrapped < size, wrapped, 2 * size - 1 - wrapped)


AUGMENTATIONS: dict[AugmentationName, Augmentation] = {
    "affine": Affine(),
    "crop": Crop(flips=False),
    "crop-and-flip": Crop(flips=True),
}
"""Name in `DpSgdSettings.augmentation` -> augmentation."""


def views(images: Tensor, count: int, records: Tensor, drawn: Tensor | None, augmentation: Augmentation) -> Tensor:
    """Return (n * count, c, h, w): `count` augmented copies of each image, adjacent; the images themselves if 1.

    Args:
        images: (n, c, h, w).
        records: (n,) int64 indices of the records.
        drawn: (numbers, N * count), drawn by `augmentation` for all N records, those of record i from column i * count
            on; None if count is 1.
    """
    if drawn is None or not len(images):  # an empty sample is possible; its noisy sum is noise only
        return images
    return augmentation.apply(images.repeat_interleave(count, 0), drawn[:, columns_of(records, count)])


def columns_of(records: Tensor, count: int) -> Tensor:
    """Return the (n * count,) int64 positions of the views of these records: i * count to i * count + count - 1."""
    return (records[:, None] * count + torch.arange(count, device=records.device)).flatten()
