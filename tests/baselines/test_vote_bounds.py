"""The theorems of PATE that depend on the votes, against closed forms and brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from bench.distillation.votes import vote_bounds
from bench.distillation.votes.vote_bounds import (
    FEW_WHOLE_ORDERS,
    ORDERS,
    Values,
    gaussian_renyi_of_events,
    laplace_renyi_of_votes,
    log_rarer_side,
    log_wrong_gaussian,
    log_wrong_laplace,
)

VOTES = [[12, 2, 1], [9, 5, 1], [7, 7, 1], [15, 0, 0], [30, 3, 2], [60, 0, 1]]


def answers_of(votes: Values, law: Any) -> Values:
    """(classes,) probabilities of the noisy arg-max: the integral of f(x - n_j) times the others' F(x - n_k)."""
    spread = math.ceil((20 if law.dist.name == "laplace" else 9) * law.std())
    low, high = int(votes.min()) - spread, int(votes.max()) + spread
    x = np.linspace(low, high, 64 * (high - low) + 1)
    below, at = law.cdf(x[:, None] - votes), law.pdf(x[:, None] - votes)
    each = [integrate.simpson(at[:, j] * np.delete(below, j, 1).prod(1), x=x) for j in range(len(votes))]
    assert sum(each) == pytest.approx(1, abs=1e-7)
    return np.array(each)


def log_wrong(votes: Values, law: Any) -> float:
    """Logarithm of the probability that the answer is not the first class with the most votes."""
    return math.log(np.delete(answers_of(votes, law), votes.argmax()).sum())


def renyi(p: Values, q: Values, orders: Values) -> Values:
    terms = orders[:, None] * np.log(p) + (1 - orders[:, None]) * np.log(q)
    return np.log(np.exp(terms - terms.max(1, keepdims=True)).sum(1)) + terms.max(1)


def worst_neighbour(votes: Values, law: Any, orders: Values) -> Values:
    """(k,) the largest divergence from the answer's distribution to that after one vote has moved."""
    here = answers_of(votes, law)
    found = []
    for i in range(len(votes)):
        for j in range(len(votes)):
            if i != j and votes[i] >= 1:
                moved = votes.copy()
                moved[i] -= 1
                moved[j] += 1
                found.append(renyi(here, answers_of(moved, law), orders) / (orders - 1))
    return np.max(found, axis=0)


@pytest.mark.parametrize("scale", [1.5, 4.0])
@pytest.mark.parametrize("votes", VOTES, ids=str)
def test_theorem_3_of_2017_holds(votes: list[int], scale: float) -> None:
    at, orders, law = np.array(votes, dtype=float), FEW_WHOLE_ORDERS[:40], stats.laplace(scale=scale)
    assert log_wrong(at, law) <= log_wrong_laplace(at[None], scale)[0] + 1e-6
    bound, truth = laplace_renyi_of_votes(at[None], scale, orders)[0], worst_neighbour(at, law, orders)
    assert (truth <= bound * (1 + 1e-6) + 1e-9).all()
    assert (bound <= vote_bounds.laplace_renyi(scale, orders) + 1e-12).all()


@pytest.mark.parametrize("sigma", [1.5, 4.0])
@pytest.mark.parametrize("votes", VOTES, ids=str)
def test_theorem_6_of_2018_holds(votes: list[int], sigma: float) -> None:
    at, orders, law = np.array(votes, dtype=float), ORDERS[ORDERS < 60], stats.norm(scale=sigma)
    log_q = log_wrong_gaussian(at[None], sigma)
    assert log_wrong(at, law) <= log_q[0] + 1e-6
    bound, truth = gaussian_renyi_of_events(log_q, sigma, orders)[0], worst_neighbour(at, law, orders)
    assert (truth <= bound * (1 + 1e-6) + 1e-9).all()
    assert (bound <= orders / sigma**2 + 1e-12).all()


def test_theorem_6_of_2018_by_hand() -> None:
    """q = 1e-6, sigma = 10, alpha = 5: its two orders are 37.2 and, one more, 38.2."""
    q, second = 1e-6, 10 * math.sqrt(math.log(1e6))
    first = second + 1
    a = (1 - q) / (1 - (q * math.exp(second / 100)) ** ((second - 1) / second))
    b = math.exp(first / 100) / q ** (1 / (first - 1))
    expected = math.log((1 - q) * a**4 + q * b**4) / 4
    found = gaussian_renyi_of_events(np.array([math.log(q)]), 10.0, np.array([5.0]))
    assert found.item() == pytest.approx(expected, rel=1e-6) and expected < 5 / 100


@pytest.mark.parametrize("sigma", [1.0, 5.0])
@pytest.mark.parametrize("largest", [3, 12, 20, 60])
def test_threshold_bound_holds(largest: float, sigma: float) -> None:
    """Pass or fail of N(largest, sigma^2) at 12, against one vote more or less."""
    orders, at = ORDERS[ORDERS < 60], np.array([[largest, 0.0, 0.0]])
    log_q = log_rarer_side(at, 12.0, sigma)

    def both(count: float) -> Values:
        return np.maximum(stats.norm.cdf([(count - 12) / sigma, (12 - count) / sigma]), 1e-300)

    assert math.exp(log_q[0]) == pytest.approx(min(both(largest)), rel=1e-9)
    bound = gaussian_renyi_of_events(log_q, math.sqrt(2) * sigma, orders)[0]
    for moved in (largest - 1, largest + 1):
        truth = renyi(both(largest), both(moved), orders) / (orders - 1)
        assert (truth <= bound * (1 + 1e-6) + 1e-9).all()


def test_bound_fails_for_an_overstated_lead() -> None:
    """The tests above would notice this fault: with q of a lead of 16 instead of 7 the true divergence is larger."""
    orders, votes = FEW_WHOLE_ORDERS[:40], np.array([9.0, 2.0, 2.0])
    false = np.array([[18.0, 2.0, 2.0]])
    law = worst_neighbour(votes, stats.laplace(scale=1.5), orders)
    assert (law > laplace_renyi_of_votes(false, 1.5, orders)[0]).any()
    gauss, at = worst_neighbour(votes, stats.norm(scale=3.0), ORDERS[ORDERS < 60]), ORDERS[ORDERS < 60]
    assert (gauss > gaussian_renyi_of_events(log_wrong_gaussian(false, 3.0), 3.0, at)[0]).any()


@pytest.mark.parametrize("scale", [20.0, 40.0])
def test_bounds_of_uniform_and_unanimous_votes(scale: float) -> None:
    """Even votes: the data-independent bound. 250 to 0: a hundredth of it or less at small orders."""
    even, sure, low = np.full((1, 10), 25.0), np.array([[250.0] + [0.0] * 9]), FEW_WHOLE_ORDERS[:4]
    laplace, gauss = vote_bounds.laplace_renyi(scale, low), low / scale**2
    assert np.allclose(laplace_renyi_of_votes(even, scale, low)[0], laplace)
    assert np.allclose(gaussian_renyi_of_events(log_wrong_gaussian(even, scale), scale, low)[0], gauss)
    if scale == 20.0:
        assert (laplace_renyi_of_votes(sure, scale, low)[0] < laplace / 50).all()
        assert (gaussian_renyi_of_events(log_wrong_gaussian(sure, scale), scale, low)[0] < gauss / 100).all()
    assert np.isfinite(laplace_renyi_of_votes(1e4 * sure, scale, FEW_WHOLE_ORDERS)).all()
    assert np.isfinite(gaussian_renyi_of_events(log_wrong_gaussian(1e4 * sure, scale), scale, ORDERS)).all()
