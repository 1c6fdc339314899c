from __future__ import annotations

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad

from bench.privacy import Ledger, randomised_response_event
from bench.privacy._pld import composed_epsilon, why_not
from bench.privacy._rdp import laplace, renyi_epsilon, response, sampled_gaussian
from bench.privacy.composition import decompose

DELTA = 1e-5
G, L, P = dp.GaussianDpEvent, dp.LaplaceDpEvent, dp.PoissonSampledDpEvent


def parts_of(*spent, replaced=False):
    ledger = Ledger()
    for event, count in spent:
        ledger.spend(event, count=count)
    return decompose(ledger.entries(), unit_replaced=replaced)


OVERLAPS = [
    [(L(20.0), 400)],
    [(L(1.0), 100)],
    [(L(1000.0), 10**6)],
    [(randomised_response_event(0.05, 10), 400)],
    [(randomised_response_event(2.0, 3), 50)],
    [(randomised_response_event(0.01, 2), 10**5)],
    [(P(0.02, G(2.0)), 10_000)],
    [(P(0.00853, G(1.372)), 4680)],
    [(P(0.5, G(3.0)), 20)],
    [(P(1e-3, G(0.8)), 10**6)],
    [(G(10.0), 100), (L(20.0), 100)],
    [(P(0.01, G(1.0)), 10**4), (L(100.0), 10**4)],
]


@pytest.mark.thorough
@pytest.mark.parametrize("spent", OVERLAPS, ids=range(len(OVERLAPS)))
@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_renyi_lies_above_the_exact_composition_and_not_far(spent, delta):
    parts = parts_of(*spent)
    assert why_not(parts, delta) == ""
    exact, bound = composed_epsilon(parts, delta), renyi_epsilon(parts, delta)
    assert exact * (1 - 2e-3) <= bound <= 1.4 * exact


@pytest.mark.parametrize("event, count", [(L(20.0), 400), (L(1.0), 10**7), (P(0.02, G(2.0)), 10**4)])
def test_renyi_agrees_with_dp_accounting(event, count):
    reference = RdpAccountant().compose(event, count).get_epsilon(DELTA)
    assert 0.9 * reference <= renyi_epsilon(parts_of((event, count)), DELTA) <= reference * (1 + 1e-3)


def test_a_gaussians_bound_is_the_printed_formulas_least():
    """Canonne, Kamath and Steinke (2020, Prop. 12); the moments of mu = 1 are a (a - 1) / 2."""
    order = np.linspace(1.5, 20, 1_000_001)
    moments = order * (order - 1) / 2
    bounds = (moments + (order - 1) * np.log((order - 1) / order) - np.log(order * DELTA)) / (order - 1)
    assert 0 < bounds.argmin() < len(order) - 1
    bound = renyi_epsilon(parts_of((G(1.0), 1)), DELTA)
    assert bound == pytest.approx(bounds.min(), rel=1e-5) == pytest.approx(4.728387, rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_moments_of_laplace_noise_by_quadrature(epsilon):
    for order in (1.1, 2.0, 7.5):

        def integrand(x, order=order):
            return math.exp(-order * abs(x - 1) * epsilon + (order - 1) * abs(x) * epsilon) * epsilon / 2

        value = sum(quad(integrand, *ends)[0] for ends in ((-np.inf, 0), (0, 1), (1, np.inf)))
        assert laplace(epsilon, np.array([order - 1]))[0] == pytest.approx(math.log(value), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("choices", [2, 3, 10])
def test_moments_of_a_response_by_hand(choices):
    kept, flipped = (w / (math.exp(1.5) + choices - 1) for w in (math.exp(1.5), 1))
    for order in (1.01, 2.0, 30.0):
        value = kept**order * flipped ** (1 - order) + flipped**order * kept ** (1 - order) + (choices - 2) * flipped
        assert response(1.5, choices, np.array([order - 1]))[0] == pytest.approx(math.log(value), rel=1e-9)


@pytest.mark.parametrize("probability, multiplier", [(0.01, 1.0), (0.3, 2.0), (0.9, 0.7)])
def test_moments_of_sampling_by_quadrature(probability, multiplier):
    for order in (2.0, 5.0, 12.0):

        def integrand(x, order=order):
            ratio = 1 - probability + probability * math.exp((2 * x - 1) / (2 * multiplier**2))
            return ratio**order * math.exp(-x * x / (2 * multiplier**2)) / multiplier / math.sqrt(2 * math.pi)

        reach = 15 * multiplier
        value = sum(quad(integrand, at, at + 1, limit=200)[0] for at in np.arange(-reach, order + reach))
        assert sampled_gaussian(probability, multiplier, np.array([order - 1]))[0] == pytest.approx(
            math.log(value), rel=1e-6
        )
    between = sampled_gaussian(probability, multiplier, np.array([1.0, 1.5, 2.0]))
    assert between[1] == pytest.approx((between[0] + between[2]) / 2)
    assert sampled_gaussian(probability, multiplier, np.array([1e5]))[0] == math.inf
    assert renyi_epsilon(parts_of((P(1 - 1e-9, G(1e4)), 1)), DELTA) <= 1.5 * renyi_epsilon(parts_of((G(1e4), 1)), DELTA)


def test_what_is_too_much_is_left_to_other_bounds():
    many = parts_of(*[(P(0.01, G(1 + i / 1000)), 1) for i in range(500)])
    assert renyi_epsilon(many, DELTA) == math.inf
    assert renyi_epsilon(parts_of((L(1e200), 1)), DELTA) == math.inf


@pytest.mark.thorough
@pytest.mark.parametrize("rate, multiplier, count", [(0.01, 2.0, 1000), (0.05, 1.0, 100), (1e-3, 0.8, 10**5)])
def test_a_replaced_record_in_a_sample_lies_above_the_exact_composition_and_not_far(rate, multiplier, count):
    parts = parts_of((P(rate, G(multiplier)), count), replaced=True)
    exact = composed_epsilon(parts, DELTA)
    assert exact * (1 - 2e-3) <= renyi_epsilon(parts, DELTA) <= 2.2 * exact


def test_a_replaced_record_in_a_sample_is_no_cheaper_than_one_added():
    spent = [(P(0.01, G(2.0)), 1000)]
    assert renyi_epsilon(parts_of(*spent, replaced=True), DELTA) > renyi_epsilon(parts_of(*spent), DELTA)


def test_a_replaced_record_in_nearly_every_sample_costs_what_moving_the_sum_twice_as_far_does():
    """100 uses of z = 10, moved by 2: mu = 2, which bounds that forget to double would be far below."""
    exact = dp.get_epsilon_gaussian(1 / 2, DELTA)
    assert exact == pytest.approx(9.99726, rel=1e-5)
    assert exact <= renyi_epsilon(parts_of((P(1 - 1e-9, G(10.0)), 100), replaced=True), DELTA) <= 1.1 * exact
