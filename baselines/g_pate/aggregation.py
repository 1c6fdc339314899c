"""Private aggregation of many teachers' gradients by votes on random projections (G-PATE, Algorithm 2).

Only the votes are private; the projection, the bins and the estimate from the noisy counts are public. One teacher
casts one vote on every coordinate, so that a record moves two counts of each histogram by 1, for any gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bench.distillation.votes.noisy_votes import VotePlan, release_counts
from bench.distillation.votes.vote_bounds import (
    Values,
    epsilon_of,
    gaussian_renyi_of_events,
    log_rarer_side,
    log_wrong_gaussian,
)
from bench.privacy.noise import Source

Reading = Literal["argmax", "mean"]
"""Estimate from noisy counts: the midpoint of the fullest bin, or the mean of all votes."""

ORDERS: Values = np.array([1.1, *range(2, 200)])
"""The Renyi orders of the released code."""


def projections(count: int, pixels: int, k: int, rng: torch.Generator) -> Tensor:
    """Draw an independent projection P for every image: (count, pixels, k), entries N(0, 1 / k)."""
    return torch.randn(count, pixels, k, generator=rng, device=rng.device) / math.sqrt(k)


def binned(values: Tensor, clip: float, bins: int) -> Tensor:
    """Clip values to [-clip, clip] and return the indices of their bins, int64; NaN counts as 0."""
    inside = torch.nan_to_num(values, nan=0.0).clamp(-clip, clip)
    return ((inside + clip) * (bins / (2 * clip))).long().clamp(0, bins - 1)


def midpoints(clip: float, bins: int) -> Tensor:
    """Return the (bins,) float64 midpoints of equal bins of [-clip, clip]."""
    return clip * ((2 * torch.arange(bins, dtype=torch.float64) + 1) / bins - 1)


def votes(directions: Iterable[Tensor], projection: Tensor, clip: float, bins: int) -> Tensor:
    """Count (n k, bins) float64 histograms of the teachers' projected directions, one for each coordinate and image.

    Args:
        directions: blocks of (N', n, ...) gradients, one row per teacher.
        projection: (n, pixels, k).
    """
    n, _, k = projection.shape
    counts = torch.zeros(k * n * bins, dtype=torch.float64, device=projection.device)
    first = bins * torch.arange(k * n, device=projection.device)
    for block in directions:
        v = torch.einsum("tnd,ndk->tkn", block.flatten(2), projection).flatten(1)
        cast = (binned(v, clip, bins) + first).flatten()
        counts.scatter_add_(0, cast, counts.new_ones(1).expand(len(cast)))
    return counts.view(k * n, bins)


def read(counts: Tensor, clip: float, how: Reading, teachers: int) -> Tensor:
    """Estimate (m,) values from (m, bins) noisy counts: the fullest bin's midpoint, or the mean of the votes."""
    middle = midpoints(clip, counts.shape[1]).to(counts.device)
    return middle[counts.argmax(1)] if how == "argmax" else counts @ middle / teachers


@dataclass
class Aggregator:
    """Private aggregation of gradients, with counts of its queries.

    Attributes:
        plan: votes of one generator step, all images and coordinates together.
        clip, bins: range and number of the bins.
        how: estimate from the noisy counts, as in `read`.
        noise: source of the noise on the votes.
        diagnostic: whether to add up the data-dependent divergences, which are private information.
        queries, answered: number of coordinates put to the vote, and of those that passed the threshold, so far.
        renyi: data-dependent Renyi divergences of `ORDERS` so far.
    """

    plan: VotePlan
    clip: float
    bins: int
    how: Reading
    noise: Source
    diagnostic: bool = False
    queries: int = 0
    answered: int = 0
    renyi: Values = field(default_factory=lambda: 0.0 * ORDERS)

    def __call__(self, directions: Iterable[Tensor], projection: Tensor) -> Tensor:
        """Return (n, pixels) private directions of the images: answers times P^T; coordinates without answer are 0."""
        n, _, k = projection.shape
        rows, counts = self.noisy_votes(directions, projection)
        answers = torch.zeros(k * n, dtype=torch.float64, device=projection.device)
        answers[rows] = read(counts, self.clip, self.how, self.plan.teachers)
        return torch.einsum("kn,ndk->nd", answers.view(k, n).to(projection.dtype), projection)

    def noisy_votes(self, directions: Iterable[Tensor], projection: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of the answered coordinates and their (m, bins) noisy counts: all that is released."""
        histograms = votes(directions, projection, self.clip, self.bins)
        rows, counts = release_counts(self.plan, histograms, self.noise)
        self.queries, self.answered = self.queries + len(histograms), self.answered + len(rows)
        if self.diagnostic:
            self._add_divergences(histograms.cpu().numpy(), histograms[rows].cpu().numpy())
        return rows, counts

    def data_dependent_epsilon(self, delta: float) -> float:
        """Compute the data-dependent epsilon of the arg-maxes so far, which is private information."""
        return epsilon_of(self.renyi, ORDERS, delta)

    def _add_divergences(self, histograms: Values, answered: Values) -> None:
        """Add the data-dependent divergences of a step, for `diagnostic`."""
        at = self.plan.aggregation
        found = gaussian_renyi_of_events(log_wrong_gaussian(answered, at.scale), at.scale, ORDERS).sum(0)
        if at.threshold > 0:
            rarer = log_rarer_side(histograms, at.threshold, at.threshold_scale)
            found = found + gaussian_renyi_of_events(rarer, math.sqrt(2) * at.threshold_scale, ORDERS).sum(0)
        self.renyi = self.renyi + found
