"""Ranges of records: the transformed copies of an image that count as the same record, and their joint score."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F


def transformed_copies(
    images: Tensor, mirror: bool, vertical: bool, shift: int, rotation: float, centre: bool = True
) -> Iterator[Tensor]:
    """Yield transformed copies of (n, c, h, w) images, each of the same shape.

    Args:
        mirror, vertical: whether the horizontally and the vertically mirrored image are copies.
        shift: yields the four translations by this many pixels, up, down, left and right, edges repeated; 0 = none.
        rotation: yields the rotations by this many degrees in both directions, edges repeated; 0 = none.
        centre: whether the image itself is a copy; it is the first one.
    """
    if centre:
        yield images
    if mirror:
        yield images.flip(-1)
    if vertical:
        yield images.flip(-2)
    if shift:
        height, width = images.shape[-2:]
        framed = F.pad(images, (shift,) * 4, mode="replicate")
        for y, x in ((2 * shift, shift), (0, shift), (shift, 2 * shift), (shift, 0)):
            yield framed[..., y : y + height, x : x + width]
    if rotation:
        for degrees in (rotation, -rotation):
            yield rotated(images, degrees)


def rotated(images: Tensor, degrees: float) -> Tensor:
    """Rotate (n, c, h, w) images about their centre, counter-clockwise, with bilinear interpolation, edges repeated."""
    height, width = images.shape[-2:]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # affine_grid has coordinates from -1 to 1 along both sides, of any length
    rows = [[cosine, -sine * height / width, 0.0], [sine * width / height, cosine, 0.0]]
    matrix = torch.tensor(rows, dtype=images.dtype, device=images.device).expand(len(images), 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def mean_of_largest(scores: Tensor, share: float) -> Tensor:
    """Return (n,) means of the largest `share` of the (samples, n) scores of each range, of at least one score.

    Args:
        share: in (0, 1]; the number of scores is rounded to the nearest whole number, up from one half.
    """
    kept = max(1, math.floor(share * len(scores) + 0.5))
    return scores.sort(0, descending=True).values[:kept].mean(0)
