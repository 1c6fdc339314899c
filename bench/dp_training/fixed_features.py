"""Data-independent features of private records: computed once, cached, and normalised to rows of norm 1.

A record's row depends only on that record and on public constants, up to rounding: networks process images in parts,
and an image's position in its part changes its row by a relative 1e-7, or by one unit in the last place of float16
where this flips the rounding. In the bench's account a removed record keeps its position (the number of records is
public).
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from bench.api import Context
from bench.data import to_float
from bench.dp_training.exact_products import exact_products
from bench.nets import Classifier
from bench.nets.classifiers.wavelet_nets import VERSION

PART = 256
"""Number of images that the network processes at once."""
LEAST_NORM = 1e-12
"""Rows shorter than this are not scaled up to norm 1."""
HALF_ROOM = 1 - 2.0**-10
"""Factor on rows of norm 1 before they are rounded to float16, so that their norm stays at most 1."""


def kept_features(network: Classifier, name: str, images: Tensor, ctx: Context) -> Tensor:
    """Return (n, d) float16 on the CPU: `network.features` of uint8 images (n, c, h, w), from the cache if present.

    The cache key is the network, the version of its features, its public weights or filters if it has any, and the
    images' bytes, so that runs with other seeds and budgets share them. An interrupted step leaves no partial file.
    Cached features are memory-mapped, not copied.

    Args:
        network: must have fixed features, which do not depend on private data.
        name: of the network.
    """
    pixels = images.cpu().contiguous()
    key = {
        "network": name,
        "version": VERSION,
        "shape": list(pixels.shape),
        "images": sha256(pixels),
    }
    if weights := digest_of(network):
        key["weights"] = weights
    return ctx.artifacts.get("fixed-features", key, lambda: {"features": features_of(network, images, ctx)})["features"]


def sha256(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's values, as hex digits."""
    return hashlib.sha256(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data).hexdigest()


def digest_of(network: Classifier) -> str:
    """Return the SHA-256 of what the features depend on: tensors below the last layer; "" if there are none."""
    state = network.state_dict()
    if not any(name.startswith("body.") and not name.startswith("body.head.") for name in state):
        return ""
    total = hashlib.sha256()
    for name, value in sorted(state.items()):
        if not name.startswith("body.head."):
            total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            total.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


@torch.no_grad()
def features_of(network: Classifier, images: Tensor, ctx: Context) -> Tensor:
    """Return (n, d) float16 on the CPU, computed in float32 on the context's device.

    Images uint8, or float32 in [0, 1].
    """
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
    """Return (n, d) float32 rows scaled to norm 1 (to 1e-6) on the device; a row of zeros stays zero."""
    rows = torch.empty(features.shape, device=device)
    for place, part in zip(rows.split(PART), features.split(PART), strict=True):
        place.copy_(normalised(part.to(device, torch.float32)))
    return rows


def half_rows(features: Tensor, device: torch.device) -> Tensor:
    """Return (n, d) float16 rows of norm 1 to 2^-9, and at most 1, on the device: for long rows, in half the memory.

    Rounding depends on the record only.
    """
    rows = torch.empty(features.shape, dtype=torch.float16, device=device)
    for place, part in zip(rows.split(PART), features.split(PART), strict=True):
        place.copy_(normalised(part.to(device, torch.float32)) * HALF_ROOM)
    return rows


def normalised(rows: Tensor) -> Tensor:
    """Return (n, d) float32 rows of norm 1, to 2^-23.

    The norm is computed in float64: in float32 many small numbers would be lost next to a large one.
    """
    norm = rows.double().norm(dim=1, keepdim=True)
    return (rows / norm.clamp_min(LEAST_NORM)).float()
