from __future__ import annotations

import pytest
import torch

from bench.metrics.utility import accuracy, hits

LOGITS = torch.tensor([[3.0, 1.0, -2.0], [-5.0, -4.0, -9.0], [0.0, 0.1, 0.2], [7.0, 0.0, 0.0]])


def test_counts_by_hand() -> None:
    labels = torch.tensor([0, 1, 0, 2])
    assert hits(LOGITS, labels) == 2
    assert accuracy(LOGITS, labels) == 0.5


def test_refuses_what_would_flatter() -> None:
    with pytest.raises(ValueError, match="NaN"):
        accuracy(torch.full((2, 3), float("nan")), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected"):
        accuracy(LOGITS, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="n >= 1"):
        accuracy(LOGITS[:0], torch.zeros(0, dtype=torch.int64))
