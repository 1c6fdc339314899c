"""Random affine augmentation: images turned, scaled, sheared and moved a little."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def random_affine(images: Tensor, rng: torch.Generator) -> Tensor:
    """Each image turned, scaled, sheared and moved a little; black comes in at the border.

    Args:
        images: (n, c, h, w) in [0, 1].
        rng: on the images' device.
    """
    return apply_affine(images, draw_affine(len(images), rng))


def draw_affine(count: int, rng: torch.Generator) -> Tensor:
    """(5, count) draws for `apply_affine`: angle and shear normal, size and two shifts uniform in [-1, 1]."""
    normal = torch.randn(2, count, generator=rng, device=rng.device)
    return torch.cat([normal, torch.rand(3, count, generator=rng, device=rng.device) * 2 - 1])


def apply_affine(
    images: Tensor, drawn: Tensor, turn: float = 0.12, scale: float = 0.15, shear: float = 0.15, move: float = 0.1
) -> Tensor:
    """Each image moved as `draw_affine` drew for it; black comes in at the border.

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
