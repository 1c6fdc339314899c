"""An exponential average of a network's weights."""

from __future__ import annotations

import torch
from torch import nn


class WeightAverage:
    """An exponential average of the weights that starts as the plain mean; post-processing of the noisy gradients."""

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float) -> None:
        self.parameters, self.decay, self.seen = list(parameters.values()), decay, 0
        self.mean = [p.detach().clone() for p in self.parameters] if decay else []

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average."""
        self.seen += 1
        keep = min(self.decay, 1 - 1 / self.seen)
        for mean, parameter in zip(self.mean, self.parameters, strict=False):
            mean.lerp_(parameter, 1 - keep)

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the average into the weights."""
        for mean, parameter in zip(self.mean, self.parameters, strict=False):
            parameter.copy_(mean)
