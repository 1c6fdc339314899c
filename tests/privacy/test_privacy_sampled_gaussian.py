"""The sampled Gaussian's privacy losses by arrays equal those of dp_accounting point by point."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import integrate, stats

from bench.privacy._pld import sampled_gaussian

KINDS = [
    pytest.param(0.01, 1.0, 1e-3, id="as a training"),
    pytest.param(0.02, 0.6, 1e-3, id="little noise"),
    pytest.param(0.5, 0.4, 1e-2, id="half of all"),
    pytest.param(0.99, 0.2, 0.1, id="nearly all"),
    pytest.param(1e-6, 3.0, 1e-4, id="hardly any"),
    pytest.param(1e-12, 1e6, 1e-4, id="nothing"),
    pytest.param(0.1, 0.05, 0.5, id="hardly any noise"),
    pytest.param(0.01, 0.02, 2.0, id="losses whose exponential is no float"),
]


@pytest.mark.parametrize(("probability", "multiplier", "step"), KINDS)
def test_every_delta_is_that_of_dp_accounting(probability: float, multiplier: float, step: float) -> None:
    theirs = pld.from_gaussian_mechanism(multiplier, value_discretization_interval=step, sampling_prob=probability)
    ours = sampled_gaussian(probability, multiplier, step)
    largest = -math.log1p(-probability) + 1.5 / multiplier**2 + 3 / multiplier
    at = np.unique(np.concatenate([np.linspace(0, largest, 200), [0.0, step, 2 * step]]))
    np.testing.assert_allclose(ours.get_delta_for_epsilon(at), theirs.get_delta_for_epsilon(at), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("probability", "multiplier", "step"), KINDS[:2])
def test_a_composition_is_that_of_dp_accounting(probability: float, multiplier: float, step: float) -> None:
    theirs = pld.from_gaussian_mechanism(multiplier, value_discretization_interval=step, sampling_prob=probability)
    ours = sampled_gaussian(probability, multiplier, step)
    found, told = (losses.self_compose(200).get_epsilon_for_delta(1e-5) for losses in (ours, theirs))
    assert found == pytest.approx(told, rel=1e-8)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.2])
def test_a_delta_is_the_integral_of_what_exceeds_it(epsilon: float) -> None:
    """Return the sum of max(p - e^eps q, 0), the larger of the two directions; grid points are exact."""
    q, noise = 0.3, 0.9
    ours = sampled_gaussian(q, noise, 0.1).get_delta_for_epsilon(epsilon)
    plain, moved = stats.norm(0, noise).pdf, stats.norm(1, noise).pdf

    def mixed(x: float) -> float:
        return (1 - q) * plain(x) + q * moved(x)

    removed = integrate.quad(lambda x: max(mixed(x) - math.exp(epsilon) * plain(x), 0.0), -12, 12, limit=500)[0]
    added = integrate.quad(lambda x: max(plain(x) - math.exp(epsilon) * mixed(x), 0.0), -12, 12, limit=500)[0]
    assert ours == pytest.approx(max(removed, added), abs=1e-7)
