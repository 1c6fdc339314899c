"""Sums of clipped per-sample gradients over a batch: on one device, or distributed over ranks that own the records.

Distribution over ranks changes only the order of float64 additions. A rank receives the weights, its own records of the
batch, and their augmentation parameters; it returns the sum of their clipped gradients. The main process makes all
random draws, adds the ranks' sums, and adds the noise once, to the total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bench.data import to_float
from bench.dp_training.augmentation import AUGMENTATIONS, Augmentation, columns_of, views
from bench.dp_training.clipping import add_clipped
from bench.dp_training.coding import Coding, DrawsByRecord, Uncoded
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.dp_training.exact_products import exact_products
from bench.dp_training.per_sample_gradients import GRADIENTS, PerSampleGradients
from bench.dp_training.record_groups import RecordGroups, group_means
from bench.nets import Classifier
from bench.ranks import Rank, Ranks
from bench.validate import present

Records = tuple[Tensor, Tensor]
"""(n, c, h, w) images and (n,) labels."""


class Sums(Protocol):
    """Callable that returns sums of clipped gradients at the network's current weights."""

    def __call__(self, private: Records, chosen: Tensor, drawn: Tensor | None, batch: int) -> dict[str, Tensor]:
        """Return {part name: sum over the chosen records}, float64, without noise.

        Args:
            private: (n, c, h, w) images and (n,) labels.
            chosen: (m,) int64, indices of the batch's records, or of its groups.
            drawn: (numbers, n * views) random numbers of the augmentation; None without views.
            batch: number of records, or groups, summed in total, over all ranks.
        """
        ...


class ClippedSums:
    """Sums of clipped gradients, computed on one device.

    Args:
        gradients: computes per-sample gradients of the network.
        coding: transform of the gradients before clipping.
        views: number of augmented copies of each record.
        chunk: number of records whose gradients are in memory at once.
        augmentation: makes the copies.
    """

    def __init__(
        self,
        gradients: PerSampleGradients,
        coding: Coding,
        views: int,
        chunk: int,
        augmentation: Augmentation = AUGMENTATIONS["affine"],
    ) -> None:
        self.gradients, self.coding, self.views, self.chunk = gradients, coding, views, chunk
        self.augmentation = augmentation

    def __call__(self, private: Records, chosen: Tensor, drawn: Tensor | None, batch: int) -> dict[str, Tensor]:
        """Implement `Sums`."""
        total, (images, labels) = self.coding.zeros(), private
        for part in chosen.split(self.chunk):
            with exact_products(images.device):
                seen = views(as_seen(images[part]), self.views, part, drawn, self.augmentation)
                rows = self.gradients(seen, labels[part])
            if isinstance(self.coding, DrawsByRecord):
                self.coding.of(part)
            add_clipped(total, self.coding.encode(rows), self.coding.groups(), batch)
        return total


