"""Features that no data went into, of private records: computed once, kept, and made rows of norm 1.

A record's row depends on that record and on public constants alone, but for rounding: networks take images in parts,
and where in its part an image lies moves its row by 1e-7 of itself, or by a unit of float16's last place where that
turns the rounding. A record that leaves keeps its place in the bench's account (their number is public).
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from bench.api import Context
from bench.data import to_float
from bench.dp_training.exact_products import exact_products
from bench.nets import Classifier
from bench.nets.wavelet_nets import VERSION

PART = 256
"""Images that a network sees at once."""
LEAST_NORM = 1e-12
"""Of a row that is scaled to norm 1; shorter ones stay shorter."""


def kept_features(network: Classifier, name: str, images: Tensor, ctx: Context) -> Tensor:
    """(n, d) float16 on the CPU: `network.features` of uint8 images (n, c, h, w), from the store if they are there.

    They are named by the network, the version of its features and the images' bytes, so that runs of other seeds and
    budgets share them; a step that is killed leaves nothing half done. What is read back is mapped, not copied.

    Args:
        network: whose features are fixed: neither weights nor data enter them.
        name: of the network.
    """
    pixels = images.cpu().contiguous()
    key = {
        "network": name,
        "version": VERSION,
        "shape": list(pixels.shape),
        "images": hashlib.sha256(pixels.numpy().tobytes()).hexdigest(),
    }
    return ctx.artifacts.get("fixed-features", key, lambda: {"features": features_of(network, images, ctx)})["features"]


@torch.no_grad()
def features_of(network: Classifier, images: Tensor, ctx: Context) -> Tensor:
    """(n, d) float16 on the CPU, computed in float32 on the context's device; images uint8, or float32 in [0, 1]."""
    network = network.to(ctx.device).eval()
    found = []
    with exact_products(ctx.device), ctx.track("features", len(images)) as advance:
        for part in images.split(PART):
            seen = part.to(ctx.device)
            seen = to_float(seen) if seen.dtype == torch.uint8 else seen
            found.append(network.features(seen).to("cpu", torch.float16))
            advance(len(part))
        return torch.cat(found)


def unit_rows(features: Tensor, device: torch.device) -> Tensor:
    """(n, d) float32 rows of norm 1 on the device, up to 1e-6; a row of zeros stays."""
    rows = torch.empty(features.shape, device=device)
    for place, part in zip(rows.split(PART), features.split(PART), strict=True):
        place.copy_(normalised(part.to(device, torch.float32)))
    return rows


def normalised(rows: Tensor) -> Tensor:
    """(n, d) float32 rows of norm 1, up to 2^-23: a float32 norm of one large and many small numbers loses these."""
    norm = rows.double().norm(dim=1, keepdim=True)
    return (rows / norm.clamp_min(LEAST_NORM)).float()
