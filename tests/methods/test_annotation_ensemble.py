"""What many teachers' answers cost, with and without class moments, against a closed form written down here."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import optimize, stats

from bench.distillation.noisy_labels import Mechanism, Plan, solve
from bench.errors import BenchError
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.accountant import epsilon
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpsd.dpsd import Dpsd

DELTA = 1e-5
SUMS = Mechanism(
    "data", batch=1, classes=10, per_row=True, wide=0, printed=False, teacher_trains_generator=False, teachers=50
)
PLAN = Plan(k=3, beta=1e-3, sigma=100.0, answer_epsilon=1.0, iterations=200)
MANY = pytest.mark.parametrize("votes", [False, True], ids=["gradients", "votes"])
PRIOR = pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])


def gaussian_epsilon(mu: float) -> float:
    """Balle and Wang (2018): delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""

    def log_excess(e: float) -> float:
        upper, lower = stats.norm.logcdf(mu / 2 - e / mu), e + stats.norm.logcdf(-mu / 2 - e / mu)
        return upper + math.log1p(-math.exp(lower - upper)) - math.log(DELTA)

    return optimize.brentq(log_excess, 1e-9, 200.0, xtol=1e-12)


def mu_squared(ledger: Ledger, unit: Unit = Unit.EXAMPLE) -> list[float]:
    """Of every entry: count / multiplier^2."""
    found = []
    for entry in ledger.entries(unit):
        assert isinstance(entry.event, GaussianDpEvent)
        found.append(entry.count / entry.event.noise_multiplier**2)
    return found


