"""Cost of DP-SGD: its ledger against other accountants, and the parameters that a budget determines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_sgd_made import PLAIN
from scipy import stats

from bench.dp_training.accounting import DpSgdParameters, calibrate
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account


def rdp_epsilon(q: float, z: float, steps: int, delta: float) -> float:
    accountant = RdpAccountant()
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(z)), steps))
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(("q", "z", "steps"), [(0.02, 2.0, 600), (0.5, 5.0, 80)])
def test_epsilon_is_below_and_near_renyi(q: float, z: float, steps: int) -> None:
    found = account(DpSgdParameters(q, steps, z).ledger(), Unit.EXAMPLE, 1e-5).epsilon
    bound = rdp_epsilon(q, z, steps, 1e-5)
    assert 0.9 * bound < found <= bound


def test_epsilon_matches_another_accountant() -> None:
    """opacus' PRV accountant (Gopi et al. 2021), whose own error is at most 0.01."""
    from opacus.accountants import PRVAccountant

    other = PRVAccountant()
    other.history = [(1.0, 0.004, 1000)]
    assert account(DpSgdParameters(0.004, 1000, 1.0).ledger(), Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(
        other.get_epsilon(1e-5), abs=0.02
    )


def test_epsilon_without_sampling_is_the_gaussian() -> None:
    """q = 1: delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = sqrt(T) / z (Balle and Wang 2018)."""
    steps, z = 50, 10.0
    found = account(DpSgdParameters(1.0, steps, z).ledger(), Unit.EXAMPLE, 1e-5).epsilon
    mu = math.sqrt(steps) / z
    delta = stats.norm.cdf(mu / 2 - found / mu) - math.exp(found) * stats.norm.cdf(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


def test_ledger_has_every_noise_of_a_schedule() -> None:
    plan = DpSgdParameters(0.1, 5, 2.0, lambda step, steps: 1.0 if step < 2 else 0.5)
    entries = plan.ledger().entries(Unit.EXAMPLE)
    assert sorted((e.event.event.noise_multiplier, e.count) for e in entries) == [(1.0, 3), (2.0, 2)]
    assert plan.multipliers() == [2.0, 2.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("target", "records"), [(1.0, 100), (8.0, 50)])
def test_budget_determines_the_noise(target: float, records: int) -> None:
    plan = calibrate(replace(PLAIN, batch=50, steps=40).parameters(records), Budget(target))
    assert plan.sampling == 50 / records and plan.steps == 40
    spent = plan.claim(1e-5, "x").epsilon
    assert 0.97 * target < spent <= target
    assert replace(plan, multiplier=plan.multiplier / 1.1).claim(1e-5, "x").epsilon > target


def test_budget_determines_the_steps() -> None:
    plan = calibrate(replace(PLAIN, batch=50, multiplier=20.0).parameters(50), Budget(1.0, solve="steps"))
    assert plan.multiplier == 20.0 and plan.steps > 1
    assert plan.claim(1e-5, "x").epsilon <= 1.0 < replace(plan, steps=plan.steps + 1).claim(1e-5, "x").epsilon


@pytest.mark.parametrize(
    ("budget", "z"), [(Budget(None, solve="none"), 0.7), (Budget(3.0, solve="none"), 0.7), (Budget(math.inf), 0.0)]
)
def test_parameters_are_unchanged_if_nothing_is_solved(budget: Budget, z: float) -> None:
    assert calibrate(replace(PLAIN, multiplier=0.7).parameters(100), budget).multiplier == z


def test_noiseless_release_has_infinite_epsilon() -> None:
    assert math.isinf(DpSgdParameters(0.1, 5, 0.0).claim(1e-5, "x").epsilon)


def test_sampling_rate_is_at_most_one() -> None:
    assert calibrate(replace(PLAIN, batch=500).parameters(100), Budget(math.inf)).sampling == 1.0


@pytest.mark.parametrize(
    ("budget", "named"),
    [(Budget(1.0, unit=Unit.QUERY), "example"), (Budget(0.001, solve="steps"), "--solve steps")],
)
def test_budget_that_cannot_be_met_is_refused(budget: Budget, named: str) -> None:
    with pytest.raises(BenchError, match=named) as caught:
        calibrate(replace(PLAIN, multiplier=0.5).parameters(8), budget)
    assert "\n" not in str(caught.value)
