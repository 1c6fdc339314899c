"""Change the shape of a data set's images: bilinear resizing (antialiased), channels repeated or reduced to luma."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.data.images import ImageData
from bench.data.request import Fit

_LUMA = (0.299, 0.587, 0.114)
"""Luma weights of ITU-R BT.601."""
_AT_ONCE = 2**22


def in_shape(data: ImageData, channels: int, side: int) -> ImageData:
    """Return the data set with images of side x side pixels and 1 or 3 channels, in memory."""
    shape = (channels, side, side)
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


def squared(images: Tensor, how: Fit) -> Tensor:
    """Make (n, c, h, w) uint8 images square: the central square, black bars around the image, or stretched to the
    longer side."""
    height, width = images.shape[2:]
    if height == width:
        return images
    if how == "stretch":
        return fit(images, (images.shape[1], max(height, width), max(height, width)))
    if how == "pad":
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
        return F.pad(images, (left, side - width - left, top, side - height - top))
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return images[:, :, top : top + side, left : left + side].contiguous()


def fit(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Convert (n, c, h, w) uint8 images to the shape (c, h, w); images that have it are returned unchanged."""
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
