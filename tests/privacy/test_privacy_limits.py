from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from bench.errors import BenchError
from bench.privacy import randomised_response_event
from bench.privacy.events import check_response_epsilon, most_response_epsilon
from bench.privacy.mechanisms import flip_probability
from bench.privacy.noise import Noise


def drawn_epsilon(epsilon: float, choices: int) -> float:
    """log of the ratio of two answers' probabilities as `Noise.chance` delivers it, in exact arithmetic."""
    flip = Fraction(round(Fraction(float(flip_probability(epsilon, choices))) * 2**62), 2**62)
    return math.log((1 - flip) / flip * (choices - 1))


def compared_epsilon(epsilon: float, choices: int) -> float:
    """The same where a float64 uniform is compared with the chance to keep the label, as the bench once did."""
    kept = Fraction(1 / (1 + (choices - 1) * math.exp(-epsilon)))
    kept = Fraction(math.ceil(kept * 2**53), 2**53)
    return math.inf if kept == 1 else math.log(kept / (1 - kept) * (choices - 1))


@pytest.mark.parametrize("choices", [2, 3, 10, 100, 1000, 4000])
def test_below_the_limit_the_drawn_ratio_is_the_one_promised(choices):
    most = most_response_epsilon(choices)
    for step in range(200):
        epsilon = most - step / 10
        if epsilon > 0:
            assert abs(drawn_epsilon(epsilon, choices) - epsilon) < 2**-29
    assert compared_epsilon(most + 16, choices) == math.inf, "the limit is not idle"


def test_a_rare_flip_is_drawn_by_its_own_bits(monkeypatch):
    """A chance of 2^-32 is 2^30 of the 2^62 values that 62 bits have."""
    monkeypatch.setattr(Noise, "bits", lambda noise, count: torch.tensor([0, 2**31 - 1, 2**31, 2**63 - 1]))
    assert Noise("cpu", 0).chance(2.0**-32, 4).tolist() == [True, True, False, False]


def test_the_limit_is_a_chance_to_flip_of_two_to_the_minus_32():
    for choices in (2, 10, 1000):
        odds = (choices - 1) * math.exp(-most_response_epsilon(choices))
        assert odds / (1 + odds) == pytest.approx(2**-32, rel=1e-12)


@pytest.mark.parametrize("epsilon, choices", [(22.2, 2), (40.0, 2), (40.0, 10), (1e6, 2), (1e300, 1000)])
def test_what_random_numbers_do_not_deliver_is_refused_in_one_line(epsilon, choices):
    with pytest.raises(BenchError, match="expected at most") as caught:
        randomised_response_event(epsilon, choices)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("epsilon, choices", [(-1.0, 2), (math.nan, 2), (1.0, 0), (1.0, -3)])
def test_values_outside_of_their_ranges_are_refused(epsilon, choices):
    with pytest.raises(BenchError):
        check_response_epsilon(epsilon, choices)
    with pytest.raises(BenchError):
        randomised_response_event(epsilon, choices)


def test_answers_without_noise_and_answers_of_one_choice_pass():
    check_response_epsilon(math.inf, 10)
    assert randomised_response_event(math.inf, 10).noise_parameter == 0.0
    check_response_epsilon(5000.0, 1)
    assert randomised_response_event(5000.0, 1).num_buckets == 1


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-17, 1e-16, 1e-15])
def test_a_small_epsilon_is_never_written_down_as_none(epsilon):
    event = randomised_response_event(epsilon, 10)
    assert 0 < event.noise_parameter < 1
    assert math.log1p(10 * (1 - event.noise_parameter) / event.noise_parameter) >= epsilon
    assert randomised_response_event(0.0, 10).noise_parameter == 1.0
