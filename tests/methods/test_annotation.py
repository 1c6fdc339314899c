"""What annotation costs, against privacy.md's golden values, and its calibration."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters, calibrate
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account

ROWS = AnnotationMechanism("data", batch=256, classes=10)
LABELS = replace(ROWS, mode="label", batch=4)
PARAMETERS = AnnotationParameters(k=3, beta=1e-3, sigma=100.0, answer_epsilon=1.0, iterations=200)


@pytest.mark.parametrize(
    ("mechanism", "steps", "expected"),
    [(ROWS, 200, 28.84), (ROWS, 40_000, 2319.98), (replace(ROWS, per_row=False), 200, 2929)],
)
def test_one_record_behind_one_teacher(mechanism: AnnotationMechanism, steps: int, expected: float) -> None:
    ledger = mechanism.ledger(replace(PARAMETERS, iterations=steps))
    assert account(ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("beta", "steps", "expected"), [(1e-3, 200, 0.0456), (1e-3, 40_000, 0.8046), (5e-3, 40_000, 4.7933)]
)
def test_the_claim_is_theorem_1(beta: float, steps: int, expected: float) -> None:
    claim = ROWS.claim(replace(PARAMETERS, beta=beta, iterations=steps), 1e-5)
    assert claim.epsilon == pytest.approx(expected, abs=1e-4) and claim.unit == Unit.QUERY


def test_beta_cancels_in_what_is_proved_but_not_in_the_claim() -> None:
    small, large = replace(PARAMETERS, beta=1e-5), replace(PARAMETERS, beta=1.0)
    assert ROWS.claim(small, 1e-5).epsilon < ROWS.claim(large, 1e-5).epsilon
    assert ROWS.ledger(small).to_json() == ROWS.ledger(large).to_json()


def test_one_answer_of_a_batch_costs_less_than_the_teacher_behind_it() -> None:
    ledger = ROWS.ledger(PARAMETERS)
    assert account(ledger, Unit.QUERY, 1e-5).epsilon < account(ledger, Unit.EXAMPLE, 1e-5).epsilon


def test_labels_compose_over_all_answers() -> None:
    ledger = LABELS.ledger(replace(PARAMETERS, iterations=2))
    assert account(ledger, Unit.QUERY, 1e-5).epsilon == pytest.approx(1.0)
    assert account(ledger, Unit.EXAMPLE, 1e-12).epsilon == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize(
    "mechanism",
    [replace(LABELS, response_as_printed=True), replace(ROWS, teacher_trains_generator=True)],
    ids=["Eq. 5 as printed", "DPSD-T"],
)
def test_what_cannot_be_proved_is_infinite_and_refused(mechanism: AnnotationMechanism) -> None:
    assert math.isinf(account(mechanism.ledger(PARAMETERS), Unit.EXAMPLE, 1e-5).epsilon)
    with pytest.raises(BenchError, match="--account accounted"):
        calibrate(mechanism, PARAMETERS, Budget(8.0, account="accounted"))


@pytest.mark.parametrize("mechanism", [ROWS, replace(ROWS, per_row=False), LABELS], ids=["row", "batch", "label"])
@pytest.mark.parametrize("account", ["claimed", "accounted"])
@pytest.mark.parametrize("target", [0.5, 10.0])
def test_the_budget_is_met_and_used(mechanism: AnnotationMechanism, account: str, target: float) -> None:
    budget = Budget(target, account=account)  # type: ignore[arg-type]
    cost = mechanism.cost(calibrate(mechanism, replace(PARAMETERS, iterations=3), budget), budget)
    assert target * 0.99 <= cost <= target


def test_solving_for_steps_takes_one_step_too_many_past_the_budget() -> None:
    budget = Budget(2.0, solve="steps")
    parameters = calibrate(ROWS, PARAMETERS, budget)
    assert parameters.sigma == PARAMETERS.sigma
    assert (
        ROWS.cost(parameters, budget)
        <= 2.0
        < ROWS.cost(replace(parameters, iterations=parameters.iterations + 1), budget)
    )


def test_steps_do_not_move_the_epsilon_of_one_label() -> None:
    with pytest.raises(BenchError, match="does not depend on T"):
        calibrate(LABELS, PARAMETERS, Budget(2.0, solve="steps"))


def test_no_budget_keeps_the_fields_and_an_infinite_one_drops_the_noise() -> None:
    assert calibrate(ROWS, PARAMETERS, Budget(None, solve="none")) == PARAMETERS
    free = calibrate(ROWS, PARAMETERS, Budget(math.inf, solve="none"))
    assert free.sigma == 0 and math.isinf(account(ROWS.ledger(free), Unit.EXAMPLE, 1e-5).epsilon)
    assert math.isinf(ROWS.claim(free, 1e-5).epsilon)
