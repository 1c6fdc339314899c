"""An ensemble that responds with a release's noise, to measure its test accuracy: DGD's Fig. 8, top left."""

from __future__ import annotations

from torch import Tensor, nn

from bench.distillation.votes.noisy_votes import Aggregation
from bench.nets import Ensemble
from bench.privacy.noise import Noise


class NoisyEnsemble(nn.Module):
    """An ensemble whose vote counts get new noise of the release's scale.

    No threshold is used, every image gets a label.

    It is only measured, never released, so its responses are not charged.
    """

    def __init__(self, members: Ensemble, aggregation: Aggregation, noise: Noise) -> None:
        super().__init__()
        self.members, self.aggregation, self.noise = members, aggregation, noise

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) in [0, 1] to (n, classes) noisy vote counts, float32."""
        return self.aggregation.counts(self.members.votes(images), self.noise).float()
