from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from bench.metrics.intervals import clopper_pearson


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1), (117, 500)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_agrees_with_scipys_exact_interval(successes: int, trials: int, confidence: float) -> None:
    oracle = binomtest(successes, trials).proportion_ci(confidence, "exact")
    assert clopper_pearson(successes, trials, confidence) == pytest.approx((oracle.low, oracle.high), abs=1e-9)


def test_bounds_invert_the_binomial_tails() -> None:
    low, high = clopper_pearson(7, 40)
    assert binom.sf(6, 40, low) == pytest.approx(0.025)
    assert binom.cdf(7, 40, high) == pytest.approx(0.025)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5])
def test_covers_at_least_as_often_as_promised(share: float) -> None:
    trials = 30
    bounds = np.array([clopper_pearson(k, trials, 0.9) for k in range(trials + 1)])
    covered = (bounds[:, 0] <= share) & (share <= bounds[:, 1])
    assert binom.pmf(np.arange(trials + 1), trials, share)[covered].sum() >= 0.9


@pytest.mark.parametrize("arguments", [(-1, 5), (6, 5), (0, 0), (1, 5, 0.0), (1, 5, 1.0)])
def test_refuses_the_impossible(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        clopper_pearson(*arguments)