class GroupedClippedSums(ClippedSums):
    """Sums of the groups' clipped gradients: the mean over a group's records, clipped as a whole.

    Args:
        gradients, coding, views, chunk, augmentation: as in `ClippedSums`.
        groups: the groups, of which `chosen` has indices.
    """

    def __init__(
        self,
        gradients: PerSampleGradients,
        coding: Coding,
        views: int,
        chunk: int,
        augmentation: Augmentation,
        groups: RecordGroups,
    ) -> None:
        super().__init__(gradients, coding, views, chunk, augmentation)
        self.groups = groups

    def __call__(self, private: Records, chosen: Tensor, drawn: Tensor | None, batch: int) -> dict[str, Tensor]:
        """Implement `Sums`."""
        total, (images, labels) = self.coding.zeros(), private
        for part in chosen.split(max(self.chunk // self.groups.largest, 1)):
            records = self.groups.records_of(part)
            with exact_products(images.device):
                seen = views(as_seen(images[records]), self.views, records, drawn, self.augmentation)
                rows = self.gradients(seen, labels[records])
                means = group_means(rows, self.groups.sizes[part])
            add_clipped(total, self.coding.encode(means), self.coding.groups(), batch)
        return total


class SharedClippedSums:
    """Sums of clipped gradients, computed by several ranks, each for the records that it owns (`owned`).

    Args:
        ranks: the worker processes.
        model: the network in training; its weights are sent to the ranks for every sum.
        plain: a copy of `model` made before any hooks were attached.
        coding: the identity (`Uncoded`); only its part names and shapes are used here.
    """

    def __init__(
        self, ranks: Ranks, model: Classifier, plain: Classifier, settings: DpSgdSettings, coding: Coding
    ) -> None:
        self.ranks, self.model, self.settings, self.coding = ranks, model, settings, coding
        ranks.run(prepare_sums, [PrivateNetwork(plain.cpu(), settings)] * ranks.count)

    def __call__(self, private: Records, chosen: Tensor, drawn: Tensor | None, batch: int) -> dict[str, Tensor]:
        """Implement `Sums`."""
        weights = {name: weight.detach().cpu() for name, weight in self.model.named_parameters()}
        total, given = self.coding.zeros(), []
        for rank in range(self.ranks.count):
            mine = owned(chosen, rank, self.ranks.count)
            images, labels = (each[mine].cpu() for each in private)
            own = None if drawn is None else drawn[:, columns_of(mine, self.settings.views)].cpu()
            given.append(PrivateShare(weights, images, labels, own, batch))
        for found in self.ranks.run(clipped_sum, given):
            for name, part in found.items():
                total[name] += part.to(total[name].device)
        return total


@dataclass(frozen=True)
class PrivateNetwork:
    """A network in its training mode, and the settings of its private training; sent to a rank."""

    model: Classifier
    settings: DpSgdSettings


@dataclass(frozen=True)
class PrivateShare:
    """A rank's part of one step: its own records of the batch, their augmentation, and the current weights."""

    weights: dict[str, Tensor]
    images: Tensor
    labels: Tensor
    drawn: Tensor | None
    batch: int


_sums: tuple[Classifier, ClippedSums] | None = None
"""State of a worker process: the network of the current private training, and its `ClippedSums`."""


def prepare_sums(rank: Rank, given: PrivateNetwork) -> None:
    """Store the network and its sums in this rank's process until the next training."""
    global _sums
    model, settings = given.model.to(rank.device), given.settings
    gradients = GRADIENTS[settings.gradients](model, settings.views)
    coding = Uncoded(dict(model.named_parameters()), settings.clip, settings.clipping)
    augmentation = AUGMENTATIONS[settings.augmentation]
    _sums = model, ClippedSums(gradients, coding, settings.views, settings.chunk, augmentation)


def clipped_sum(rank: Rank, given: PrivateShare) -> dict[str, Tensor]:
    """Return the sum of clipped gradients of this rank's records, on the CPU. No noise is added here."""
    model, sums = present(_sums, "network of a private training")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(given.weights[name])
    drawn = None if given.drawn is None else given.drawn.to(rank.device)
    private = given.images.to(rank.device), given.labels.to(rank.device)
    total = sums(private, torch.arange(len(given.labels), device=rank.device), drawn, given.batch)
    return {name: part.cpu() for name, part in total.items()}


def owned(records: Tensor, rank: int, count: int) -> Tensor:
    """Return those of the (m,) int64 record numbers that rank `rank` of `count` processes.

    A record has the same rank in every batch. Removing one record therefore moves no other record to another device,
    whose kernels may round differently.

    >>> [owned(torch.tensor([2, 3, 5, 8]), rank, 2).tolist() for rank in range(2)]
    [[2, 8], [3, 5]]
    """
    return records[records % count == rank]


def as_seen(images: Tensor) -> Tensor:
    """Convert images to the network's input format."""
    return to_float(images) if images.dtype == torch.uint8 else images.float()
