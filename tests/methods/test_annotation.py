"""Cost of annotation and of the sums of many teachers, against golden values, and calibration."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent
from scipy import optimize, stats

from bench.distillation.noisy_labels import (
    FEWEST,
    AnnotationMechanism,
    AnnotationParameters,
    calibrate,
    limit_queries,
    paper_beta,
)
from bench.errors import BenchError
from bench.privacy import Budget, Ledger, Relation, Unit
from bench.privacy.accountant import account
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpdfd.working import WorkingDpdfd

READABLE = 0.5
"""The default of `max_noise`."""

ROWS = AnnotationMechanism("data", batch=256, classes=10)
LABELS = replace(ROWS, mode="label", batch=4)
ONES = replace(ROWS, batch=1)
SUMS = replace(ONES, teachers=50)
PARAMETERS = AnnotationParameters(k=3, beta=1e-3, sigma=100.0, answer_epsilon=1.0, iterations=200)
UNITS = (Unit.EXAMPLE, Unit.QUERY)


@pytest.mark.parametrize(
    ("mechanism", "steps", "expected"),
    [(ROWS, 200, 28.84), (ROWS, 40_000, 2319.98), (replace(ROWS, per_row=False), 200, 2929)],
)
def test_ledger_of_one_teacher_by_hand(mechanism: AnnotationMechanism, steps: int, expected: float) -> None:
    ledger = mechanism.ledger(replace(PARAMETERS, iterations=steps))
    assert account(ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("beta", "steps", "expected"), [(1e-3, 200, 0.0456), (1e-3, 40_000, 0.8046), (5e-3, 40_000, 4.7933)]
)
def test_claim_is_theorem_1(beta: float, steps: int, expected: float) -> None:
    claim = ROWS.claim(replace(PARAMETERS, beta=beta, iterations=steps), 1e-5)
    assert claim.epsilon == pytest.approx(expected, abs=1e-4) and claim.unit == Unit.QUERY


def test_beta_changes_only_the_claim() -> None:
    small, large = replace(PARAMETERS, beta=1e-5), replace(PARAMETERS, beta=1.0)
    assert ROWS.claim(small, 1e-5).epsilon < ROWS.claim(large, 1e-5).epsilon
    assert ROWS.ledger(small).to_json() == ROWS.ledger(large).to_json()


def test_query_costs_less_than_example() -> None:
    ledger = ROWS.ledger(PARAMETERS)
    assert account(ledger, Unit.QUERY, 1e-5).epsilon < account(ledger, Unit.EXAMPLE, 1e-5).epsilon


def test_label_mode_composes_over_all_responses() -> None:
    ledger = LABELS.ledger(replace(PARAMETERS, iterations=2))
    assert account(ledger, Unit.QUERY, 1e-5).epsilon == pytest.approx(1.0)
    assert account(ledger, Unit.EXAMPLE, 1e-12).epsilon == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize(
    ("mechanism", "unit"),
    [
        (replace(LABELS, response_as_printed=True), Unit.EXAMPLE),
        *[(replace(each, teacher_trains_generator=True), unit) for each in (ROWS, LABELS) for unit in UNITS],
    ],
)
def test_infinite_epsilon_is_refused(mechanism: AnnotationMechanism, unit: Unit) -> None:
    """Eq. 5 as printed, and DPSD-T, where the teacher also gets the image with gradients, which train the release."""
    assert math.isinf(account(mechanism.ledger(PARAMETERS), unit, 1e-5).epsilon)
    with pytest.raises(BenchError, match="--account accounted"):
        calibrate(mechanism, PARAMETERS, Budget(8.0, account="accounted", unit=unit))


def test_ledger_relation_of_clients_and_teacher() -> None:
    clients = replace(LABELS, clients=10)
    for mechanism, relation in ((LABELS, Relation.REPLACE_ONE), (clients, Relation.ADD_OR_REMOVE_ONE)):
        found = account(mechanism.ledger(replace(PARAMETERS, iterations=2)), Unit.EXAMPLE, 1e-12)
        assert found.relation is relation and found.epsilon == pytest.approx(8.0, rel=1e-3)
    assert account(clients.ledger(PARAMETERS), Unit.CLIENT, 1e-12).relation is Relation.REPLACE_ONE


@pytest.mark.parametrize(
    ("mechanism", "against"),
    [
        *[
            (each, against)
            for each in (ROWS, replace(ROWS, per_row=False), LABELS)
            for against in ("claimed", "accounted")
        ],
        (replace(SUMS, batch=256), "accounted"),
    ],
)
@pytest.mark.parametrize("target", [0.05, 0.5, 10.0])
def test_calibrate_meets_the_budget(mechanism: AnnotationMechanism, against: Any, target: float) -> None:
    budget = Budget(target, account=against)
    found = calibrate(mechanism, replace(PARAMETERS, iterations=3), budget)
    assert target * 0.99 <= mechanism.cost(found, budget) <= target and found.iterations == 3


@pytest.mark.parametrize(
    ("mechanism", "budget"),
    [(ROWS, Budget(2.0, solve="steps")), (replace(SUMS, batch=16), Budget(4.0, account="accounted", solve="steps"))],
)
def test_calibrate_steps_is_maximal(mechanism: AnnotationMechanism, budget: Budget) -> None:
    found = calibrate(mechanism, PARAMETERS, budget)
    more = replace(found, iterations=found.iterations + 1)
    assert found.sigma == PARAMETERS.sigma and budget.epsilon is not None
    assert mechanism.cost(found, budget) <= budget.epsilon < mechanism.cost(more, budget)


def test_calibrate_steps_for_one_label_is_refused() -> None:
    with pytest.raises(BenchError, match="--solve steps"):
        calibrate(LABELS, PARAMETERS, Budget(2.0, solve="steps"))


def test_calibrate_without_finite_budget() -> None:
    assert calibrate(ROWS, PARAMETERS, Budget(None, solve="none")) == PARAMETERS
    free = calibrate(ROWS, PARAMETERS, Budget(math.inf, solve="none"))
    assert free.sigma == 0 and math.isinf(account(ROWS.ledger(free), Unit.EXAMPLE, 1e-5).epsilon)
    assert math.isinf(ROWS.claim(free, 1e-5).epsilon)


@pytest.mark.parametrize("mechanism", [ROWS, replace(ROWS, per_row=False), SUMS], ids=["row", "batch", "sums"])
@pytest.mark.parametrize("unit", [Unit.EXAMPLE, Unit.QUERY])
def test_gradients_without_noise_have_infinite_epsilon(mechanism: AnnotationMechanism, unit: Unit) -> None:
    assert math.isinf(account(mechanism.ledger(replace(PARAMETERS, sigma=0.0)), unit, 1e-5).epsilon)


# Queries in separate batches


@pytest.mark.parametrize(
    "kind",
    [{}, {"mode": "label"}, {"teachers": 3}, {"clients": 3}, {"clients": 3, "mode": "label"}],
    ids=lambda kind: " ".join(map(str, kind.values())) or "data",
)
def test_single_queries_cost_as_much_as_batches(kind: dict[str, Any]) -> None:
    """N queries as N batches of one, 5 batches of N / 5 or one batch of all: only their number counts."""
    small = replace(PARAMETERS, answer_epsilon=0.1, sigma=30.0)
    found = []
    for batch, steps in ((1, 60), (12, 5), (60, 1)):
        mechanism, parameters = replace(ROWS, batch=batch, **kind), replace(small, iterations=steps)
        claim, ledger = mechanism.claim(parameters, 1e-5), mechanism.ledger(parameters)
        costs = [account(ledger, unit, 1e-5).epsilon for unit in mechanism.units]
        found.append([claim.epsilon if claim else 0.0, *costs])
    assert found[0] == pytest.approx(found[1], rel=1e-6) and found[0] == pytest.approx(found[2], rel=1e-6)
    assert all(math.isfinite(value) for value in found[0])


# How many queries


def asked(mechanism: AnnotationMechanism, target: float | None, given: int, **budget: Any) -> AnnotationParameters:
    """Return the number of queries that `limit_queries` keeps of `given`."""
    fields, summed = replace(PARAMETERS, iterations=given), max(mechanism.teachers, mechanism.clients, 1)
    budgeted = Budget(target, **({"account": "accounted"} | budget))
    return limit_queries(mechanism, fields, budgeted, READABLE * summed)


@pytest.mark.parametrize("mechanism", [ONES, SUMS, replace(ONES, clients=5)], ids=["one", "teachers", "clients"])
@pytest.mark.parametrize("given", [1, FEWEST - 1, FEWEST, 2000])
@pytest.mark.parametrize("target", [0.1, 8.0, 1000.0])
def test_few_enough_stays_within_its_bounds(mechanism: AnnotationMechanism, given: int, target: float) -> None:
    found = asked(mechanism, target, given)
    assert min(given, FEWEST) <= found.iterations <= given
    assert found == replace(PARAMETERS, iterations=found.iterations), "nothing else changes"


@pytest.mark.parametrize(
    ("mechanism", "agreeing", "target"),
    [(SUMS, 50, 10.0), (replace(SUMS, teachers=200), 200, 3.0), (replace(ONES, clients=40), 40, 20.0), (ONES, 1, 1e4)],
)
def test_few_enough_is_maximal_at_readable_noise(mechanism: AnnotationMechanism, agreeing: int, target: float) -> None:
    """A sum of the gradients of m teachers that agree has the norm m beta."""
    found, budget = asked(mechanism, target, 10**6), Budget(target, account="accounted")
    assert FEWEST < found.iterations < 10**6
    noise = READABLE * agreeing
    assert mechanism.cost(replace(found, sigma=noise), budget) <= target
    assert mechanism.cost(replace(found, sigma=noise, iterations=found.iterations + 1), budget) > target
    assert calibrate(mechanism, found, budget).sigma == pytest.approx(noise, rel=0.02)


def test_few_enough_with_tight_budget_is_the_minimum() -> None:
    budget = Budget(0.5, account="accounted")
    found = calibrate(SUMS, asked(SUMS, 0.5, 10**6), budget)
    assert found.iterations == FEWEST and found.sigma > 2 * READABLE * 50
    assert SUMS.cost(found, budget) <= 0.5


@pytest.mark.parametrize(
    "budget",
    [
        {"target": None, "solve": "none"},
        {"target": math.inf},
        {"target": 0.5, "solve": "steps"},
        {"target": 0.5, "solve": "none"},
    ],
    ids=str,
)
def test_few_enough_without_solved_noise_is_unchanged(budget: dict[str, Any]) -> None:
    assert asked(SUMS, given=10**6, **budget).iterations == 10**6


def test_few_enough_for_the_claim() -> None:
    """Theorem 1 buys many queries where the ledger buys the fewest."""
    assert asked(ONES, 10.0, 10**6, account="claimed").iterations > 50 * FEWEST
    assert asked(ONES, 10.0, 10**6).iterations == FEWEST


def test_few_enough_per_query_is_unchanged() -> None:
    """For unit `query` many responses cost as much as one: even a small budget removes none."""
    for target in (1.0, 10.0):
        budget = Budget(target, account="accounted", unit=Unit.QUERY)
        found = asked(ONES, target, 10_000, unit=Unit.QUERY)
        assert found.iterations == 10_000
        few = replace(found, iterations=FEWEST)
        assert calibrate(ONES, found, budget).sigma == calibrate(ONES, few, budget).sigma, "for no more noise"


@pytest.mark.parametrize(
    ("dataset", "epsilon", "expected"),
    [
        *((name, 10.0, 1e-4) for name in ("imagenet", "imagenet-subset", "imagenet-64px", "imagenet-subset-64px")),
        ("tiny-imagenet-subset", 10.0, 5e-3),
        ("mnist", 10.0, 5e-3),
        ("mnist", 1.0, 1e-3),
        ("imagenet", None, 1e-4),
        ("mnist", None, 5e-3),
    ],
)
def test_paper_beta_depends_on_the_base_data_set(dataset: str, epsilon: float | None, expected: float) -> None:
    assert paper_beta(dataset, epsilon) == expected


def test_printed_response_claim_is_disputed() -> None:
    said = [replace(LABELS, response_as_printed=printed).claim(PARAMETERS, 1e-5) for printed in (True, False)]
    assert [claim.disputed for claim in said if claim] == ["answers-give-the-label-away", ""]


def test_few_enough_refuses_an_impossible_budget() -> None:
    with pytest.raises(BenchError):
        asked(SUMS, 8.0, 2000, account="claimed")


DELTA = 1e-5
BOTH = pytest.mark.parametrize("method", [Dpdfd, WorkingDpdfd], ids=["printed", "working"])


def gaussian_epsilon(mu: float) -> float:
    """Balle and Wang (2018): delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""

    def log_excess(e: float) -> float:
        upper, lower = stats.norm.logcdf(mu / 2 - e / mu), e + stats.norm.logcdf(-mu / 2 - e / mu)
        return upper + math.log1p(-math.exp(lower - upper)) - math.log(DELTA)

    return optimize.brentq(log_excess, 1e-9, 200.0, xtol=1e-12)


