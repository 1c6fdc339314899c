from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from accountant_made import G
from accountant_made import cost as accounted_cost
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.privacy import Budget, Unreachable, calibrate_noise, largest_count, noise_or_steps

POSITIVE = st.floats(1e-3, 1e3)


@given(scale=POSITIVE, power=st.floats(0.3, 3), budget=POSITIVE, low=POSITIVE, widen=st.floats(1.01, 1e3))
def test_calibrate_noise_returns_the_smallest_noise(scale, power, budget, low, widen):
    def cost(x: float) -> float:
        return (scale / x) ** power

    exact = scale / budget ** (1 / power)
    found = calibrate_noise(cost, budget, low, low * widen)
    assert cost(found) <= budget
    assert exact * (1 - 1e-9) <= found <= exact * 1.002


@pytest.mark.parametrize("budget", [0.3, 0.99, 5.0])
def test_calibrate_noise_never_accepts_nan(budget):
    def cost(x: float) -> float:
        return 1 / x if x >= 1 else math.nan

    found = calibrate_noise(cost, budget, 0.1, 8.0)
    assert cost(found) <= budget and found <= 1.002 * max(1, 1 / budget)


def halved(cost: Any, budget: float, low: float, high: float, rtol: float) -> float:
    """The upper end that plain halving of a bracket ends with."""
    assert cost(high) <= budget < cost(low)
    while high > low * (1 + rtol):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if cost(middle) <= budget else (middle, high)
    return high


STEPS = {
    "power": lambda x: x**-1.3,
    "epsilon": lambda x: 0.5 / x**2 + 4.8 / x,
    "steep": lambda x: math.exp(min(9 / x, 700.0)),
    "jumps": lambda x: float(math.ceil(20 / x)),
    "infinite below 2": lambda x: 1 / x if x >= 2 else math.inf,
    "flat, then nothing": lambda x: 3.0 if x < 5.3 else 0.0,
}


@pytest.mark.parametrize("name", list(STEPS))
@given(share=st.floats(0.001, 0.999), rtol=st.sampled_from([1e-2, 1e-3, 1e-5]))
def test_calibrate_noise_equals_bisection(name, share, rtol):
    cost, low, high = STEPS[name], 0.5, 8.0
    budget = cost(high) + share * (min(cost(low), 1e6) - cost(high))
    assert calibrate_noise(cost, budget, low, high, rtol) == halved(cost, budget, low, high, rtol)


def test_calibrate_noise_evaluates_few_costs():
    read: list[float] = []

    def cost(x: float) -> float:
        read.append(x)
        return 0.5 / x**2 + 4.8 / x

    for budget in (0.7, 1.0, 2.0, 5.0, 9.0):
        read.clear()
        calibrate_noise(cost, budget, 0.5, 8.0, rtol=1e-4)
        assert len(set(read)) == len(read) <= 8, "bisection evaluates 17"


@pytest.mark.parametrize("value", [math.inf, math.nan, 3.0])
def test_calibration_without_a_solution_is_unreachable(value):
    with pytest.raises(Unreachable) as caught:
        calibrate_noise(lambda x: value, 1.0, 0.1, 1.0)
    assert "\n" not in str(caught.value)
    with pytest.raises(Unreachable):
        largest_count(lambda count: value, 1.0, 10)


def test_calibrate_noise_of_an_infinite_budget_ends():
    assert 0 < calibrate_noise(lambda x: 1 / x, math.inf, 0.1, 1.0) < 1e-15


@given(rate=st.floats(0.01, 10), budget=st.floats(0.01, 1000), high=st.integers(1, 10_000))
def test_largest_count_is_the_last_allowed(rate, budget, high):
    def cost(count: int) -> float:
        assert 1 <= count <= high
        return rate * count

    if cost(1) > budget:
        with pytest.raises(Unreachable):
            largest_count(cost, budget, high)
    else:
        found = largest_count(cost, budget, high)
        assert cost(found) <= budget
        assert found == high or rate * (found + 1) > budget


def test_calibration_refuses_an_invalid_range():
    with pytest.raises(ValueError, match="low"):
        calibrate_noise(lambda x: 1 / x, 1.0, 1.0, 0.5)
    with pytest.raises(ValueError, match="high"):
        largest_count(lambda count: 1.0, 1.0, 0)


def gaussians(multiplier: float, count: int) -> float:
    return accounted_cost((G(multiplier), count))


@settings(max_examples=20)
@given(budget=st.floats(0.1, 500), count=st.integers(1, 5000))
def test_calibrated_gaussian_noise_meets_its_budget(budget, count):
    found = calibrate_noise(lambda z: gaussians(z, count), budget, 0.3, 60)
    assert gaussians(found, count) <= budget < gaussians(found / 1.002, count)
    assert gaussians(found, largest_count(lambda n: gaussians(found, n), budget, 10 * count)) <= budget


@dataclass(frozen=True)
class Made:
    """A mechanism of `steps` answers with noise z; costs steps / z."""

    steps: int
    z: float


def cost(made: Made) -> float:
    return math.inf if made.z == 0 else made.steps / made.z


@pytest.mark.parametrize(
    ("epsilon", "solve", "expected"),
    [
        (None, "none", Made(10, 3.0)),
        (5.0, "none", Made(10, 3.0)),
        (math.inf, "sigma", Made(10, 0.0)),
        (math.inf, "none", Made(10, 0.0)),
        (4.0, "steps", Made(12, 3.0)),
        (math.inf, "steps", Made(10, 0.0)),
    ],
)
def test_noise_or_steps_solves_for_one_of_them(epsilon: float | None, solve: Any, expected: Made) -> None:
    budget = Budget(epsilon, 1e-5, "accounted", solve)
    assert noise_or_steps(Made(10, 3.0), budget, cost, "z", 1000) == expected
    found = noise_or_steps(Made(10, 3.0), Budget(4.0, 1e-5, "accounted", "sigma"), cost, "z", 1000)
    assert found.steps == 10 and found.z == pytest.approx(2.5, rel=2e-3) and cost(found) <= 4.0


def test_noise_or_steps_beyond_the_budget_is_refused() -> None:
    with pytest.raises(BenchError, match=r"--epsilon 0\.1 --solve steps"):
        noise_or_steps(Made(10, 3.0), Budget(0.1, 1e-5, "accounted", "steps"), cost, "z", 1000)


def test_largest_count_of_a_large_budget_is_fast() -> None:
    """On the way to ten million, the exact composition of every power of two would take minutes."""
    read: list[int] = []

    def cost(count: int) -> float:
        read.append(count)
        return float(count)

    assert largest_count(cost, 1e300, 10**7) == 10**7
    assert read == [1, 10**7]
    assert largest_count(cost, 2e4, 10**7) == 20_000
