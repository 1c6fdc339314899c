"""Images of a data set in another shape: resized bilinearly (antialiased), channels repeated or reduced to luma."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.data.images import ImageData

_LUMA = (0.299, 0.587, 0.114)
"""Of ITU-R BT.601."""
_AT_ONCE = 2**22


def at_size(data: ImageData, side: int) -> ImageData:
    """The data set with images of side x side pixels, in memory."""
    shape = (data.shape[0], side, side)
    outsiders = None if data.outsiders is None else fit(data.outsiders, shape)
    return replace(
        data,
        train_images=fit(data.train_images, shape),
        test_images=fit(data.test_images, shape),
        outsiders=outsiders,
        train_marks=None,
        test_marks=None,
        outsider_marks=None,
    )


def fit(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """(n, c, h, w) uint8 images in the shape (c, h, w) of others; themselves where they have it."""
    if tuple(images.shape[1:]) == shape:
        return images
    whole = torch.empty(len(images), *shape, dtype=torch.uint8)
    rows = max(1, _AT_ONCE // max(images[:1].numel(), whole[:1].numel()))
    for some, place in zip(images.split(rows), whole.split(rows), strict=True):
        place.copy_(_fit(some, shape))
    return whole


def _fit(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    pixels = images.float()
    if images.shape[1] == 3 and channels == 1:
        pixels = (pixels * torch.tensor(_LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    elif images.shape[1] == 1:
        pixels = pixels.expand(-1, channels, -1, -1)
    if pixels.shape[2:] != (height, width):
        pixels = F.interpolate(pixels, size=(height, width), mode="bilinear", align_corners=False, antialias=True)
    return pixels.round().clamp(0, 255).to(torch.uint8)
