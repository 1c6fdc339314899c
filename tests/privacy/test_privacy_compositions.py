"""Bounds of compositions: Renyi divergence and privacy loss distributions, against each other and by quadrature."""

from __future__ import annotations

import math

import dp_accounting as dp
import numpy as np
import pytest
from accountant_made import DELTA, G, L, P, ledger_of
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from scipy import stats
from scipy.integrate import quad

from bench.privacy import randomised_response_event
from bench.privacy._pld import composed_epsilon, why_not
from bench.privacy._pld import sampled_gaussian as sampled_losses
from bench.privacy._rdp import laplace, renyi_epsilon, response, sampled_gaussian
from bench.privacy.composition import decompose


def parts_of(*spent, replaced=False):
    return decompose(ledger_of(*spent).entries(), unit_replaced=replaced)


OVERLAPS = [
    [(L(20.0), 400)], [(L(1.0), 100)], [(L(1000.0), 10**6)],
    [(randomised_response_event(0.05, 10), 400)], [(randomised_response_event(2.0, 3), 50)],
    [(randomised_response_event(0.01, 2), 10**5)],
    [(P(0.02, G(2.0)), 10_000)], [(P(0.00853, G(1.372)), 4680)], [(P(0.5, G(3.0)), 20)], [(P(1e-3, G(0.8)), 10**6)],
    [(G(10.0), 100), (L(20.0), 100)], [(P(0.01, G(1.0)), 10**4), (L(100.0), 10**4)],
]  # fmt: skip
REPLACED = [(P(0.01, G(2.0)), 1000), (P(0.05, G(1.0)), 100), (P(1e-3, G(0.8)), 10**5)]


@pytest.mark.thorough
@pytest.mark.parametrize("spent", OVERLAPS, ids=range(len(OVERLAPS)))
@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_rdp_bounds_the_exact_composition_within_40_percent(spent, delta):
    parts = parts_of(*spent)
    assert why_not(parts, delta) == ""
    exact = composed_epsilon(parts, delta)
    assert exact * (1 - 2e-3) <= renyi_epsilon(parts, delta) <= 1.4 * exact


@pytest.mark.thorough
@pytest.mark.parametrize("spent", REPLACED, ids=str)
def test_rdp_of_a_replaced_sampled_record_bounds_the_exact(spent):
    exact = composed_epsilon(parts_of(spent, replaced=True), DELTA)
    assert exact * (1 - 2e-3) <= renyi_epsilon(parts_of(spent, replaced=True), DELTA) <= 2.2 * exact


@pytest.mark.parametrize("event, count", [(L(20.0), 400), (L(1.0), 10**7), (P(0.02, G(2.0)), 10**4)])
def test_rdp_agrees_with_dp_accounting(event, count):
    reference = RdpAccountant().compose(event, count).get_epsilon(DELTA)
    assert 0.9 * reference <= renyi_epsilon(parts_of((event, count)), DELTA) <= reference * (1 + 1e-3)


