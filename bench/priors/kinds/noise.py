"""multi-scale noise: blended or blocky fields of all scales, sharpened, cut into pieces and bent

Prior knowledge: images have large and small parts with borders between them, and often a black ground. It is for images
of which nothing else is known. Random grids of 1, 2, 4 and more cells are superimposed, sharpened and cut into pieces.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.priors.drawing import Draws, correlated
from bench.priors.drawn import DrawnPrior

BLOCKS = 0.3
"""Share of fields whose cells have sharp edges; the others are interpolated smoothly."""
SCALES = 2.0
"""Standard deviation of the logits of the scales' weights: some fields have one dominant scale, others all scales."""
SHIFT, CUT_SHIFT = 0.25, 0.2
"""Largest change of lightness before sharpening, for the fields and for the mask that combines two fields."""
SHARPEST, CUT_SHARPNESS = 6, 8
"""Most sharpening steps, which push values towards 0 and 1, for a field; their number for the mask."""
CUT, ON_BLACK = 0.7, 0.35
"""Share of images cut from two fields; probability that the second field is black."""
TURN = 0.4
"""Standard deviation of the rotation angle, in radians."""
ZOOM = (0.8, 1.3)
"""Range of the scale factor of the visible part."""
BEND, BEND_CELLS = 0.12, 4
"""Standard deviation of the displacement in half widths, and cells per side of its grid."""


class Noise(DrawnPrior):
    """Prior whose images are `multiscale_noise`."""

    def draw_from(self, draws: Draws, count: int, shape: tuple[int, int, int]) -> Tensor:
        """Draw (count, c, h, w) images in [0, 1]."""
        return multiscale_noise(count, shape, draws)


def multiscale_noise(count: int, shape: tuple[int, int, int], draws: Draws) -> Tensor:
    """Draw (n, c, h, w) in [0, 1]: one sharpened field, or two with a sharp border; then rotated, scaled and bent."""
    _, height, width = shape
    first, second = (draw_sharpened_field(count, shape, draws) for _ in range(2))
    mask = draw_field(count, (1, height, width), draws) + draws.uniform(-CUT_SHIFT, CUT_SHIFT, count, 1, 1, 1)
    mask = sharpen(mask.clamp(0, 1), torch.full((count,), CUT_SHARPNESS, device=draws.device), CUT_SHARPNESS)
    second = second * ~draws.chance(ON_BLACK, count, 1, 1, 1)
    both = second.lerp(first, mask.expand_as(first))
    images = torch.where(draws.chance(CUT, count, 1, 1, 1), both, first)
    return warp(images, draws).clamp(0, 1)


def draw_sharpened_field(count: int, shape: tuple[int, int, int], draws: Draws) -> Tensor:
    """Draw (n, c, h, w) in [0, 1]: a field with a random number of sharpening steps."""
    field = draw_field(count, shape, draws) + draws.uniform(-SHIFT, SHIFT, count, 1, 1, 1)
    return sharpen(field.clamp(0, 1), draws.integers(0, SHARPEST, count), SHARPEST)


def draw_field(count: int, shape: tuple[int, int, int], draws: Draws) -> Tensor:
    """Draw (n, c, h, w) in [0, 1]: the sum of enlarged uniform noise on grids of 1, 2, 4, ... cells per side."""
    channels, height, width = shape
    levels = (max(height, width) - 1).bit_length() + 1
    side = 2 ** (levels - 1)
    weights = torch.softmax(SCALES * draws.normal(count, levels), 1)
    blocks = draws.chance(BLOCKS, count, 1, 1, 1)
    total = torch.zeros(count, channels, side, side, device=draws.device)
    for level in range(levels):
        cells = correlated(draws.uniform(0, 1, count, channels, 2**level, 2**level))
        cells = cells * weights[:, level].view(-1, 1, 1, 1)
        # Compute both variants for all images: indexing by a mask would synchronise with a GPU.
        squares = F.interpolate(cells, size=side, mode="nearest")
        smooth = F.interpolate(cells, size=side, mode="bilinear", align_corners=False)
        total += torch.where(blocks, squares, smooth)
    top, left = (int(draws.integers(0, side - length)) for length in (height, width))
    total = total[:, :, top : top + height, left : left + width]
    low, high = total.amin((1, 2, 3), keepdim=True), total.amax((1, 2, 3), keepdim=True)
    return (total - low) / (high - low + 1e-6)


def sharpen(images: Tensor, times: Tensor, most: int) -> Tensor:
    """Push values in [0, 1] to the nearer end by `times` (n,) smooth steps, at most `most` each."""
    for done in range(most):
        stepped = torch.where(images < 0.5, 2 * images.square(), 1 - 2 * (1 - images).square())
        images = torch.where((times > done).view(-1, 1, 1, 1), stepped, images)
    return images


def warp(images: Tensor, draws: Draws) -> Tensor:
    """Rotate, scale and bend each image; the border is filled by mirroring."""
    count, _, height, width = images.shape
    angle, zoom, zero = TURN * draws.normal(count), draws.uniform(*ZOOM, count), torch.zeros(count, device=draws.device)
    cosine, sine = zoom * angle.cos(), zoom * angle.sin()
    rows = torch.stack([torch.stack([cosine, -sine, zero], 1), torch.stack([sine, cosine, zero], 1)], 1)
    bend = BEND * draws.normal(count, 2, BEND_CELLS, BEND_CELLS)
    bend = F.interpolate(bend, size=(height, width), mode="bicubic", align_corners=False).permute(0, 2, 3, 1)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False) + bend
    return F.grid_sample(images, grid, align_corners=False, padding_mode="reflection")
