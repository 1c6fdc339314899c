"""Codings: transforms of per-sample gradients before clipping and noise; the identity is plain DP-SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bench.dp_training.clipping import Clipping, ClippingGroup, clipping_groups
from bench.dp_training.per_sample_gradients import PerSampleGradients
from bench.nets import Classifier


class Coding(Protocol):
    """A public map from each per-sample gradient to a row; the rows are clipped and noised in place of the gradients.

    The map may depend on the released weights and on public data; each row must depend on one record only.
    """

    def begin(self, step: int) -> None:
        """Prepare for a step."""
        ...

    def groups(self) -> list[ClippingGroup]:
        """Return the clipping groups; their names are those of the row's parts."""
        ...

    def zeros(self) -> dict[str, Tensor]:
        """Return zeros to which coded gradients are added: {part name: float64 tensor of one record's shape}."""
        ...

    def encode(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map {parameter: (n, *shape)} gradients to {part: (n, *shape)} rows, each row separately."""
        ...

    def decode(self, mean: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map {part: noisy mean} to {parameter: gradient for the optimiser}; this is post-processing."""
        ...


@runtime_checkable
class DrawsByRecord(Protocol):
    """A `Coding` that makes random draws per record: it is given the indices of the records before their gradients.

    A draw must belong to the record, not to the record's position in the batch.
    """

    def of(self, records: Tensor) -> None:
        """Set the (n,) int64 indices of the records that are encoded next."""
        ...


class Uncoded:
    """The identity coding: gradients are clipped and noised unchanged."""

    def __init__(self, weights: dict[str, nn.Parameter], clip: float, clipping: Clipping) -> None:
        self.weights = weights
        self.clipped = clipping_groups(list(weights), clip, clipping)

    def begin(self, step: int) -> None:
        """Do nothing."""

    def groups(self) -> list[ClippingGroup]:
        """Return one group of all parameters, or one per layer."""
        return self.clipped

    def zeros(self) -> dict[str, Tensor]:
        """Return zeros of the parameters' shapes."""
        return {name: torch.zeros_like(w, dtype=torch.float64) for name, w in self.weights.items()}

    def encode(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradients unchanged."""
        return gradients

    def decode(self, mean: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the mean gradients unchanged."""
        return mean


MakeCoding = Callable[[Classifier, PerSampleGradients], Coding]
"""Factory: (network, its per-sample gradients) -> coding; a coding may use the gradients of public images."""
