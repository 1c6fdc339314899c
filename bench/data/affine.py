"""Random affine augmentation: small rotations, scalings, shears and shifts of images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def random_affine(images: Tensor, rng: torch.Generator) -> Tensor:
    """Rotate, scale, shear and shift each image slightly; the border is filled with black.

    Args:
        images: (n, c, h, w) in [0, 1].
        rng: generator on the images' device.
    """
    return apply_affine(images, draw_affine(len(images), rng))


def draw_affine(count: int, rng: torch.Generator) -> Tensor:
    """Return (5, count) draws for `apply_affine`: angle and shear normal, size and two shifts uniform in [-1, 1]."""
    normal = torch.randn(2, count, generator=rng, device=rng.device)
    return torch.cat([normal, torch.rand(3, count, generator=rng, device=rng.device) * 2 - 1])


def apply_affine(
    images: Tensor, drawn: Tensor, turn: float = 0.12, scale: float = 0.15, shear: float = 0.15, move: float = 0.1
) -> Tensor:
    """Transform each image by the draws of `draw_affine`; the border is filled with black.

    Args:
        images: (n, c, h, w) in [0, 1].
        drawn: (5, n).
        turn: standard deviation of the angle, radians.
        scale: largest relative change of size.
        shear: standard deviation of the shear.
        move: largest shift, in half widths.
    """
    a, k = turn * drawn[0], shear * drawn[1]
    s, dx, dy = scale * drawn[2], move * drawn[3], move * drawn[4]
    top = torch.stack([(1 + s) * a.cos(), -(1 + s) * a.sin() + k, dx], 1)
    bottom = torch.stack([(1 + s) * a.sin(), (1 + s) * a.cos(), dy], 1)
    grid = F.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
