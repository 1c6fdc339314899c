"""Parts of inversions of a conditional GAN: the max-margin loss, and random changes of every image.

Yuan et al., "Pseudo Label-Guided Model Inversion Attack via Conditional GAN", AAAI 2023; `attacks/plg_mi.py` and
`attacks/lokt.py` have the algorithms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

CHANCES = 8
"""Number of random numbers per augmented image."""


def max_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return L_MM = -t_y + max_{j != y} t_j, (n,), of (n, classes) logits, classes >= 2, and (n,) labels."""
    y = labels.unsqueeze(1)
    return logits.scatter(1, y, -math.inf).amax(1) - logits.gather(1, y).squeeze(1)


def augment(images: Tensor, chances: Tensor, crop: float, rotation: float, jitter: float, mirror: bool) -> Tensor:
    """Apply A: crop, rotate and recolour every image by its own random numbers; differentiable in the images.

    Args:
        images: (n, c, h, w) in [0, 1], float32.
        chances: (n, CHANCES) in [0, 1): area, position in x and y, angle, brightness, contrast, saturation, mirror.
        crop: smallest share of the area. rotation: largest angle in degrees. jitter: largest change of the factors.
        mirror: whether images whose last chance is below 1/2 are mirrored.

    Returns:
        (n, c, h, w) in [0, 1]; black where a rotated square exceeds the image.
    """
    area, across, down, turn, *factors, side = chances.unbind(1)
    scale = (crop + (1 - crop) * area).sqrt()
    angle = math.radians(rotation) * (2 * turn - 1)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    hand = torch.where(side < 0.5, -1.0, 1.0) if mirror else torch.ones_like(side)
    free = 1 - scale
    matrix = [cos * hand, -sin, free * (2 * across - 1), sin * hand, cos, free * (2 * down - 1)]
    grid = affine_grid(torch.stack(matrix, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    x = grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    brightness, contrast, saturation = (1 + jitter * (2 * f.view(-1, 1, 1, 1) - 1) for f in factors)
    x = brightness * x
    middle = x.mean((1, 2, 3), keepdim=True)
    x = middle + contrast * (x - middle)
    grey = x.mean(1, keepdim=True)
    return (grey + saturation * (x - grey)).clamp(0, 1)
