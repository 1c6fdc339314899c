"""zCDP: its schedules of noise, its theorem's claim and where that is disputed, and solved budgets."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from baseline_runs import FREE, NO_NOISE, epsilon_of, refused, renyi_epsilon
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent

from baselines.zcdp import AUTHORS, LEAST, Zcdp, sampled_zcdp_epsilon
from bench.config import configure
from bench.dp_training.accounting import DpSgdParameters
from bench.privacy import Budget

ACCOUNTS = pytest.mark.parametrize("account", ["claimed", "accounted"])


def prv(multipliers: list[float], q: float, delta: float) -> float:
    """opacus' accountant (Gopi et al. 2021), whose own error is at most 0.01."""
    from opacus.accountants import PRVAccountant

    other = PRVAccountant()
    other.history = [(z, q, multipliers.count(z)) for z in sorted(set(multipliers))]
    return other.get_epsilon(delta)


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", ["exponential", pytest.param("polynomial", marks=pytest.mark.slow)])
def test_schedule_epsilon_matches_other_accountants(schedule: Any) -> None:
    plan = DpSgdParameters(0.02, 60, 1.5, Zcdp(schedule=schedule, epochs=2, k=0.4, period=2).scheduled(0.02))
    found = epsilon_of(plan.ledger())
    assert found == pytest.approx(prv(plan.multipliers(), 0.02, 1e-5), abs=0.02)
    steps = [PoissonSampledDpEvent(0.02, GaussianDpEvent(z)) for z in plan.multipliers()]
    bound = renyi_epsilon(ComposedDpEvent(steps))
    assert 0.6 * bound < found <= bound


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"schedule": "exponential", "k": math.log(2)}, [1, 1 / 2, 1 / 4, 1 / 8]),
        ({"schedule": "time", "k": 1.0}, [1, 1 / 2, 1 / 3, 1 / 4]),
        ({"schedule": "step", "k": 0.5, "period": 2}, [1, 1, 1 / 2, 1 / 2, 1 / 4]),
        ({"schedule": "polynomial", "k": 2.0, "period": 2, "final": 0.2}, [1, 0.4, 0.2, 0.2]),
        ({"schedule": "constant"}, [1, 1, 1]),
    ],
)
def test_schedules_by_hand(given: dict[str, Any], values: list[float]) -> None:
    method = Zcdp(**given)
    assert [method.factor(t) for t in range(len(values))] == pytest.approx(values)


@pytest.mark.parametrize(
    ("schedule", "passes"), [("exponential", 60), ("time", 50), ("step", 40), ("polynomial", 40), ("constant", 156)]
)
def test_authors_constants_spend_their_budget(schedule: Any, passes: int) -> None:
    """From sigma_0 = 10, rho = sum of 1 / (2 sigma_t^2) <= 0.78125: how many passes over the data that allows."""
    method = Zcdp(schedule=schedule)
    rho = np.cumsum([1 / (2 * (method.multiplier * method.factor(t)) ** 2) for t in range(200)])
    assert int((rho <= 0.78125).sum()) == passes
    assert set(AUTHORS) >= {schedule}


def test_paper_tier_is_60_exponential_passes() -> None:
    method = Zcdp()
    f = method.scheduled(600 / 60_000)
    z = DpSgdParameters(0.01, method.steps, method.multiplier, f).multipliers()
    assert len(z) == 6000 and len(set(z)) == 60
    assert z[99] == 10 and z[100] == pytest.approx(10 * math.exp(-0.0138)) and z[-1] > LEAST * z[0]


def test_time_counts_passes_or_equal_parts() -> None:
    by_pass = Zcdp(schedule="step", k=0.5, period=1).scheduled(0.24)
    assert [by_pass(step, 9) for step in range(9)] == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]
    by_part = Zcdp(schedule="step", k=0.5, period=1, epochs=2).scheduled(0.24)
    assert [by_part(step, 5) for step in range(5)] == [1, 1, 1, 0.5, 0.5]


