"""The f-DP audit of one run: golden values of an independent implementation, order, and soundness."""

from __future__ import annotations

import numpy as np
import pytest

from bench.privacy.one_run import correct_guesses
from bench.privacy.one_run_curves import f_dp_epsilon

GOLDEN = [
    (100, 100, 69, 0.9608, 0.4132),
    (100, 100, 100, 8.2162, 3.4929),
    (1000, 1000, 500, 0, 0),
    (1000, 1000, 691, 1.2967, 0.6846),
    (1000, 100, 80, 1.4022, 0.9428),
    (1000, 100, 92, 2.7533, 1.8010),
    (1000, 100, 100, 5.5490, 3.4923),
    (5000, 500, 460, 3.1024, 2.1541),
    (10000, 1000, 950, 3.8024, 2.6913),
    (10000, 10000, 6915, 1.3058, 0.7693),
]


@pytest.mark.parametrize(("canaries", "guesses", "correct", "gaussian", "general"), GOLDEN)
def test_f_dp_epsilon_golden_values(canaries: int, guesses: int, correct: int, gaussian: float, general: float) -> None:
    assert f_dp_epsilon(guesses, correct, canaries, 1e-5) == pytest.approx(gaussian, abs=1e-3)
    assert f_dp_epsilon(guesses, correct, canaries, 1e-5, curve="epsilon-delta") == pytest.approx(general, abs=1e-3)


def test_f_dp_epsilon_increases_with_right_guesses() -> None:
    found = [f_dp_epsilon(50, correct, 500, 1e-5) for correct in range(0, 51, 5)]
    assert found == sorted(found) and found[5] == 0 and found[-1] > 2


def test_f_dp_audit_accepts_a_gaussian_mechanism() -> None:
    """mu = 1 is epsilon 4.377 at delta 1e-5: of 60 games at 95 % at most 8 may give more (binomial, p < 0.01)."""
    rng = np.random.default_rng(0)
    bounds = []
    for _ in range(60):
        coins = rng.random(1000) < 0.5
        scores = rng.normal(size=1000) + coins
        bounds.append(f_dp_epsilon(100, correct_guesses(scores, coins, 100), 1000, 1e-5))
    assert sum(bound > 4.377 for bound in bounds) <= 8
    assert 1.9 < float(np.median(bounds)) < 3.0, "2.46 is the bound of the expected counts"


@pytest.mark.parametrize(("given"), [(10, 11, 20, 1e-5), (10, 5, 9, 1e-5), (0, 0, 5, 1e-5), (10, 5, 20, 0.0)])
def test_f_dp_epsilon_refuses_arguments_out_of_range(given: tuple[int, int, int, float]) -> None:
    with pytest.raises(ValueError, match=str(given[1])):
        f_dp_epsilon(*given)


def test_gaussian_curve_overstates_randomised_response() -> None:
    """The documented trap: epsilon 1, all 10,000 responses guessed, 7,311 right."""
    assert f_dp_epsilon(10_000, 7311, 10_000, 1e-5) == pytest.approx(1.646, abs=2e-3)
    assert f_dp_epsilon(10_000, 7311, 10_000, 1e-5, curve="epsilon-delta") < 1
