"""Accuracy, and the Clopper-Pearson interval."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest
from torch import Tensor

from bench.metrics.proportions import accuracy, clopper_pearson, count_correct

LOGITS = torch.tensor([[3.0, 1.0, -2.0], [-5.0, -4.0, -9.0], [0.0, 0.1, 0.2], [7.0, 0.0, 0.0]])


def test_accuracy_by_hand() -> None:
    labels = torch.tensor([0, 1, 0, 2])
    assert count_correct(LOGITS, labels) == 2
    assert accuracy(LOGITS, labels) == 0.5


@pytest.mark.parametrize(
    ("logits", "labels", "value"),
    [(torch.full((2, 3), float("nan")), 2, "NaN"), (LOGITS, 3, r"\(3,\)"), (LOGITS[:0], 0, r"\(0,\)")],
)
def test_accuracy_refuses_nan_and_other_shapes(logits: Tensor, labels: int, value: str) -> None:
    with pytest.raises(ValueError, match=value):
        accuracy(logits, torch.zeros(labels, dtype=torch.int64))


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1), (117, 500)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_clopper_pearson_agrees_with_scipy(successes: int, trials: int, confidence: float) -> None:
    oracle = binomtest(successes, trials).proportion_ci(confidence, "exact")
    assert clopper_pearson(successes, trials, confidence) == pytest.approx((oracle.low, oracle.high), abs=1e-9)


def test_clopper_pearson_inverts_the_binomial_tails() -> None:
    low, high = clopper_pearson(7, 40)
    assert binom.sf(6, 40, low) == pytest.approx(0.025)
    assert binom.cdf(7, 40, high) == pytest.approx(0.025)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5])
def test_clopper_pearson_covers_at_its_confidence(share: float) -> None:
    trials = 30
    bounds = np.array([clopper_pearson(k, trials, 0.9) for k in range(trials + 1)])
    covered = (bounds[:, 0] <= share) & (share <= bounds[:, 1])
    assert binom.pmf(np.arange(trials + 1), trials, share)[covered].sum() >= 0.9


@pytest.mark.parametrize("arguments", [(-1, 5), (6, 5), (0, 0), (1, 5, 0.0), (1, 5, 1.0)])
def test_clopper_pearson_refuses_impossible_arguments(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        clopper_pearson(*arguments)
