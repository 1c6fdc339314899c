"""Batches of passes over a set of images."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def shuffled_batches(n: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """(size,) indices of shuffled passes over n images, without end; a pass' incomplete last batch is left out."""
    while True:
        order = torch.randperm(n, generator=rng, device=rng.device)
        yield from order[: n - n % size].split(size)
