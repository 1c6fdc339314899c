"""multi-scale noise: blended or blocky fields of all scales, sharpened, cut into pieces and bent

What a person knew: that images have large and small parts with borders between them, and often a black ground. It is
for images of which nothing else is known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.priors import Prior
from bench.priors.drawing import Draws
from bench.priors.multiscale import multiscale_noise


class Noise(Prior):
    """Prior whose images are `multiscale_noise`."""

    def draw_part(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        """Draw (count, c, h, w) images in [0, 1]."""
        return multiscale_noise(count, shape, Draws(rng))