def test_rdp_of_a_gaussian_is_the_published_minimum():
    """Canonne, Kamath and Steinke (2020, Prop. 12); the moments of mu = 1 are a (a - 1) / 2."""
    order = np.linspace(1.5, 20, 1_000_001)
    moments = order * (order - 1) / 2
    bounds = (moments + (order - 1) * np.log((order - 1) / order) - np.log(order * DELTA)) / (order - 1)
    assert 0 < bounds.argmin() < len(order) - 1
    bound = renyi_epsilon(parts_of((G(1.0), 1)), DELTA)
    assert bound == pytest.approx(bounds.min(), rel=1e-5) == pytest.approx(4.728387, rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_rdp_of_laplace_matches_quadrature(epsilon):
    for order in (1.1, 2.0, 7.5):

        def integrand(x, order=order):
            return math.exp(-order * abs(x - 1) * epsilon + (order - 1) * abs(x) * epsilon) * epsilon / 2

        value = sum(quad(integrand, *ends)[0] for ends in ((-np.inf, 0), (0, 1), (1, np.inf)))
        assert laplace(epsilon, np.array([order - 1]))[0] == pytest.approx(math.log(value), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("choices", [2, 3, 10])
def test_rdp_of_randomised_response_matches_its_definition(choices):
    kept, flipped = (w / (math.exp(1.5) + choices - 1) for w in (math.exp(1.5), 1))
    for order in (1.01, 2.0, 30.0):
        value = kept**order * flipped ** (1 - order) + flipped**order * kept ** (1 - order) + (choices - 2) * flipped
        assert response(1.5, choices, np.array([order - 1]))[0] == pytest.approx(math.log(value), rel=1e-9)


@pytest.mark.parametrize("probability, multiplier", [(0.01, 1.0), (0.3, 2.0), (0.9, 0.7)])
def test_rdp_of_a_sampled_gaussian_matches_quadrature(probability, multiplier):
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


def test_rdp_of_too_many_kinds_is_infinite():
    many = parts_of(*[(P(0.01, G(1 + i / 1000)), 1) for i in range(500)])
    assert renyi_epsilon(many, DELTA) == math.inf
    assert renyi_epsilon(parts_of((L(1e200), 1)), DELTA) == math.inf


def test_rdp_of_a_replaced_record_exceeds_a_removed_one():
    spent = [(P(0.01, G(2.0)), 1000)]
    assert renyi_epsilon(parts_of(*spent, replaced=True), DELTA) > renyi_epsilon(parts_of(*spent), DELTA)


def test_rdp_of_a_replaced_record_doubles_the_sensitivity():
    """100 uses of z = 10, moved by 2: mu = 2, which bounds that forget to double would be far below."""
    exact = dp.get_epsilon_gaussian(1 / 2, DELTA)
    assert exact == pytest.approx(9.99726, rel=1e-5)
    assert exact <= renyi_epsilon(parts_of((P(1 - 1e-9, G(10.0)), 100), replaced=True), DELTA) <= 1.1 * exact


SAMPLED = [
    (0.01, 1.0, 1e-3), (0.02, 0.6, 1e-3), (0.5, 0.4, 1e-2), (0.99, 0.2, 0.1), (1e-6, 3.0, 1e-4), (1e-12, 1e6, 1e-4),
    (0.1, 0.05, 0.5), (0.01, 0.02, 2.0),
]  # fmt: skip
"""Sampling probability, noise multiplier, step of the grid; the exponential of the last one's losses overflows."""


@pytest.mark.parametrize(("probability", "multiplier", "step"), SAMPLED)
def test_pld_of_a_sampled_gaussian_is_dp_accountings(probability: float, multiplier: float, step: float) -> None:
    theirs = pld.from_gaussian_mechanism(multiplier, value_discretization_interval=step, sampling_prob=probability)
    ours = sampled_losses(probability, multiplier, step)
    largest = -math.log1p(-probability) + 1.5 / multiplier**2 + 3 / multiplier
    at = np.unique(np.concatenate([np.linspace(0, largest, 200), [0.0, step, 2 * step]]))
    np.testing.assert_allclose(ours.get_delta_for_epsilon(at), theirs.get_delta_for_epsilon(at), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.2])
def test_pld_delta_is_the_integral_in_both_directions(epsilon: float) -> None:
    """The larger integral of max(p - e^eps q, 0), of a removed and of an added record; grid points are exact."""
    q, noise = 0.3, 0.9
    plain, moved = stats.norm(0, noise).pdf, stats.norm(1, noise).pdf

    def excess(x: float, removed: bool) -> float:
        mixed = (1 - q) * plain(x) + q * moved(x)
        return max(mixed - math.exp(epsilon) * plain(x) if removed else plain(x) - math.exp(epsilon) * mixed, 0.0)

    deltas = [quad(excess, -12, 12, args=(removed,), limit=500)[0] for removed in (True, False)]
    assert sampled_losses(q, noise, 0.1).get_delta_for_epsilon(epsilon) == pytest.approx(max(deltas), abs=1e-7)
