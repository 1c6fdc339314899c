"""Full-batch gradient descent with Gaussian noise (DP-GD) on a linear layer; composed exactly, without sampling.

For a row u of norm at most 1, the gradient of the cross-entropy is (p - y) u^T, with p the probabilities and y the
one-hot label. Its norm is |p - y| |u|, so that clipping to C needs no per-sample gradient. Every step:

    V <- momentum V + (sum_i min(1, C / |p_i - y_i|) (p_i - y_i) u_i^T + N(0, z^2 C^2)) / n
    W <- W - rate V

For unit group the clipped gradients of a group's records are clipped again as a sum (`group_clipping.py`), and n is the
number of groups.

Privacy. Each of the T steps is a Gaussian mechanism of multiplier z for one added or removed record or group, and z / 2
for a replaced one, without sampling. Together they are one Gaussian of multiplier z / sqrt(T). n is public.

Precision. Gradients of at most 256 records are added in float32 and these sums in float64. Gradients are clipped to
C (1 - 2^-7), which leaves an allowance for the errors of two such sums (`clipping`). If a record is missing, the others
keep their positions, so that all other sums are bitwise equal. Sums in 16 bits would have no bound: one record may flip
their rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bench import validate
from bench.api import Context
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP, MOST_CHUNK, ROOM
from bench.dp_training.exact_products import exact_products
from bench.dp_training.games import GROUP
from bench.dp_training.group_clipping import GroupProducts
from bench.privacy.noise import Noise, Source

BLOCK = 32
"""Number of rows in a block on a CPU: 2.4 MB of 18,000 features in float32."""
PLAYED = 64
"""Number of records, and so of independent plays, in one sum of an audit's game."""


@dataclass(frozen=True)
class HeadSettings:
    """Public, data-independent training settings of the head.

    Attributes:
        steps: T, number of steps over all records.
        clip: C, the clipping norm of one record's gradient.
        rate: learning rate, on gradients averaged over the records.
        momentum: in [0, 1).
        average: fraction of the last steps whose weights are averaged; 0 = the last weights.
    """

    steps: int
    clip: float
    rate: float
    momentum: float
    average: float = 0.0

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "steps")
        validate.positive(self, "rate")
        validate.at_least(self, 0, "momentum")
        validate.below(self, 1, "momentum")
        validate.between(self, 0, 1, "average")
        validate.between(self, LEAST_CLIP, LARGEST_CLIP, "clip")


def clipped_sum(
    rows: Tensor, labels: Tensor, weight: Tensor, clip: float, groups: GroupProducts | None = None
) -> Tensor:
    """Return (classes, d) float64: the sum of the clipped gradients of the records, or of the groups.

    Args:
        rows: (n, d) float32, or float16 that is converted a few rows at a time, of norm at most 1 + 1e-6.
        labels: (n,) int64; a label outside [0, classes) marks an absent record, which adds nothing.
        weight: (classes, d) float32, W.
        clip: C > 0.
        groups: products between the rows, for unit group; None for unit example.

    Guarantees:
        If one record is removed (row zero, or label -1), the sum changes by a norm of at most C. With `groups`, so it
        does if all records of one group are removed.
    """
    total = torch.zeros(weight.shape, dtype=torch.float64, device=weight.device)
    partial, added = torch.zeros(_lanes(rows.device), *weight.shape, device=weight.device), 0
    places = torch.arange(len(weight), device=labels.device)
    with exact_products(weight.device):
        for number, (part, own) in enumerate(_blocks(rows, labels, groups)):
            lanes, records, _ = part.shape
            logits = torch.bmm(weight.expand(lanes, -1, -1), part.mT).mT
            hits = own[..., None] == places
            off = logits.softmax(2) - hits.float()
            norm = off.norm(dim=2, keepdim=True)
            factor = (ROOM * clip / norm.clamp_min(1e-30)).clamp(max=1.0)
            counted = hits.any(2, keepdim=True) & norm.isfinite()  # one record's overflow must not cancel all others
            terms = (off * factor).masked_fill(~counted, 0.0)
            if groups is not None:
                terms = groups.clipped(number, terms[0], ROOM * clip)[None]
            if added + records > MOST_CHUNK:
                total += partial.sum(0, dtype=torch.float64)
                partial.zero_()
                added = 0
            partial[:lanes].baddbmm_(terms.mT, part)
            added += records
    return total + partial.sum(0, dtype=torch.float64)


