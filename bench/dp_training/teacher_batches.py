"""Batches of teachers on disjoint parts of the private records: each of its own part, whatever the others hold."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.data import to_float
from bench.privacy.noise import Noise, Source


class TeacherBatches:
    """Private records by teacher; draws of one part never depend on another one.

    Args:
        images: (n, c, h, w) uint8.
        labels: (n,) int64.
        classes: number of labels.
        parts: k disjoint index arrays, perhaps empty.
    """

    def __init__(self, images: Tensor, labels: Tensor, classes: int, parts: list[NDArray[np.int64]]) -> None:
        self.images, self.labels, self.classes = images, labels, classes
        rows = [torch.from_numpy(part) for part in parts]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True) if max(map(len, rows)) else torch.zeros(len(rows), 1)
        self.rows = padded.long().to(images.device)
        self.sizes = torch.tensor([len(part) for part in parts], device=images.device)

    def draw(self, count: int, source: Source) -> Tensor:
        """(k, count) int64 records, row i uniform over part i with replacement; of no meaning where a part is empty."""
        u = Noise.of(source).uniform(len(self.rows), count)
        return self.rows.gather(1, (u * self.sizes[:, None]).long())

    def __call__(self, count: int, source: Source) -> Tensor:
        """(k, count, d + classes) pixels in [0, 1] and one-hot labels of `draw`; zeros where a part is empty."""
        chosen = self.draw(count, source)
        pixels = to_float(self.images[chosen]).flatten(2)
        rows = torch.cat([pixels, F.one_hot(self.labels[chosen], self.classes).float()], 2)
        return torch.where((self.sizes > 0)[:, None, None], rows, 0.0)
