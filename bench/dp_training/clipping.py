"""Clipped sums of single records' gradients, and the Gaussian noise on them: what every DP-SGD of the bench shares.

For one added or removed record, a Poisson sample of rate q and noise of `multiplier` z make the noisy mean one
Poisson-sampled Gaussian of multiplier z, however many groups of parameters were clipped on their own.

Rounding. Rows are clipped to C (1 - 2^-7), which leaves room for it. Let u = 2^-24. A norm is taken of pieces of at
most 2^16 coordinates: off by 2^15 u = 2^-9 of itself. Of a batch of n records, m are added in float32 and those sums in
float64, m n <= 2^15: off by m n u C <= 2^-9 C, and neighbours have a sum each. So 2^-9 C is left for what no proof
bounds: a record that leaves the batch moves all later ones to other places in their chunks, where a network's float32
kernels may round their gradients otherwise, and switch units that are within rounding of 0. That they move by less is
measured (tests/baselines/test_dp_sgd_gradients.py): by 7e-5 C at most in 20 batches of 1,024 of a trained network on
MNIST.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.dp_training.exact_products import exact_products
from bench.privacy.noise import Noise, Source

ROOM = 1 - 2.0**-7
"""Of the clipping norm, for rounding errors."""
MOST_CHUNK = 256
"""Records whose gradients are held at once; rows in a float32 sum for which `ROOM` is enough."""
COLUMNS = 1 << 16
"""Coordinates whose squares are added in float32."""
TOGETHER, MOST_PRODUCT = 8, 1 << 15
"""Rows that are added in float32 at most, and at most how many of them times the batch."""
LEAST_CLIP, LARGEST_CLIP = 1e-10, 1e10
"""Clipping norms within which float32's gradients neither underflow nor overflow when they are squared."""

Clipping = Literal["flat", "layer"]
"""Over all parameters jointly, or layer by layer."""


@dataclass(frozen=True)
class ClippingGroup:
    """Parameters that are clipped together.

    Attributes:
        names: of the parameters.
        bound: C_g, the largest norm of one record's gradient over these parameters.
        share: of the step's privacy loss; the noise's deviation is z C_g / sqrt(share). All shares sum to 1, so that
            all groups together are one Gaussian of multiplier z (McMahan et al. 2018).
    """

    names: tuple[str, ...]
    bound: float
    share: float


def clipping_groups(names: Sequence[str], clip: float, clipping: Clipping = "flat") -> list[ClippingGroup]:
    """One group of all parameters, or one per layer (a weight and its bias) with C / sqrt(m) and a share of 1 / m."""
    if clipping == "flat":
        return [ClippingGroup(tuple(names), clip, 1.0)]
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    m = len(layers)
    return [ClippingGroup(tuple(members), clip / math.sqrt(m), 1 / m) for members in layers.values()]


def poisson_sample(records: int, probability: float, source: Source) -> Tensor:
    """(m,) int64 ascending: each record's number with `probability`, independently; m is binomial and may be 0."""
    return Noise.of(source).sample(records, probability)


def add_clipped(
    total: dict[str, Tensor], gradients: dict[str, Tensor], groups: list[ClippingGroup], batch: int
) -> None:
    """Add the records' clipped gradients to `total`; a record whose gradient holds NaN or infinity counts as zero.

    Args:
        total: parameter name to a tensor of the parameter's shape, float64 best; changed in place.
        gradients: parameter name to (n, *shape), one row per record.
        batch: records that are added to this total in all, these among them.
    """
    together = max(min(TOGETHER, MOST_PRODUCT // max(batch, 1)), 1)
    for group in groups:
        rows = [gradients[name].flatten(1) for name in group.names]
        norms = torch.stack([piece.norm(dim=1) for row in rows for piece in row.split(COLUMNS, 1)]).norm(dim=0)
        factor = (ROOM * group.bound / norms.clamp_min(1e-30)).clamp(max=1.0)
        broken = ~norms.isfinite()
        factor = factor.masked_fill(broken, 0.0)
        # Copying all rows is a tenth of a step; but to ask an accelerator whether any is broken is to wait for it.
        whole = broken.device.type == "cpu" and not bool(broken.any())
        for name, row in zip(group.names, rows, strict=True):
            clean = row if whole else row.masked_fill(broken[:, None], 0.0)
            total[name] += _sum(factor, clean, together).view_as(total[name])


def _sum(factor: Tensor, rows: Tensor, together: int) -> Tensor:
    """(d,) float64: the sum of the (n, d) rows times their factors, so many added in float32 at a time."""
    whole = len(rows) - len(rows) % together
    with exact_products(rows.device):
        few = factor[:whole].view(-1, 1, together) @ rows[:whole].unflatten(0, (-1, together))
        return few.sum((0, 1), dtype=torch.float64) + factor[whole:] @ rows[whole:]


def add_noise(total: dict[str, Tensor], groups: list[ClippingGroup], z: float, source: Source) -> None:
    """Replace every group's sums by those with N(0, z^2 C_g^2 / share_g) on every coordinate; z = 0 adds nothing."""
    noise = Noise.of(source)
    for group in groups:
        flat = torch.cat([total[name].flatten() for name in group.names]).double()
        noisy = noise.gaussian(flat, z * group.bound / math.sqrt(group.share))
        for name, part in zip(group.names, noisy.split([total[name].numel() for name in group.names]), strict=True):
            total[name] = part.view_as(total[name]).to(total[name].dtype)


def noisy_mean(
    total: dict[str, Tensor],
    groups: list[ClippingGroup],
    multiplier: float,
    expected: float,
    source: Source,
    like: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Parameter name to (clipped sum + noise) / (q n).

    Args:
        total: clipped sums, as `add_clipped` makes them; noise is added in place.
        multiplier: z >= 0; 0 = no noise.
        expected: q n, the expected size of the batch. The size drawn would tell whether a record is there.
        like: parameter name to a tensor of the dtype wanted.
    """
    add_noise(total, groups, multiplier, source)
    return {name: (value / expected).to(like[name].dtype) for name, value in total.items()}