def _blocks(rows: Tensor, labels: Tensor, groups: GroupProducts | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows as (lanes, m, d) float32 and their labels as (lanes, m), or whole groups in one lane.

    On a CPU a block of 32 rows stays in the cache between its two products, and each thread multiplies a lane of its
    own: a third of the time of blocks of 256 rows. A yielded block is overwritten by the next one.
    """
    lanes, size = _lanes(rows.device), BLOCK if rows.device.type == "cpu" else MOST_CHUNK
    whole, rest = divmod(len(rows), lanes * size)
    sizes = [lanes * size] * whole + [size] * (rest // size) + [rest % size] * (rest % size > 0)
    if groups is not None:
        whole, sizes = 0, groups.chunks
    buffer = torch.empty(max(sizes, default=0), rows.shape[1], device=rows.device)
    for number, (part, own) in enumerate(zip(rows.split(sizes), labels.split(sizes), strict=True)):
        block = part if part.dtype == torch.float32 else buffer[: len(part)].copy_(part)
        used = lanes if number < whole else 1
        yield block.reshape(used, -1, rows.shape[1]), own.reshape(used, -1)


def _lanes(device: torch.device) -> int:
    """Return the number of blocks that are multiplied at the same time: one for each thread of a CPU."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def noisy_gradient(
    rows: Tensor,
    labels: Tensor,
    weight: Tensor,
    clip: float,
    std: float,
    source: Source,
    groups: GroupProducts | None = None,
) -> Tensor:
    """Return (classes, d) float64: the noisy sum of clipped gradients; both training and audits call this.

    Args:
        std: standard deviation of the noise, z C; 0 = none.
    """
    return Noise.of(source).gaussian(clipped_sum(rows, labels, weight, clip, groups), std)


def played_gradients(
    classes: int, clip: float, std: float, world: bool, n: int, generator: torch.Generator, grouped: bool = False
) -> Tensor:
    """Return (n, classes): n plays of a first step's `noisy_gradient`, with a record or without it (label -1).

    Records have disjoint features, so that one sum contains PLAYED independent plays.

    Args:
        grouped: whether a group of equal records is present or absent instead of one record.
    """
    rows, groups = torch.eye(PLAYED), None
    labels = torch.arange(PLAYED) % classes if world else torch.full((PLAYED,), -1)
    if grouped:
        rows, labels = (each.repeat_interleave(GROUP, 0) for each in (rows, labels))
        groups = GroupProducts.of(rows, torch.full((PLAYED,), GROUP))
    weight, found = torch.zeros(classes, PLAYED), []
    for _ in range(-(-n // PLAYED)):
        sums = noisy_gradient(rows, labels, weight, clip, std, generator, groups).T
        # Each record's true class comes first, as if all were of class 0
        found.append(torch.stack([row.roll(-(i % classes)) for i, row in enumerate(sums)]))
    return torch.cat(found)[:n]


@torch.no_grad()
def noisy_descent(
    rows: Tensor,
    labels: Tensor,
    classes: int,
    settings: HeadSettings,
    std: float,
    source: Source,
    ctx: Context,
    stage: str,
    groups: GroupProducts | None = None,
) -> Tensor:
    """Train by noisy gradient descent from zero for T steps; return W, (classes, d) float32.

    Args:
        rows, labels, groups: as in `clipped_sum`, on one device.
        std: standard deviation of the noise on the gradient sum, z C; 0 = none.

    Raises:
        RuntimeError: the weights became NaN or infinite.
    """
    noise = Noise.of(source)
    weight = torch.zeros(classes, rows.shape[1], device=rows.device)
    velocity, mean = torch.zeros_like(weight), torch.zeros_like(weight)
    units = len(rows) if groups is None else groups.count
    averaged = max(round(settings.average * settings.steps), 1)
    with ctx.track(stage, settings.steps) as advance:
        for step in range(settings.steps):
            released = noisy_gradient(rows, labels, weight, settings.clip, std, noise, groups)
            velocity = settings.momentum * velocity + (released / units).float()
            weight = weight - settings.rate * velocity
            if step >= settings.steps - averaged:
                mean += weight / averaged
            advance(1)
    if not mean.isfinite().all():
        raise RuntimeError(f"{stage}: the weights became NaN or infinite; lower the learning rate")
    return mean
