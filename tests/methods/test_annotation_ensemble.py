"""Cost of the summed gradients of many teachers, against a closed form in this file."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import optimize, stats

from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters, calibrate
from bench.errors import BenchError
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.accountant import account
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpdfd.working import WorkingDpdfd

DELTA = 1e-5
SUMS = AnnotationMechanism("data", batch=1, classes=10, teachers=50)
PARAMETERS = AnnotationParameters(k=3, beta=1e-3, sigma=100.0, answer_epsilon=1.0, iterations=200)
BOTH = pytest.mark.parametrize("method", [Dpdfd, WorkingDpdfd], ids=["printed", "working"])


def gaussian_epsilon(mu: float) -> float:
    """Balle and Wang (2018): delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""

    def log_excess(e: float) -> float:
        upper, lower = stats.norm.logcdf(mu / 2 - e / mu), e + stats.norm.logcdf(-mu / 2 - e / mu)
        return upper + math.log1p(-math.exp(lower - upper)) - math.log(DELTA)

    return optimize.brentq(log_excess, 1e-9, 200.0, xtol=1e-12)


def mu_squared(ledger: Ledger, unit: Unit = Unit.EXAMPLE) -> list[float]:
    """Return count / multiplier^2 of every entry."""
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


@pytest.mark.parametrize("sigma", [30.0, 100.0, 1000.0])
def test_accountant_equals_the_closed_form(sigma: float) -> None:
    ledger = replace(SUMS, batch=4).ledger(replace(PARAMETERS, sigma=sigma))
    expected = gaussian_epsilon(math.sqrt(sum(mu_squared(ledger))))
    assert account(ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("epsilon_", [1.0, 8.0])
@pytest.mark.parametrize("solve_", ["sigma", "steps", "none"])
def test_ensemble_has_no_claim(epsilon_: float, solve_: Any) -> None:
    assert SUMS.claim(PARAMETERS, DELTA) is None
    with pytest.raises(BenchError) as refused:
        calibrate(SUMS, PARAMETERS, Budget(epsilon_, account="claimed", solve=solve_))
    said = str(refused.value)
    assert "\n" not in said and "--method.teachers 50" in said and "--account claimed" in said and "accounted" in said


def test_ensemble_without_noise_has_infinite_epsilon() -> None:
    for against in ("claimed", "accounted"):
        free = calibrate(SUMS, PARAMETERS, Budget(math.inf, account=against))  # type: ignore[arg-type]
        assert free.sigma == 0
        for unit in (Unit.EXAMPLE, Unit.QUERY):
            entries = SUMS.ledger(free).entries(unit)
            assert entries and all(isinstance(entry.event, NonPrivateDpEvent) for entry in entries)


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
