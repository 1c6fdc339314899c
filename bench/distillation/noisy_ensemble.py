"""An ensemble that answers as it answered for a release, for its accuracy on the test set: DGD's Fig. 8, top left."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.distillation.noisy_votes import Aggregation
from bench.nets import Ensemble


class NoisyEnsemble(nn.Module):
    """Votes with a release's noise, drawn anew. It is measured and never released: its answers are not charged."""

    def __init__(self, members: Ensemble, aggregation: Aggregation, rng: torch.Generator) -> None:
        super().__init__()
        self.members, self.aggregation, self.rng = members, aggregation, rng

    def forward(self, images: Tensor) -> Tensor:
        """(n, c, h, w) in [0, 1] to (n, classes) noisy vote counts, float32."""
        return self.aggregation.counts(self.members.votes(images), self.rng).float()
