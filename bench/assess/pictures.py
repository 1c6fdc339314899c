"""Facts about images that need no model: features for the baseline, and copies between the two sets."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from bench.assess.blind import Facts
from bench.assess.records import FILE_FACTS, Records
from bench.assess.schema import Copies
from bench.assess.scores import FEWEST
from bench.data import batch_size_for
from bench.data.image_files import difference_hash, pixel_keys
from bench.data.parts import NEAR
from bench.errors import BenchError
from bench.seeds import derive

FILTERS, SIDE = 32, 5
"""Number of random convolution filters of the features, and their side in pixels."""
GRID = 4
"""Number of cells per side of the grid whose mean brightnesses are features."""
COMPARED = 8
"""Largest number of members with the same difference hash that a non-member is compared with."""


def facts_of(records: Records, seed: int) -> Facts:
    """Compute features of (n, c, h, w) images and of their files, for the baseline without the model.

    Mean, spread and quantiles of brightness, share of black and white pixels, edges, a 4 x 4 grid of brightness,
    means of each channel, and rectified responses of 32 random 5 x 5 filters. File names and their order are left out:
    they differ between most folders, and no model has seen them.
    """
    images = records.images
    filters = torch.randn(
        (FILTERS, images.shape[1], SIDE, SIDE), generator=torch.Generator().manual_seed(derive(seed, "filters"))
    )
    values = torch.cat([_features(some.float() / 255, filters) for some in images.split(batch_size_for(images, 512))])
    names = [
        *("mean brightness", "contrast", "black pixels", "white pixels"),
        *(f"brightness quantile {q}" for q in ("5 %", "25 %", "50 %", "75 %", "95 %")),
        *("horizontal edges", "vertical edges", "fine detail"),
        *(f"mean of channel {channel}" for channel in range(images.shape[1])),
        *(f"brightness of cell {row},{column}" for row in range(GRID) for column in range(GRID)),
        *(f"texture {number}" for number in range(FILTERS)),
    ]
    found = values.double().numpy()
    if records.facts.shape[1]:
        found = np.concatenate([found, records.facts], 1)
        names += FILE_FACTS
    return Facts(tuple(names), found, records.labels.numpy(), records.groups)


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


def find_copies(members: Records, others: Records) -> tuple[Copies, NDArray[np.bool_]]:
    """Find copies of members among the non-members; return their counts, and (m,) bool: which non-members to keep.

    Exact copies have equal pixels. Near copies have the same 64-bit difference hash and pixels that differ by at most
    16 grey levels (root mean square). Their number is a lower bound, as the hashes of near copies may differ by a bit.
    The model was trained on a non-member that equals a member, so it is removed.

    Raises:
        BenchError: fewer than 30 non-members are left.
    """
    seen = set(pixel_keys(members.images))
    exact = np.array([key in seen for key in pixel_keys(others.images)])
    near = np.zeros(len(others), bool)
    of_look: dict[int, list[int]] = defaultdict(list)
    for row, look in enumerate(_looks(members.images)):
        of_look[look].append(row)
    for row, look in enumerate(_looks(others.images)):
        candidates = of_look.get(look, [])[:COMPARED]
        if candidates and not exact[row]:
            apart = members.images[candidates].float() - others.images[row].float()
            near[row] = bool((apart.square().flatten(1).mean(1).sqrt() <= NEAR).any())
    removed = exact | near
    found = Copies(
        exact=int(exact.sum()),
        near=int(near.sum()),
        removed=int(removed.sum()),
        method="equal pixels; equal difference hash and pixels within 16 grey levels",
    )
    if found.removed and int((~removed).sum()) < FEWEST:
        raise BenchError(
            f"{found.removed} of {len(others)} non-members are copies of members; give records that were not trained on"
        )
    return found, ~removed


def _looks(images: Tensor) -> list[int]:
    found: list[int] = []
    for image in images.numpy():
        grey: NDArray[np.uint8] = image[0] if len(image) == 1 else np.rint(image.mean(0)).astype(np.uint8)
        found.append(int(difference_hash(Image.fromarray(grey))))
    return found