def test_quick_noise_falls_as_far_as_the_papers() -> None:
    quick, paper = configure(Zcdp, "quick", {}, "method"), configure(Zcdp, "paper", {}, "method", "printed")
    assert quick.factor(quick.epochs - 1) == pytest.approx(paper.factor(59), rel=0.05)


@pytest.mark.thorough
def test_claim_below_the_account_is_disputed() -> None:
    """10,000 steps at q 0.01, delta 1e-5: of sigma 0.6 14.1 is claimed and 23.0 true; of sigma 2 it is larger."""
    little, much = DpSgdParameters(0.01, 10_000, 0.6), DpSgdParameters(0.01, 10_000, 2.0)
    claims = [Zcdp()._claim(parameters, 1e-5) for parameters in (little, much)]
    assert claims[0].epsilon == pytest.approx(14.1, abs=0.05) and little.epsilon(1e-5) == pytest.approx(23.0, abs=0.1)
    assert [claim.disputed for claim in claims] == ["lemma-without-its-conditions", ""]
    assert claims[1].epsilon > much.epsilon(1e-5)


@pytest.mark.parametrize(
    ("sampling", "sigmas", "covered"),
    [(0.01, (1.0, 6.2), True), (0.01, (0.99, 2.0), False), (0.01, (2.0, 6.3), False), (1.0, (4.0, 4.0), True)],
)
def test_claim_is_disputed_outside_the_lemma(sampling: float, sigmas: tuple[float, float], covered: bool) -> None:
    """sigma of at least 1 and q below 1 / (16 sigma), at every step; plain zCDP, of whole batches, needs no lemma."""
    first, last = sigmas
    steps = DpSgdParameters(sampling, 2, first, lambda step, _: last / first if step else 1.0)
    assert (Zcdp()._claim(steps, 1e-5).disputed == "") == covered


@pytest.mark.parametrize(("epochs", "sigma"), [(30, 4.38), (60, 6.19), (100, 8.00)])
def test_plain_zcdp_matches_the_published_values(epochs: int, sigma: float) -> None:
    """rho = 0.78197 gives 6.783; at q = 1 a pass is one Gaussian."""
    assert sampled_zcdp_epsilon([sigma] * epochs, 1.0, 1e-5) == pytest.approx(6.783, rel=2e-3)
    assert epsilon_of(DpSgdParameters(1.0, epochs, sigma).ledger()) == pytest.approx(5.68, rel=2e-3)


@pytest.mark.parametrize(
    ("multipliers", "q"), [([6.0] * 40_000, 0.01), ([1.0] * 5, 0.01), ([2.0, 1.0] * 400, 0.005), ([0.7] * 2000, 0.02)]
)
def test_theorem_uses_the_best_covered_order(multipliers: list[float], q: float) -> None:
    """By a search: min of rho alpha + log(1/delta) / (alpha - 1), alpha <= 1 + min sigma^2 ln(1/(q sigma))."""
    rho = sum(q * q / (s * s) for s in multipliers)
    excess = min(s * s * math.log(1 / (q * s)) for s in multipliers)
    alpha = 1 + np.linspace(1e-3, excess, 200_001)
    expected = float(np.min(rho * alpha - math.log(1e-5) / (alpha - 1)))
    assert sampled_zcdp_epsilon(multipliers, q, 1e-5) == pytest.approx(expected, rel=1e-4)


def test_both_branches_by_hand() -> None:
    """rho = 40,000 * 0.01^2 / 36 = 0.1111: 0.1111 + 2 sqrt(0.1111 * 11.513) = 2.373. One step of sigma 1: rho = 1e-4,
    u - 1 = ln 100 = 4.605, and 1e-4 * 5.605 + 11.513 / 4.605 = 2.5006."""
    assert sampled_zcdp_epsilon([6.0] * 40_000, 0.01, 1e-5) == pytest.approx(2.3730, abs=2e-4)
    assert sampled_zcdp_epsilon([1.0], 0.01, 1e-5) == pytest.approx(2.5006, abs=2e-4)


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 1.0])
def test_more_noise_never_claims_more(q: float) -> None:
    claimed = [sampled_zcdp_epsilon([float(s)] * 100, q, 1e-5) for s in np.geomspace(0.05, 5000, 120)]
    assert all(a >= b for a, b in pairwise(claimed)) and claimed[-1] < 0.5


