"""Random augmentation: mirroring, shifts by whole pixels, and small rotations, scalings, shears and shifts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def augmented(images: Tensor, shift: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift each image by random integer numbers of pixels, filled with 0, and mirror it at random if `flip`.

    Args:
        images: (n, c, h, w), any dtype and device.
        shift: offsets are uniform on -shift..shift in both directions.
        flip: mirror each image left to right with probability 1/2.
        generator: on the CPU, so that the draws do not depend on the device.
    """
    n, _, height, width = images.shape
    device = images.device
    if shift:
        offsets = torch.randint(0, 2 * shift + 1, (2, n, 1), generator=generator).to(device)
        rows = offsets[0] + torch.arange(height, device=device)
        columns = offsets[1] + torch.arange(width, device=device)
        every = torch.arange(n, device=device)[:, None, None]
        padded = F.pad(images, (shift, shift, shift, shift))
        images = padded[every, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
    if flip:
        mirrored = (torch.rand(n, generator=generator) < 0.5).to(device)
        images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    return images


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
    """Rotate, scale, shear and shift each image by given random numbers; the border is filled with black.

    Args:
        images: (n, c, h, w) in [0, 1].
        drawn: (5, n) numbers: angle, shear, size and two shifts, each multiplied by its factor below. Those of
            `draw_affine` are normal for angle and shear, and uniform in [-1, 1] for the others.
        turn: factor of the angle, radians: its standard deviation for normal draws.
        scale: factor of the relative change of size: the largest one for draws in [-1, 1].
        shear: factor of the shear: its standard deviation for normal draws.
        move: factor of the shifts, in half widths: the largest one for draws in [-1, 1].
    """
    a, k = turn * drawn[0], shear * drawn[1]
    s, dx, dy = scale * drawn[2], move * drawn[3], move * drawn[4]
    top = torch.stack([(1 + s) * a.cos(), -(1 + s) * a.sin() + k, dx], 1)
    bottom = torch.stack([(1 + s) * a.sin(), (1 + s) * a.cos(), dy], 1)
    grid = F.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
