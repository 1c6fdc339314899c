"""A generator's gradient from the student's loss, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from bench.distillation.image_source import generator_loss


class Judge(nn.Module):
    """Probabilities (3/4, 1/4) and (1/2, 1/2), features of length 5 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()

    def features(self, x: Tensor) -> Tensor:
        return torch.tensor([[3.0, 4.0], [0.0, 1.0]])


def test_a_generator_is_rewarded_for_sure_outputs_all_classes_and_large_features() -> None:
    """-log of the largest, 5 times the mean output's sum of p log p, minus 0.02 times the features' mean length."""
    sure = -(math.log(0.75) + math.log(0.5)) / 2
    balance = 0.625 * math.log(0.625) + 0.375 * math.log(0.375)
    found = generator_loss(Judge(), torch.zeros(2, 1, 1, 1))
    assert float(found) == pytest.approx(sure + 5 * balance - 0.02 * 3)
