"""Sums of clipped gradients over the records of a batch: on one device, or each record on the rank that owns it.

Ranks change only the order of float64 additions. A rank is sent the weights, its own records of the batch, and how each
is moved; it returns the sum of their clipped gradients. The run's own process makes all draws, adds the ranks' sums,
and adds the noise, once, to the total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bench.data import to_float
from bench.dp_training.clipping import add_clipped
from bench.dp_training.coding import Coding, DrawsByRecord, Uncoded
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.dp_training.exact_products import exact_products
from bench.dp_training.per_sample_gradients import GRADIENTS, PerSampleGradients, views
from bench.nets import Classifier
from bench.ranks import Rank, Ranks
from bench.validate import present

Records = tuple[Tensor, Tensor]


class Sums(Protocol):
    """Sums of clipped gradients at the weights that the network has."""

    def __call__(self, private: Records, chosen: Tensor, drawn: Tensor | None, batch: int) -> dict[str, Tensor]:
        """Name of a part to the sum over the chosen records, float64, not noised.

        Args:
            private: (n, c, h, w) images and (n,) labels.
            chosen: (m,) int64, the records of the batch.
            drawn: (5, n * views) of `draw_affine`; None where a record is seen as it is.
            batch: records that are added up in all, by whomever.
        """
        ...


class ClippedSums:
    """On one device.

    Args:
        views: moved copies of each record.
        chunk: records whose gradients are held at once.
    """

    def __init__(self, gradients: PerSampleGradients, coding: Coding, views: int, chunk: int) -> None:
        self.gradients, self.coding, self.views, self.chunk = gradients, coding, views, chunk

    def __call__(self, private: Records, chosen: Tensor, drawn: Tensor | None, batch: int) -> dict[str, Tensor]:
        """As `Sums`."""
        total, (images, labels) = self.coding.zeros(), private
        for part in chosen.split(self.chunk):
            with exact_products(images.device):
                rows = self.gradients(views(as_seen(images[part]), self.views, part, drawn), labels[part])
            if isinstance(self.coding, DrawsByRecord):
                self.coding.of(part)
            add_clipped(total, self.coding.encode(rows), self.coding.groups(), batch)
        return total


class SharedClippedSums:
    """On several ranks, each with the records that it owns (`owned`).

    Args:
        model: the network in training, whose weights the ranks are sent for every sum.
        plain: a copy of it before anything was hooked onto it.
        coding: of the total.
    """

    def __init__(
        self, ranks: Ranks, model: Classifier, plain: Classifier, settings: DpSgdSettings, coding: Coding
    ) -> None:
        self.ranks, self.model, self.settings, self.coding = ranks, model, settings, coding
        ranks.run(prepare_sums, [PrivateNetwork(plain.cpu(), settings)] * ranks.count)

    def __call__(self, private: Records, chosen: Tensor, drawn: Tensor | None, batch: int) -> dict[str, Tensor]:
        """As `Sums`."""
        weights = {name: weight.detach().cpu() for name, weight in self.model.named_parameters()}
        shares = [owned(chosen, rank, self.ranks.count) for rank in range(self.ranks.count)]
        total = self.coding.zeros()
        given = [self._share(private, mine, drawn, weights, batch) for mine in shares]
        for found in self.ranks.run(clipped_sum, given):
            for name, part in found.items():
                total[name] += part.to(total[name].device)
        return total

    def _share(
        self, private: Records, mine: Tensor, drawn: Tensor | None, weights: dict[str, Tensor], batch: int
    ) -> PrivateShare:
        images, labels = (each[mine].cpu() for each in private)
        if drawn is not None:
            views_each = self.settings.views
            places = mine[:, None] * views_each + torch.arange(views_each, device=mine.device)
            drawn = drawn[:, places.flatten()].cpu()
        return PrivateShare(weights, images, labels, drawn, batch)


@dataclass(frozen=True)
class PrivateNetwork:
    """A network, in the mode that it is trained in, and the settings of its private training."""

    model: Classifier
    settings: DpSgdSettings


@dataclass(frozen=True)
class PrivateShare:
    """The records of a batch that one rank owns, how they are moved, and the weights of this step."""

    weights: dict[str, Tensor]
    images: Tensor
    labels: Tensor
    drawn: Tensor | None
    batch: int


_sums: tuple[Classifier, ClippedSums] | None = None
"""In a rank's process: the network of its current private training, with its sums."""


def prepare_sums(rank: Rank, given: PrivateNetwork) -> None:
    """Keep a network in this process until the next training."""
    global _sums
    model, settings = given.model.to(rank.device), given.settings
    gradients = GRADIENTS[settings.gradients](model, settings.views)
    coding = Uncoded(dict(model.named_parameters()), settings.clip, settings.clipping)
    _sums = model, ClippedSums(gradients, coding, settings.views, settings.chunk)


def clipped_sum(rank: Rank, given: PrivateShare) -> dict[str, Tensor]:
    """The sum of clipped gradients of this rank's records, on the CPU. It has no source of noise."""
    model, sums = present(_sums, "network of a private training")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(given.weights[name])
    drawn = None if given.drawn is None else given.drawn.to(rank.device)
    private = given.images.to(rank.device), given.labels.to(rank.device)
    total = sums(private, torch.arange(len(given.labels), device=rank.device), drawn, given.batch)
    return {name: part.cpu() for name, part in total.items()}


def owned(records: Tensor, rank: int, count: int) -> Tensor:
    """The record numbers, of (m,) int64, that one of `count` ranks processes: the same rank in every batch.

    So a record that is left out moves no other record to another device, whose kernels may round differently.

    >>> [owned(torch.tensor([2, 3, 5, 8]), rank, 2).tolist() for rank in range(2)]
    [[2, 8], [3, 5]]
    """
    return records[records % count == rank]


def as_seen(images: Tensor) -> Tensor:
    """Images as the network takes them."""
    return to_float(images) if images.dtype == torch.uint8 else images.float()