@pytest.mark.parametrize("z", [0.0, 1e-12, 1e-320])
def test_noiseless_step_has_infinite_claim(z: float) -> None:
    assert math.isinf(sampled_zcdp_epsilon([1.0, z], 0.01, 1e-5))


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "holds"),
    [(0.01, 6.0, 2000, True), (0.1, 6.0, 500, True), (0.02, 1.0, 500, True), (0.01, 0.6, 10_000, False)],
)
def test_claim_exceeds_account_except_for_small_noise(q: float, sigma: float, steps: int, holds: bool) -> None:
    """The reason why the accounted epsilon is from the ledger, not from the theorem."""
    accounted = epsilon_of(DpSgdParameters(q, steps, sigma).ledger())
    assert (sampled_zcdp_epsilon([sigma] * steps, q, 1e-5) >= accounted) == holds


def planned(budget: Budget, **given: Any) -> DpSgdParameters:
    """Full batches for tests of the account: Gaussians only are accounted in closed form, which is fast."""
    batch = 10_000 if budget.account == "accounted" else 100
    method = Zcdp(**{"batch": batch, "steps": 200, "epochs": 4, "k": 0.3, **given})
    return method._calibrate(method.settings("mnist"), 10_000, budget)


def cost(plan: DpSgdParameters, against: str) -> float:
    if against == "claimed":
        return sampled_zcdp_epsilon(plan.multipliers(), plan.sampling, 1e-5)
    return epsilon_of(plan.ledger())


@ACCOUNTS
@pytest.mark.parametrize("target", [1.0, 3.0])
def test_budget_limits_the_chosen_account(account: Any, target: float) -> None:
    plan = planned(Budget(target, account=account))
    assert plan.steps == 200 and plan.sampling == (0.01 if account == "claimed" else 1.0)
    assert 0.97 * target < cost(plan, account) <= target
    assert cost(replace(plan, multiplier=plan.multiplier / 1.05), account) > target


def test_account_needs_less_noise_than_the_claim() -> None:
    plan = planned(Budget(1.0), epochs=2)
    assert cost(replace(plan, multiplier=0.9 * plan.multiplier), "accounted") < 1.0


@ACCOUNTS
def test_training_stops_when_the_budget_is_spent(account: Any) -> None:
    multiplier = 4.0 if account == "claimed" else 40.0
    plan = planned(Budget(1.0, account=account, solve="steps"), multiplier=multiplier, epochs=0, k=0.05)
    assert plan.multiplier == multiplier and plan.steps > 1
    assert cost(plan, account) <= 1.0 < cost(replace(plan, steps=plan.steps + 1), account)


@ACCOUNTS
def test_vanishing_schedule_ends_the_training(account: Any) -> None:
    """Full batches: a pass is a step, and the noise falls to nothing within any number of steps that is tried."""
    plan = planned(Budget(1.0, account=account, solve="steps"), batch=10_000, multiplier=100.0, epochs=0, k=1.0)
    assert 1 <= plan.steps < 10


@ACCOUNTS
def test_budget_without_steps_is_refused(account: Any) -> None:
    with refused("--solve steps"):
        planned(Budget(0.01, account=account, solve="steps"), multiplier=0.5)


@pytest.mark.parametrize(("budget", "z"), [(FREE, 10.0), (Budget(3.0, solve="none"), 10.0), (NO_NOISE, 0.0)])
def test_parameters_are_unchanged_if_nothing_is_solved(budget: Budget, z: float) -> None:
    assert planned(budget).multiplier == z
