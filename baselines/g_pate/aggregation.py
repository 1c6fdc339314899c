"""Gradients of many teachers to one, by votes on the coordinates of a random projection (G-PATE, Algorithm 2).

All but the votes is public: the projection, the bins and how the answer is read. One teacher casts one vote about
every coordinate, so that a record moves two counts of each histogram by 1, whatever the gradient was.
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

ORDERS: Values = np.array([1.1, *range(2, 200)])
"""The Renyi orders of the released code."""


def projections(count: int, pixels: int, k: int, rng: torch.Generator) -> Tensor:
    """(count, pixels, k): for every image a P of its own, of N(0, 1 / k)."""
    return torch.randn(count, pixels, k, generator=rng, device=rng.device) / math.sqrt(k)


def binned(values: Tensor, clip: float, bins: int) -> Tensor:
    """Numbers of the equal bins of [-clip, clip] that hold the clipped values, int64; what is no number counts as 0."""
    inside = torch.nan_to_num(values, nan=0.0).clamp(-clip, clip)
    return ((inside + clip) * (bins / (2 * clip))).long().clamp(0, bins - 1)


def midpoints(clip: float, bins: int) -> Tensor:
    """(bins,) float64."""
    return clip * ((2 * torch.arange(bins, dtype=torch.float64) + 1) / bins - 1)


def votes(directions: Iterable[Tensor], projection: Tensor, clip: float, bins: int) -> Tensor:
    """(n k, bins) float64 histograms of the teachers' projected directions, coordinate by coordinate of all images.

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
    """(m,) from (m, bins) noisy counts: the fullest bin's midpoint, or the mean over the teachers' votes."""
    middle = midpoints(clip, counts.shape[1]).to(counts.device)
    return middle[counts.argmax(1)] if how == "argmax" else counts @ middle / teachers


@dataclass
class Aggregator:
    """Private answers to gradients, and what they took.

    Attributes:
        plan: what one generator step may ask and be answered, all images and coordinates together.
        diagnostic: whether to add up the data-dependent divergences, which are private information.
        asked, answered: coordinates put to the vote, and those that passed the threshold, so far.
    """

    plan: VotePlan
    clip: float
    bins: int
    how: Reading
    noise: Source
    diagnostic: bool = False
    asked: int = 0
    answered: int = 0
    renyi: Values = field(default_factory=lambda: 0.0 * ORDERS)

    def __call__(self, directions: Iterable[Tensor], projection: Tensor) -> Tensor:
        """(n, pixels) the private direction of each image: answers times P^T; a coordinate without an answer is 0."""
        n, _, k = projection.shape
        rows, counts = self.noisy_votes(directions, projection)
        answers = torch.zeros(k * n, dtype=torch.float64, device=projection.device)
        answers[rows] = read(counts, self.clip, self.how, self.plan.teachers)
        return torch.einsum("kn,ndk->nd", answers.view(k, n).to(projection.dtype), projection)

    def noisy_votes(self, directions: Iterable[Tensor], projection: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of the coordinates that are answered, and their (m, bins) noisy counts: all that is released."""
        histograms = votes(directions, projection, self.clip, self.bins)
        rows, counts = release_counts(self.plan, histograms, self.noise)
        self.asked, self.answered = self.asked + len(histograms), self.answered + len(rows)
        if self.diagnostic:
            self._diagnose(histograms.cpu().numpy(), histograms[rows].cpu().numpy())
        return rows, counts

    def data_dependent_epsilon(self, delta: float) -> float:
        """Of the arg-maxes so far, by the votes themselves: private information."""
        return epsilon_of(self.renyi, ORDERS, delta)

    def _diagnose(self, histograms: Values, answered: Values) -> None:
        at = self.plan.aggregation
        found = gaussian_renyi_of_events(log_wrong_gaussian(answered, at.scale), at.scale, ORDERS).sum(0)
        if at.threshold > 0:
            rarer = log_rarer_side(histograms, at.threshold, at.threshold_scale)
            found = found + gaussian_renyi_of_events(rarer, math.sqrt(2) * at.threshold_scale, ORDERS).sum(0)
        self.renyi = self.renyi + found