def mu_squared(ledger: Ledger, unit: Unit = Unit.EXAMPLE) -> list[float]:
    found = []
    for entry in ledger.entries(unit):
        assert isinstance(entry.event, GaussianDpEvent)
        found.append(entry.count / entry.event.noise_multiplier**2)
    return found


@pytest.mark.parametrize(("queries", "sigma", "expected"), [(1000, 240, 0.981), (1000, 32, 9.852), (100, 75, 0.994)])
def test_ensemble_golden_epsilons(queries: int, sigma: float, expected: float) -> None:
    """privacy.md, "Many teachers on disjoint shards"."""
    ledger = SUMS.ledger(replace(PARAMETERS, sigma=float(sigma), iterations=queries))
    assert account(ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(expected, abs=5e-4)
    assert gaussian_epsilon(math.sqrt(queries) * 2 / sigma) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("batch", [1, 7])
def test_ensemble_ledger_counts_every_response(batch: int) -> None:
    """One teacher moves a sum of gradients by 2 beta, its noise being sigma beta."""
    (entry,) = replace(SUMS, batch=batch).ledger(PARAMETERS).entries(Unit.EXAMPLE)
    assert entry.event == GaussianDpEvent(50.0) and entry.count == 200 * batch


def test_example_cost_does_not_depend_on_the_teachers() -> None:
    ledgers = [replace(SUMS, teachers=n).ledger(PARAMETERS) for n in (1, 3, 1000)]
    assert len({tuple(mu_squared(ledger)) for ledger in ledgers}) == 1


@pytest.mark.parametrize("teachers", [1, 50])
def test_query_cost_counts_every_teacher(teachers: int) -> None:
    (entry,) = replace(SUMS, teachers=teachers).ledger(PARAMETERS).entries(Unit.QUERY)
    assert entry.count == 1 and entry.event == GaussianDpEvent(100 / (teachers * 2))


@pytest.mark.parametrize("epsilon_", [1.0, 8.0])
@pytest.mark.parametrize("solve_", ["sigma", "steps", "none"])
def test_ensemble_has_no_claim(epsilon_: float, solve_: Any) -> None:
    assert SUMS.claim(PARAMETERS, DELTA) is None
    with pytest.raises(BenchError) as refused:
        calibrate(SUMS, PARAMETERS, Budget(epsilon_, account="claimed", solve=solve_))
    said = str(refused.value)
    assert "\n" not in said and "--method.teachers 50" in said and "--account claimed" in said and "accounted" in said


@pytest.mark.parametrize("against", ["claimed", "accounted"])
def test_ensemble_of_an_infinite_budget_has_no_noise(against: Any) -> None:
    assert calibrate(SUMS, PARAMETERS, Budget(math.inf, account=against)).sigma == 0


def test_answer_ledger_is_one_response() -> None:
    assert mu_squared(replace(SUMS, batch=256).answer_ledger(PARAMETERS)) == [pytest.approx((2 / 100) ** 2)]


@BOTH
@pytest.mark.parametrize(
    ("fields", "needs"),
    [({}, {"teacher"}), ({"teachers": 2}, {"teacher_ensemble"}), ({"data": "private"}, {"private_data"})],
    ids=str,
)
def test_needs_contain_only_what_is_used(method: Any, fields: dict[str, Any], needs: set[str]) -> None:
    assert method(**fields).needs == needs
