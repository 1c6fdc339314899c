from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from bench.privacy.one_run import ceiling, comparable, correct_guesses, one_run_epsilon, p_value, refutes
from bench.privacy.one_run_curves import f_dp_epsilon


@pytest.mark.parametrize(("guesses", "bound"), [(20, 1.82), (100, 3.49), (1000, 5.81), (10_000, 8.11)])
def test_ceiling_golden_values(guesses: int, bound: float) -> None:
    assert ceiling(guesses, guesses) == pytest.approx(bound, abs=5e-3)
    chance = 0.05 ** (1 / guesses)
    assert one_run_epsilon(guesses, guesses, guesses) == pytest.approx(math.log(chance / (1 - chance)), abs=1e-9)


@pytest.mark.parametrize(("canaries", "bound"), [(50, 2.78), (200, 4.19), (500, 5.10), (1000, 5.78), (10_000, 7.83)])
def test_ceiling_with_delta_golden_values(canaries: int, bound: float) -> None:
    assert ceiling(canaries, canaries, 1e-5) == pytest.approx(bound, abs=6e-3)


def test_p_value_golden_value() -> None:
    assert p_value(1.0, 200, 170, 1000, 1e-5) == pytest.approx(6.18e-4, abs=5e-7)


def test_p_value_matches_its_definition() -> None:
    guesses, correct, canaries, delta, q = 12, 9, 30, 1e-3, math.exp(0.7) / (1 + math.exp(0.7))
    tail = [
        sum(math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(v, guesses + 1)) for v in range(13)
    ]
    worst = max((tail[correct - i] - tail[correct]) / i for i in range(1, correct + 1))
    assert p_value(0.7, guesses, correct, canaries, delta) == pytest.approx(
        tail[correct] + 2 * canaries * delta * worst
    )


def test_one_run_epsilon_is_where_the_tail_crosses() -> None:
    assert one_run_epsilon(100, 50, 200) == one_run_epsilon(100, 58, 200) == 0
    found = one_run_epsilon(100, 80, 200)
    assert binom.sf(79, 100, 1 / (1 + math.exp(-found))) == pytest.approx(0.05, abs=1e-9)


@pytest.mark.thorough
@given(st.integers(1, 300), st.integers(0, 300), st.sampled_from([0.0, 1e-6, 1e-4, 1e-2]), st.data())
@settings(max_examples=80, deadline=None)
def test_one_run_epsilon_is_monotone(guesses: int, abstained: int, delta: float, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, guesses))
    m = guesses + abstained
    found = one_run_epsilon(guesses, correct, m, delta)
    assert found <= ceiling(guesses, m, delta) + 1e-9
    assert found <= one_run_epsilon(guesses, correct, m, 0.0) + 1e-9
    assert one_run_epsilon(guesses, correct, m, delta, 0.99) <= found + 1e-9
    if correct:
        assert one_run_epsilon(guesses, correct - 1, m, delta) <= found + 1e-9


@pytest.mark.parametrize("correct", [60, 80, 100])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_p_value_increases_with_epsilon(correct: int, delta: float) -> None:
    values = [p_value(epsilon, 100, correct, 200, delta) for epsilon in np.linspace(0, 12, 200)]
    assert np.all(np.diff(values) >= -1e-12)


def randomised_response(epsilon: float, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Coins, and scores that reveal each with probability e^epsilon / (1 + e^epsilon): exactly epsilon-DP."""
    rng = np.random.default_rng(seed)
    coins = rng.random(m) < 0.5
    shown = coins ^ (rng.random(m) >= 1 / (1 + math.exp(-epsilon)))
    return coins, shown + 0.1 * rng.random(m)


def bounds_of(epsilon: float, seeds: int, guesses: int = 200, m: int = 500) -> np.ndarray:
    games = [randomised_response(epsilon, m, seed) for seed in range(seeds)]
    rights = [correct_guesses(scores, coins, guesses) for coins, scores in games]
    return np.array([one_run_epsilon(guesses, right, m) for right in rights])


@pytest.mark.thorough
def test_one_run_bound_of_randomised_response_is_valid() -> None:
    found = bounds_of(1.0, 400)
    assert (found > 1.0).mean() <= 0.08
    assert (found >= 0.5).mean() >= 0.8


def test_one_run_bound_of_randomised_response_at_0_and_at_2() -> None:
    assert (bounds_of(0.0, 400) > 0).mean() <= 0.08
    assert (bounds_of(2.0, 100) > 1.0).mean() >= 0.95


def test_correct_guesses_uses_the_extreme_scores() -> None:
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    coins = np.array([True, True, False, False, True])
    assert correct_guesses(scores, coins, 1) == 1
    assert correct_guesses(scores, coins, 2) == 1
    assert correct_guesses(scores, coins, 3) == 2
    assert correct_guesses(scores, coins, 5) == 3
    assert correct_guesses(-scores, coins, 2) == 1 and correct_guesses(-scores, coins, 4) == 1


def test_correct_guesses_ranks_ties_without_the_coins() -> None:
    coins = np.random.default_rng(0).random(400) < 0.5
    right = correct_guesses(np.zeros(400), coins, 200)
    assert right == int(coins[:100].sum() + (~coins[300:]).sum())


@pytest.mark.parametrize(
    "arguments",
    [(10, 11, 20, 0.0), (10, -1, 20, 0.0), (10, 5, 9, 0.0), (0, 0, 5, 0.0), (10, 5, 20, 1.0), (10, 5, 20, -0.1)],
)
def test_one_run_refuses_arguments_out_of_range(arguments: tuple[int, int, int, float]) -> None:
    with pytest.raises(ValueError, match=str(arguments[1])):
        one_run_epsilon(*arguments)
    with pytest.raises(ValueError, match="NaN"):
        correct_guesses(np.array([1.0, math.nan]), np.array([True, False]), 1)


EXAMPLE = {"epsilon": 1.0, "unit": "example", "delta": 1e-5, "relation": "add-or-remove"}


def test_refutes_only_a_comparable_epsilon() -> None:
    assert refutes(1.1, 1e-5, EXAMPLE) and not refutes(1.0, 1e-5, EXAMPLE)
    assert refutes(1.1, 1e-5, {"epsilon": 1.0, "unit": "example", "delta": 0.0})
    for change, word in (
        ({"unit": "query"}, "per query"),
        ({"relation": "replace"}, "replace"),
        ({"epsilon": "inf"}, "infinite"),
        ({"delta": 1e-3}, "delta"),
        ({"delta": 1.5e-5}, "delta"),
    ):
        assert not refutes(50.0, 1e-5, EXAMPLE | change)
        assert word in str(comparable(EXAMPLE | change, 1e-5))
    assert not refutes(50.0, 1e-5, None)


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
