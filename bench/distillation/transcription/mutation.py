"""Children of images: randomly rotated, stretched, bent, thickened or combined, as candidates for the next queries.

A child is queried again: far from the data a teacher's response changes with the image, and its parent's response would
be wrong for some children.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TURN, SHEAR = 0.2, 0.2
"""Standard deviations of the rotation angle (radians) and the shear."""
STRETCH, MOVE = 0.2, 0.12
"""Largest relative change of width and of height; largest shift, in half widths."""
BEND, KNOTS = 0.1, 4
"""Standard deviation of the displacements, in half widths, on a grid of KNOTS x KNOTS, interpolated bicubically."""
REINKED, STEEPNESS = 0.4, 14.0
"""Share of children whose strokes or edges become thinner or thicker: a mean over 3 x 3 pixels and a soft threshold
from 0.25 to 0.65."""
CROSSED, CROSS_MOVE = 0.2, 0.3
"""Share of children with a second parent; largest shift of that parent, in half widths."""


def children(parents: Tensor, rng: torch.Generator) -> Tensor:
    """Return one child of each image, (n, c, h, w) in [0, 1]; `rng` must be on their device."""
    crossed = _uniform(len(parents), rng) < CROSSED
    images = torch.where(crossed[:, None, None, None], crossover(parents, rng), parents)
    return reink(bend(images, rng), rng).clamp(0, 1)


def bend(images: Tensor, rng: torch.Generator) -> Tensor:
    """Apply a random affine map and a smooth random displacement field to each image; black beyond the border."""
    n, (height, width) = len(images), images.shape[2:]
    angle, shear = TURN * _normal(n, rng), SHEAR * _normal(n, rng)
    sx, sy = (1 + STRETCH * (2 * _uniform(n, rng) - 1) for _ in range(2))
    dx, dy = (MOVE * (2 * _uniform(n, rng) - 1) for _ in range(2))
    top = torch.stack([sx * angle.cos(), -sx * angle.sin() + shear, dx], 1)
    bottom = torch.stack([sy * angle.sin(), sy * angle.cos(), dy], 1)
    grid = F.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    knots = BEND * torch.randn(n, 2, KNOTS, KNOTS, generator=rng, device=images.device)
    field = F.interpolate(knots, size=(height, width), mode="bicubic", align_corners=False)
    return F.grid_sample(images, grid + field.permute(0, 2, 3, 1), align_corners=False)


def reink(images: Tensor, rng: torch.Generator) -> Tensor:
    """Make the strokes of a share of the images thinner or thicker; black stays black."""
    n = len(images)
    some, threshold = (_uniform(n, rng) < REINKED).view(-1, 1, 1, 1), (0.25 + 0.4 * _uniform(n, rng)).view(-1, 1, 1, 1)
    blurred = F.avg_pool2d(images, 3, 1, 1)
    inked = ((blurred - threshold) * STEEPNESS).sigmoid() - (-threshold * STEEPNESS).sigmoid()
    return torch.where(some, inked, images)


def crossover(images: Tensor, rng: torch.Generator) -> Tensor:
    """Combine each image with another: overlay (30 %), upper and lower half (50 %), or mean (20 %)."""
    n = len(images)
    partner = images[torch.randperm(n, generator=rng, device=images.device)]
    kind = _uniform(n, rng).view(-1, 1, 1, 1)
    shift = CROSS_MOVE * (2 * torch.rand(n, 2, 1, generator=rng, device=images.device) - 1)
    still = torch.eye(2, device=images.device).expand(n, 2, 2)
    grid = F.affine_grid(torch.cat([still, shift], 2), list(images.shape), align_corners=False)
    over = torch.maximum(images, F.grid_sample(partner, grid, align_corners=False))
    rows = torch.linspace(-1, 1, images.shape[2], device=images.device).view(1, 1, -1, 1)
    height = (0.6 * (_uniform(n, rng) - 0.5)).view(-1, 1, 1, 1)
    below = ((rows - height) * 20).sigmoid()
    halves = images * below + partner * (1 - below)
    return torch.where(kind < 0.3, over, torch.where(kind < 0.8, halves, (images + partner) / 2))


def _uniform(n: int, rng: torch.Generator) -> Tensor:
    return torch.rand(n, generator=rng, device=rng.device)


def _normal(n: int, rng: torch.Generator) -> Tensor:
    return torch.randn(n, generator=rng, device=rng.device)
