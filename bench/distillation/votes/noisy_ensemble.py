"""An ensemble that answers as it answered for a release, for its accuracy on the test set: DGD's Fig. 8, top left."""

from __future__ import annotations

from torch import Tensor, nn

from bench.distillation.votes.noisy_votes import Aggregation
from bench.nets import Ensemble
from bench.privacy.noise import Noise


class NoisyEnsemble(nn.Module):
    """Votes with a release's noise on the counts, drawn anew. No threshold is asked: every image is answered.

    It is measured and never released: its answers are not charged.
    """

    def __init__(self, members: Ensemble, aggregation: Aggregation, noise: Noise) -> None:
        super().__init__()
        self.members, self.aggregation, self.noise = members, aggregation, noise

    def forward(self, images: Tensor) -> Tensor:
        """(n, c, h, w) in [0, 1] to (n, classes) noisy vote counts, float32."""
        return self.aggregation.counts(self.members.votes(images), self.noise).float()