@pytest.mark.parametrize(("queries", "sigma", "expected"), [(1000, 240, 0.981), (1000, 32, 9.852), (100, 75, 0.994)])
def test_the_golden_values(queries: int, sigma: float, expected: float) -> None:
    """privacy.md, "Many teachers on disjoint shards"."""
    ledger = SUMS.ledger(replace(PLAN, sigma=float(sigma), iterations=queries))
    assert epsilon(ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(expected, abs=5e-4)
    assert gaussian_epsilon(math.sqrt(queries) * 2 / sigma) == pytest.approx(expected, abs=5e-4)


@MANY
@pytest.mark.parametrize("batch", [1, 7])
def test_every_answer_is_counted_with_its_own_sensitivity(votes: bool, batch: int) -> None:
    """One teacher moves a sum of gradients by 2 beta, its noise being sigma beta; vote counts by sqrt 2."""
    mechanism = replace(SUMS, votes=votes, batch=batch)
    (entry,) = mechanism.ledger(PLAN).entries(Unit.EXAMPLE)
    assert entry.event == GaussianDpEvent(100 / (math.sqrt(2) if votes else 2)) and entry.count == 200 * batch


@MANY
def test_what_a_record_costs_does_not_depend_on_how_many_teachers_there_are(votes: bool) -> None:
    ledgers = [replace(SUMS, votes=votes, teachers=n).ledger(PLAN) for n in (1, 3, 1000)]
    assert len({tuple(mu_squared(ledger)) for ledger in ledgers}) == 1


@MANY
@pytest.mark.parametrize("teachers", [1, 50])
def test_another_synthetic_image_may_change_every_teachers_answer(votes: bool, teachers: int) -> None:
    (entry,) = replace(SUMS, votes=votes, teachers=teachers).ledger(PLAN).entries(Unit.QUERY)
    assert entry.count == 1
    assert entry.event == GaussianDpEvent(100 / (teachers * (math.sqrt(2) if votes else 2)))


@MANY
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("batch", [1, 16])
def test_the_moments_take_exactly_their_share(votes: bool, share: float, batch: int) -> None:
    mechanism = replace(SUMS, votes=votes, batch=batch, prior_share=share)
    answers, moments = mu_squared(mechanism.ledger(PLAN))
    assert moments / (answers + moments) == pytest.approx(share, rel=1e-12)
    assert answers == pytest.approx(200 * batch * ((math.sqrt(2) if votes else 2) / 100) ** 2)
    assert 1 / mechanism.prior_multiplier(PLAN) ** 2 == pytest.approx(moments)
    assert mu_squared(mechanism.ledger(PLAN), Unit.QUERY) == mu_squared(
        replace(mechanism, prior_share=0.0).ledger(PLAN), Unit.QUERY
    )


@MANY
@PRIOR
@pytest.mark.parametrize("sigma", [30.0, 100.0, 1000.0])
def test_the_accountant_agrees_with_the_closed_form(votes: bool, share: float, sigma: float) -> None:
    mechanism = replace(SUMS, votes=votes, batch=4, prior_share=share)
    ledger = mechanism.ledger(replace(PLAN, sigma=sigma))
    expected = gaussian_epsilon(math.sqrt(sum(mu_squared(ledger))))
    assert epsilon(ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(expected, rel=1e-6)


@MANY
@PRIOR
@pytest.mark.parametrize("target", [0.05, 1.0, 8.0])
def test_the_budget_is_met_and_used(votes: bool, share: float, target: float) -> None:
    mechanism, budget = replace(SUMS, votes=votes, batch=256, prior_share=share), Budget(target, account="accounted")
    plan = solve(mechanism, replace(PLAN, iterations=40), budget)
    spent = epsilon(mechanism.ledger(plan), Unit.EXAMPLE, DELTA).epsilon
    assert target * (1 - 1e-3) <= spent <= target
    assert plan.iterations == 40


def test_a_share_for_the_moments_costs_noise_on_the_answers() -> None:
    budget = Budget(8.0, account="accounted")
    alone, shared = (solve(replace(SUMS, prior_share=share), PLAN, budget).sigma for share in (0.0, 0.75))
    assert shared == pytest.approx(2 * alone, rel=1e-3), "a quarter of mu^2 is twice the noise"


def test_solving_for_steps_stops_before_one_too_many() -> None:
    mechanism, budget = replace(SUMS, batch=16, prior_share=0.3), Budget(4.0, account="accounted", solve="steps")
    plan = solve(mechanism, PLAN, budget)
    assert plan.sigma == PLAN.sigma
    assert mechanism.cost(plan, budget) <= 4 < mechanism.cost(replace(plan, iterations=plan.iterations + 1), budget)


@pytest.mark.parametrize("epsilon_", [1.0, 8.0])
@pytest.mark.parametrize("solve_", ["sigma", "steps", "none"])
def test_no_theorem_no_claim(epsilon_: float, solve_: Any) -> None:
    assert SUMS.claim(PLAN, DELTA) is None
    with pytest.raises(BenchError) as refused:
        solve(SUMS, PLAN, Budget(epsilon_, account="claimed", solve=solve_))
    said = str(refused.value)
    assert "\n" not in said and "--teachers 50" in said and "--account claimed" in said and "accounted" in said


@pytest.mark.parametrize("method", [Dpsd(teachers=7), Dpdfd(teachers=7)], ids=["dpsd", "dpdfd"])
def test_methods_refuse_a_claimed_budget_before_anything_is_trained(method: Any) -> None:
    with pytest.raises(BenchError, match="--teachers 7"):
        method.check(Budget(10.0), "mnist", 10)
    method.check(Budget(10.0, account="accounted"), "mnist", 10)


@MANY
@PRIOR
def test_without_noise_nothing_is_proved(votes: bool, share: float) -> None:
    mechanism = replace(SUMS, votes=votes, prior_share=share)
    for account in ("claimed", "accounted"):
        free = solve(mechanism, PLAN, Budget(math.inf, account=account))  # type: ignore[arg-type]
        assert free.sigma == 0
        for unit in (Unit.EXAMPLE, Unit.QUERY):
            entries = mechanism.ledger(free).entries(unit)
            assert entries and all(isinstance(entry.event, NonPrivateDpEvent) for entry in entries)
    assert len(mechanism.ledger(free).entries(Unit.EXAMPLE)) == (2 if share else 1)
    if share:
        assert mechanism.prior_multiplier(free) == 0


@MANY
@PRIOR
def test_one_answer_is_one_answer_whatever_else_is_released(votes: bool, share: float) -> None:
    mechanism = replace(SUMS, votes=votes, batch=256, prior_share=share)
    assert mu_squared(mechanism.answer_ledger(PLAN)) == [pytest.approx(((math.sqrt(2) if votes else 2) / 100) ** 2)]


@pytest.mark.parametrize("method", [Dpsd, Dpdfd])
@pytest.mark.parametrize(("queries", "batches"), [(0, 3), (1, 1), (16, 1), (17, 2), (160, 10)])
def test_queries_are_rounded_up_to_batches_and_only_with_many_teachers(method: Any, queries: int, batches: int) -> None:
    assert method(teachers=2, batch=16, iterations=3, queries=queries).batches == batches
    assert method(batch=16, iterations=3, queries=queries).batches == 3


@pytest.mark.parametrize("method", [Dpsd, Dpdfd])
def test_the_moments_have_no_share_without_many_teachers_or_without_a_prior(method: Any) -> None:
    assert method(teachers=2, prior="moments", prior_share=0.3).share == 0.3
    assert method(teachers=2, prior_share=0.3).share == 0 == method(prior="moments", prior_share=0.3).share


@pytest.mark.parametrize("method", [Dpsd, Dpdfd])
@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, {"teacher"}),
        ({"prior": "moments"}, {"teacher"}),
        ({"teachers": 2}, {"teacher_ensemble"}),
        ({"teachers": 2, "prior": "moments"}, {"teacher_ensemble", "private_data"}),
    ],
    ids=str,
)
def test_a_method_asks_for_no_more_private_things_than_it_uses(
    method: Any, fields: dict[str, Any], needs: set[str]
) -> None:
    assert method(**fields).needs == needs


@pytest.mark.parametrize("method", [Dpsd, Dpdfd])
@pytest.mark.parametrize(
    "wrong",
    [
        *({"teachers": -1}, {"queries": -1}, {"teacher_lr": 0.0}, {"teacher_steps": 0}, {"prior_weight": -0.1}),
        *({"prior_share": 0.0}, {"prior_share": 1.0}, {"prior_share": math.nan}),
    ],
    ids=str,
)
def test_impossible_fields_are_refused(method: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        method(**wrong)
