"""Facts about images that need no model: brightness, edges and textures, for the baseline without the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bench.data import batch_size_for, to_float
from bench.seeds import derive

FILTERS, SIDE = 32, 5
"""Number of random convolution filters of the features, and their side in pixels."""
GRID = 4
"""Number of cells per side of the grid whose mean brightnesses are features."""


@dataclass(frozen=True)
class ImageFacts:
    """Names of the d features, and their values, (n, d) float64."""

    names: tuple[str, ...]
    values: NDArray[np.float64]


def image_facts(images: Tensor, seed: int) -> ImageFacts:
    """Compute features of (n, c, h, w) uint8 images.

    Mean, spread and quantiles of brightness, share of black and white pixels, edges, a 4 x 4 grid of brightness,
    means of each channel, and rectified responses of 32 random 5 x 5 filters.
    """
    filters = torch.randn(
        (FILTERS, images.shape[1], SIDE, SIDE), generator=torch.Generator().manual_seed(derive(seed, "filters"))
    )
    values = torch.cat([_features(to_float(some), filters) for some in images.split(batch_size_for(images, 512))])
    names = (
        *("mean brightness", "contrast", "black pixels", "white pixels"),
        *(f"brightness quantile {q}" for q in ("5 %", "25 %", "50 %", "75 %", "95 %")),
        *("horizontal edges", "vertical edges", "fine detail"),
        *(f"mean of channel {channel}" for channel in range(images.shape[1])),
        *(f"brightness of cell {row},{column}" for row in range(GRID) for column in range(GRID)),
        *(f"texture {number}" for number in range(FILTERS)),
    )
    return ImageFacts(names, values.double().numpy())


def _features(x: Tensor, filters: Tensor) -> Tensor:
    """Return (n, d) features of (n, c, h, w) images in [0, 1]."""
    grey = x.mean(1)
    flat = grey.flatten(1)
    quantiles = torch.quantile(flat, torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]), dim=1).T
    across, down = (grey.diff(dim=2).abs(), grey.diff(dim=1).abs())
    fine = (grey[:, 1:-1, 1:-1] - F.avg_pool2d(grey[:, None], 3, 1)[:, 0]).abs().flatten(1).mean(1)
    cells = F.adaptive_avg_pool2d(grey[:, None], GRID).flatten(1)
    textures = F.conv2d(x, filters, padding=SIDE // 2).relu().mean((2, 3))
    single = [flat.mean(1), flat.std(1), (flat < 0.02).float().mean(1), (flat > 0.98).float().mean(1)]
    edges = [across.flatten(1).mean(1), down.flatten(1).mean(1), fine]
    return torch.cat([torch.stack(single, 1), quantiles, torch.stack(edges, 1), x.mean((2, 3)), cells, textures], 1)
