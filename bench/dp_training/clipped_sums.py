"""Sums of clipped gradients over the records of a batch: on one device, or each record on the rank that owns it.

Ranks change nothing that one process computes but the order of float64 additions. A helper is given the weights, its
own records of the batch, and how each is moved about; it gives back the sum of their clipped gradients. The leader
draws all that is drawn; it adds the helpers' sums to its own, and the noise, once, to the total.
"""

from __future__ import annotations

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
from bench.ranks import Link, Ranks, flat, owned, unflat

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

    def close(self) -> None:
        """No more sums are wanted."""
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

    def close(self) -> None:
        """Nothing was begun."""


class SharedClippedSums:
    """Over ranks, by the numbers of the records (`bench.ranks.owned`).

    Args:
        own: the leader's, of `model`.
        plain: the network as it was before anything was hooked onto it.
    """

    def __init__(
        self, ranks: Ranks, own: ClippedSums, model: Classifier, plain: Classifier, settings: DpSgdSettings
    ) -> None:
        self.ranks, self.own, self.weights = ranks, own, list(model.parameters())
        ranks.serve(serve_sums, plain, settings)

    def __call__(self, private: Records, chosen: Tensor, drawn: Tensor | None, batch: int) -> dict[str, Tensor]:
        """As `Sums`; the helpers compute while the leader does."""
        self.ranks.order(f"{batch}")
        self.ranks.broadcast(flat(self.weights))
        for rank in range(1, self.ranks.count):
            self.ranks.give(rank, self._share(private, owned(chosen, rank, self.ranks.count), drawn))
        total = self.own(private, owned(chosen, 0, self.ranks.count), drawn, batch)
        numbers = flat(list(total.values()))
        self.ranks.gather_sum(numbers)
        return dict(zip(total, unflat(numbers, list(total.values())), strict=True))

    def _share(self, private: Records, mine: Tensor, drawn: Tensor | None) -> list[Tensor]:
        images, labels = (each[mine] for each in private)
        if drawn is None:
            return [images, labels]
        count = self.own.views
        places = mine[:, None] * count + torch.arange(count, device=mine.device)
        return [images, labels, drawn[:, places.flatten()]]

    def close(self) -> None:
        """The helpers are free for the next training."""
        self.ranks.dismiss()


def serve_sums(link: Link, model: Classifier, settings: DpSgdSettings) -> None:
    """A helper's side; the model is in the mode that it is to be trained in."""
    model.to(link.device)
    weights = dict(model.named_parameters())
    gradients = GRADIENTS[settings.gradients](model, settings.views)
    coding = Uncoded(weights, settings.clip, settings.clipping)
    sums = ClippedSums(gradients, coding, settings.views, settings.chunk)
    numbers = flat(list(weights.values()))
    for batch in link.orders():
        link.copy(numbers)
        with torch.no_grad():
            for weight, given in zip(weights.values(), unflat(numbers, list(weights.values())), strict=True):
                weight.copy_(given)
        images, labels, *drawn = link.take()
        every = torch.arange(len(labels), device=link.device)
        total = sums((images, labels), every, drawn[0] if drawn else None, int(batch))
        link.add(flat(list(total.values())))


def as_seen(images: Tensor) -> Tensor:
    """Images as the network takes them."""
    return to_float(images) if images.dtype == torch.uint8 else images.float()
