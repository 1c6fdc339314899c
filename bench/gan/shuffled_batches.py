"""Batch indices of shuffled passes over a set of images."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def shuffled_batches(n: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield (size,) indices of shuffled passes over n images, endlessly; a pass' incomplete last batch is dropped."""
    while True:
        order = torch.randperm(n, generator=rng, device=rng.device)
        yield from order[: n - n % size].split(size)
