"""Clipped sums of per-sample gradients, and the Gaussian noise added to them.

Used by every DP-SGD variant of the bench.

With Poisson sampling at rate q, the noisy mean is one Poisson-sampled Gaussian mechanism of multiplier z for one added
or removed record, for any number of separately clipped parameter groups.

Rounding. Rows are clipped to C (1 - 2^-7); the rest is the allowance for rounding errors. Let u = 2^-24. A norm is
computed in pieces of at most 2^16 coordinates, with a relative error of 2^15 u = 2^-9. In a batch of n records, m rows
at a time are added in float32 and these sums in float64, with m n <= 2^15: the error is m n u C <= 2^-9 C, once for
each of two neighbours. This leaves 2^-9 C for an effect without a proven bound: removing a record shifts all later
records within their chunks, where the network's float32 kernels may round their gradients differently, and flip units
that are within rounding of 0. That effect is measured (tests/baselines/test_dp_sgd_gradients.py): at most 7e-5 C in 20
batches of 1,024 of a trained network on MNIST.
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
"""Factor on the clipping norm that leaves an allowance for rounding errors."""
MOST_CHUNK = 256
"""Most records whose gradients are in memory at once; float32 sums of this many rows are within `ROOM`."""
COLUMNS = 1 << 16
"""Largest number of coordinates whose squares are added in float32 at once."""
TOGETHER, MOST_PRODUCT = 8, 1 << 15
"""Most rows added in float32, and the largest product of that number and the batch size."""
LEAST_CLIP, LARGEST_CLIP = 1e-10, 1e10
"""Range of clipping norms in which squared float32 gradients neither underflow nor overflow."""

Clipping = Literal["flat", "layer"]
"""Clip the gradient over all parameters jointly ("flat"), or per layer ("layer")."""


@dataclass(frozen=True)
class ClippingGroup:
    """A group of parameters whose joint gradient norm is clipped.

    Attributes:
        names: parameter names.
        bound: C_g, the largest norm of one record's gradient over these parameters.
        share: fraction of the step's privacy loss; the noise's standard deviation is z C_g / sqrt(share). The shares
            sum to 1, so that all groups together are one Gaussian of multiplier z (McMahan et al. 2018).
    """

    names: tuple[str, ...]
    bound: float
    share: float


def clipping_groups(names: Sequence[str], clip: float, clipping: Clipping = "flat") -> list[ClippingGroup]:
    """Return one group of all parameters, or one per layer (weight and bias) with bound C / sqrt(m) and share 1 / m."""
    if clipping == "flat":
        return [ClippingGroup(tuple(names), clip, 1.0)]
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    m = len(layers)
    return [ClippingGroup(tuple(members), clip / math.sqrt(m), 1 / m) for members in layers.values()]


def poisson_sample(records: int, probability: float, source: Source) -> Tensor:
    """Draw a Poisson sample: (m,) int64 ascending indices, each included independently; m is binomial and may be 0."""
    return Noise.of(source).sample(records, probability)


def add_clipped(
    total: dict[str, Tensor], gradients: dict[str, Tensor], groups: list[ClippingGroup], batch: int
) -> None:
    """Clip the records' gradients and add them to `total`; a gradient with NaN or infinity counts as zero.

    Args:
        total: {parameter name: tensor of the parameter's shape}, preferably float64; changed in place.
        gradients: {parameter name: (n, *shape)}, one row per record.
        batch: number of records added to this total over all calls, including these.
    """
    together = max(min(TOGETHER, MOST_PRODUCT // max(batch, 1)), 1)
    for group in groups:
        rows = [gradients[name].flatten(1) for name in group.names]
        norms = torch.stack([piece.norm(dim=1) for row in rows for piece in row.split(COLUMNS, 1)]).norm(dim=0)
        factor = (ROOM * group.bound / norms.clamp_min(1e-30)).clamp(max=1.0)
        broken = ~norms.isfinite()
        factor = factor.masked_fill(broken, 0.0)
        # Copying all rows costs a tenth of a step, but checking for broken rows would synchronise with an accelerator.
        whole = broken.device.type == "cpu" and not bool(broken.any())
        for name, row in zip(group.names, rows, strict=True):
            clean = row if whole else row.masked_fill(broken[:, None], 0.0)
            total[name] += _sum(factor, clean, together).view_as(total[name])


def _sum(factor: Tensor, rows: Tensor, together: int) -> Tensor:
    """Return (d,) float64: the sum of the (n, d) rows times their factors, `together` rows at a time in float32."""
    whole = len(rows) - len(rows) % together
    with exact_products(rows.device):
        few = factor[:whole].view(-1, 1, together) @ rows[:whole].unflatten(0, (-1, together))
        return few.sum((0, 1), dtype=torch.float64) + factor[whole:] @ rows[whole:]


def add_noise(total: dict[str, Tensor], groups: list[ClippingGroup], z: float, source: Source) -> None:
    """Add N(0, z^2 C_g^2 / share_g) to every coordinate of each group's sums, in place; z = 0 adds nothing."""
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
    """Return {parameter name: (clipped sum + noise) / (q n)}.

    Args:
        total: clipped sums made by `add_clipped`; noise is added in place.
        multiplier: z >= 0; 0 = no noise.
        expected: q n, the expected batch size. Dividing by the actual size would reveal whether a record is in the
            data.
        like: {parameter name: tensor of the wanted dtype}.
    """
    add_noise(total, groups, multiplier, source)
    return {name: (value / expected).to(like[name].dtype) for name, value in total.items()}
