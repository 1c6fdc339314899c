"""Cost of randomised responses: losses by enumeration, many of them, huge ledgers."""

from __future__ import annotations

import math
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from accountant_made import DELTA, RR, cost, epsilon_of_losses, ledger_of
from dp_accounting.pld import privacy_loss_distribution as pld

from bench.privacy import Unit, _pld, randomised_response_event
from bench.privacy._bounds import response_losses
from bench.privacy.accountant import account
from bench.privacy.events import most_response_epsilon

# Randomised response


@pytest.mark.parametrize("each, counts", [(0.7, {2: 3}), (0.7, {10: 4}), (1.5, {2: 2, 5: 2}), (3.0, {3: 1})])
def test_losses_of_randomised_response_by_enumeration(each, counts):
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
def test_many_responses_match_dp_accounting_composed_one_by_one(each, choices, count):
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


def test_a_coarse_grid_only_ever_rounds_up():
    groups = [(0.33, {10: 20}), (0.47, {3: 20})]
    (first, p), (second, q) = (response_losses(each, counts) for each, counts in groups)
    losses = (0.33 * (first + np.arange(len(p))))[:, None] + (0.47 * (second + np.arange(len(q))))[None, :]
    exact = epsilon_of_losses(losses.ravel(), np.outer(p, q).ravel(), DELTA)
    spent = [(randomised_response_event(each, k), n) for each, counts in groups for k, n in counts.items()]
    assert exact <= cost(*spent) <= exact + 3e-4
    with patch.object(_pld, "FINEST_GRID", 0.05):
        assert exact <= cost(*spent) <= exact + 0.1


@pytest.mark.parametrize("each, count", [(1.0, 40_000), (10.0, 5_000), (20.0, 50), (0.001, 10_000_000)])
def test_huge_response_ledgers_stay_cheap_and_below_the_pure_sum(each, count):
    spent = account(ledger_of((randomised_response_event(each, 10), count)), Unit.EXAMPLE, DELTA)
    mean = each * count * (math.exp(each) - 1) / (math.exp(each) + 9)
    assert mean * (1 - 1e-9) <= spent.epsilon <= each * count * (1 + 1e-9)


def test_answers_that_say_nothing_cost_nothing_and_answers_that_say_all_cost_all():
    assert cost(RR(1.0, 10), RR(0.0, 1)) == 0.0
    assert cost(RR(0.0, 2)) == math.inf


@pytest.mark.parametrize("noise, choices", [(1e-10, 2), (1e-12, 10), (5e-324, 3)])
def test_answers_that_flip_less_often_than_random_numbers_can_are_infinite_with_a_reason(noise, choices):
    spent = account(ledger_of(RR(noise, choices)), Unit.EXAMPLE, DELTA)
    assert spent.epsilon == math.inf
    assert "2^-32" in spent.note
    least = randomised_response_event(most_response_epsilon(choices), choices)
    assert cost(least) == pytest.approx(most_response_epsilon(choices), rel=1e-9)
