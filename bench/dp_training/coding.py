"""What DP-SGD clips and noises: each record's gradient as it is, or rows that a public map makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bench.dp_training.clipping import Clipping, ClippingGroup, clipping_groups
from bench.dp_training.per_sample_gradients import PerSampleGradients
from bench.nets import Classifier


class Coding(Protocol):
    """What is clipped and noised instead of gradients: rows that a public map makes of one record's gradient each.

    The map may depend on the weights, which are releases, and on public data; a row depends on one record alone.
    """

    def begin(self, step: int) -> None:
        """Before a step."""
        ...

    def groups(self) -> list[ClippingGroup]:
        """Of the rows' parts, by name."""
        ...

    def zeros(self) -> dict[str, Tensor]:
        """Part of a row by name: float64, one record's shape."""
        ...

    def encode(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """{parameter: (n, *shape)} to {part: (n, *shape)}, row by row."""
        ...

    def decode(self, mean: dict[str, Tensor]) -> dict[str, Tensor]:
        """{part: noisy mean} to {parameter: the gradient to step along}; post-processing."""
        ...


@runtime_checkable
class DrawsByRecord(Protocol):
    """A `Coding` that draws at random for each record: it is told which records the rows are that it gets next.

    What it draws must belong to the record, not to the record's place in the batch.
    """

    def of(self, records: Tensor) -> None:
        """(n,) int64: the records' numbers."""
        ...


class Uncoded:
    """Gradients as they are."""

    def __init__(self, weights: dict[str, nn.Parameter], clip: float, clipping: Clipping) -> None:
        self.weights = weights
        self.clipped = clipping_groups(list(weights), clip, clipping)

    def begin(self, step: int) -> None:
        """Nothing changes."""

    def groups(self) -> list[ClippingGroup]:
        """All parameters, or layers."""
        return self.clipped

    def zeros(self) -> dict[str, Tensor]:
        """As the parameters."""
        return {name: torch.zeros_like(w, dtype=torch.float64) for name, w in self.weights.items()}

    def encode(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients."""
        return gradients

    def decode(self, mean: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients."""
        return mean


MakeCoding = Callable[[Classifier, PerSampleGradients], Coding]
"""The coding for a network, and what gives its per-sample gradients (of public images, if it needs them)."""
