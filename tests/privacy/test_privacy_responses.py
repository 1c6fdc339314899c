"""Cost of randomised responses, and the largest epsilon that can be drawn."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from accountant_made import DELTA, RR, cost, epsilon_of_losses, ledger_of
from dp_accounting.pld import privacy_loss_distribution as pld

from bench.errors import BenchError
from bench.privacy import Unit, _pld, randomised_response_event
from bench.privacy._bounds import response_losses
from bench.privacy.accountant import account
from bench.privacy.events import check_response_epsilon, most_response_epsilon
from bench.privacy.mechanisms import flip_probability
from bench.privacy.noise import Noise


@pytest.mark.parametrize("each, counts", [(0.7, {2: 3}), (0.7, {10: 4}), (1.5, {2: 2, 5: 2}), (3.0, {3: 1})])
def test_response_losses_match_enumeration(each, counts):
    singles = []
    for choices, count in counts.items():
        kept = math.exp(each) / (math.exp(each) + choices - 1)
        flipped = 1 / (math.exp(each) + choices - 1)
        singles += [((-1, flipped), (0, 1 - kept - flipped), (1, kept))] * count
    expected = np.zeros(2 * len(singles) + 1)
    for outcome in product(*singles):
        expected[sum(loss for loss, _ in outcome) + len(singles)] += math.prod(p for _, p in outcome)
    first, found = response_losses(each, counts)
    assert first == -len(singles)
    np.testing.assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("each, choices, count", [(0.05, 10, 400), (0.5, 2, 60), (1.0, 3, 200)])
def test_responses_match_dp_accounting_composed_singly(each, choices, count):
    event = randomised_response_event(each, choices)
    reference = pld.from_randomized_response(event.noise_parameter, choices).self_compose(count)
    upper = reference.get_epsilon_for_delta(DELTA)
    found = cost((event, count))
    assert upper - 1e-4 * count <= found <= upper + 1e-6
    first, probabilities = response_losses(each, {choices: count})
    exact = epsilon_of_losses((first + np.arange(len(probabilities))) * each, probabilities, DELTA)
    assert found == pytest.approx(exact, abs=1e-5)


def test_responses_over_different_choices_share_one_grid():
    spent = [(randomised_response_event(1.0, choices), 100) for choices in (2, 3, 10)]
    assert cost(spent[0]) < cost(*spent) < sum(cost(each) for each in spent)
    assert cost(*spent) < 300


def test_responses_on_a_coarse_grid_are_rounded_up():
    groups = [(0.33, {10: 20}), (0.47, {3: 20})]
    (first, p), (second, q) = (response_losses(each, counts) for each, counts in groups)
    losses = (0.33 * (first + np.arange(len(p))))[:, None] + (0.47 * (second + np.arange(len(q))))[None, :]
    exact = epsilon_of_losses(losses.ravel(), np.outer(p, q).ravel(), DELTA)
    spent = [(randomised_response_event(each, k), n) for each, counts in groups for k, n in counts.items()]
    assert exact <= cost(*spent) <= exact + 3e-4
    with patch.object(_pld, "FINEST_GRID", 0.05):
        assert exact <= cost(*spent) <= exact + 0.1


@pytest.mark.parametrize("each, count", [(1.0, 40_000), (10.0, 5_000), (20.0, 50), (0.001, 10_000_000)])
def test_huge_response_ledgers_stay_below_the_pure_sum(each, count):
    spent = account(ledger_of((randomised_response_event(each, 10), count)), Unit.EXAMPLE, DELTA)
    mean = each * count * (math.exp(each) - 1) / (math.exp(each) + 9)
    assert mean * (1 - 1e-9) <= spent.epsilon <= each * count * (1 + 1e-9)


def test_responses_at_both_ends_cost_nothing_or_infinity():
    assert cost(RR(1.0, 10), RR(0.0, 1)) == 0.0
    assert cost(RR(0.0, 2)) == math.inf


@pytest.mark.parametrize("noise, choices", [(1e-10, 2), (1e-12, 10), (5e-324, 3)])
def test_responses_that_flip_below_the_limit_are_infinite(noise, choices):
    spent = account(ledger_of(RR(noise, choices)), Unit.EXAMPLE, DELTA)
    assert spent.epsilon == math.inf
    assert "2^-32" in spent.note
    least = randomised_response_event(most_response_epsilon(choices), choices)
    assert cost(least) == pytest.approx(most_response_epsilon(choices), rel=1e-9)


def drawn_epsilon(epsilon: float, choices: int) -> float:
    """Log of the ratio of two responses' probabilities as `Noise.chance` draws them, in exact arithmetic."""
    flip = Fraction(round(Fraction(float(flip_probability(epsilon, choices))) * 2**62), 2**62)
    return math.log((1 - flip) / flip * (choices - 1))


@pytest.mark.parametrize("choices", [2, 3, 10, 100, 1000, 4000])
def test_response_epsilon_up_to_the_limit_is_drawn_exactly(choices):
    most = most_response_epsilon(choices)
    assert float(flip_probability(most, choices)) == pytest.approx(2**-32, rel=1e-12)
    for epsilon in (most - step / 10 for step in range(200) if most > step / 10):
        assert abs(drawn_epsilon(epsilon, choices) - epsilon) < 2**-29
    kept = Fraction(1 / (1 + (choices - 1) * math.exp(-most - 16)))
    assert math.ceil(kept * 2**53) == 2**53, "a float64 uniform compared with the probability to keep never flips"


def test_noise_chance_draws_a_rare_flip_by_its_own_bits(monkeypatch):
    """A chance of 2^-32 is 2^30 of the 2^62 values that 62 bits have."""
    monkeypatch.setattr(Noise, "bits", lambda noise, count: torch.tensor([0, 2**31 - 1, 2**31, 2**63 - 1]))
    assert Noise("cpu", 0).chance(2.0**-32, 4).tolist() == [True, True, False, False]


BEYOND = [(22.2, 2), (40.0, 2), (40.0, 10), (1e6, 2), (1e300, 1000)]


@pytest.mark.parametrize("epsilon, choices", [*BEYOND, (-1.0, 2), (math.nan, 2), (1.0, 0), (1.0, -3)])
def test_response_epsilon_outside_its_range_is_refused(epsilon, choices):
    for refuse in (check_response_epsilon, randomised_response_event):
        with pytest.raises(BenchError) as caught:
            refuse(epsilon, choices)
        assert "\n" not in str(caught.value)


def test_response_without_noise_or_choice_is_accepted():
    check_response_epsilon(math.inf, 10)
    assert randomised_response_event(math.inf, 10).noise_parameter == 0.0
    check_response_epsilon(5000.0, 1)
    assert randomised_response_event(5000.0, 1).num_buckets == 1


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-17, 1e-16, 1e-15])
def test_response_event_of_a_tiny_epsilon_is_above_zero(epsilon):
    event = randomised_response_event(epsilon, 10)
    assert 0 < event.noise_parameter < 1
    assert math.log1p(10 * (1 - event.noise_parameter) / event.noise_parameter) >= epsilon
    assert randomised_response_event(0.0, 10).noise_parameter == 1.0
