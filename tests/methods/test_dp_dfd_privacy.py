"""Cost of DP-DFD's responses: ledger, budgets, and the audit game."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from dp_dfd_made import learning, printed
from methods_made import Spy, convert
from torch import Tensor

from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame, audit
from bench.testing import toy_teacher
from methods.dp_dfd.accounting import ResponsePlan
from methods.dp_dfd.dp_dfd import DpDfd
from methods.dp_dfd.working import DpDfdWorking

PLAYS = 60_000
FREE = Budget(None, solve="none")
BOTH = [DpDfd, DpDfdWorking]


def test_printed_generator_is_not_private_in_the_ledger() -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert(printed(pretrain_steps="3"), replace(toy, model=spy))
    assert spy.with_gradient == 3, "line 1 only: fine-tuning queries the student"
    assert spy.queried == [16, 16]
    assert any("NonPrivate" in type(e.event).__name__ for e in release.ledger.entries(Unit.EXAMPLE))
    assert release.ledger.entries(Unit.EXAMPLE)[1].count == 32
    assert math.isinf(account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon)
    assert account(release.ledger, Unit.QUERY, 1e-5).epsilon == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_few_responses_compose(n: int, epsilon: float) -> None:
    ledger = DpDfdWorking().ledger(ResponsePlan(0.05, n, 1, epsilon))
    found = account(ledger, Unit.EXAMPLE, 1e-9)
    assert found.epsilon == pytest.approx(n * epsilon, rel=1e-3) and found.epsilon <= n * epsilon * (1 + 1e-9)
    assert account(ledger, Unit.QUERY, 1e-9).epsilon == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "budget"),
    [(printed(responses="soft"), Budget(1.0)), (printed(), Budget(math.inf)), (learning(), Budget(math.inf))],
    ids=["soft", "no noise", "no noise, working"],
)
def test_soft_responses_have_infinite_epsilon(method: Any, budget: Budget) -> None:
    release = convert(method, budget=budget)
    for unit in (Unit.EXAMPLE, Unit.QUERY):
        assert math.isinf(account(release.ledger, unit, 1e-5).epsilon)
    assert release.claim is not None and release.claim.epsilon == budget.epsilon and release.claim.delta == 0
    soft = getattr(method, "responses", "") == "soft"
    assert bool(release.claim.disputed) == soft, "infinity is a true claim of answers without noise"


def plan(cls: type[Any], budget: Budget, **fields: Any) -> ResponsePlan:
    return cls(**fields).plan(budget, "mnist", 10)


def test_plan_is_the_papers() -> None:
    found, ours = plan(DpDfd, FREE), plan(DpDfdWorking, FREE)
    assert found.threshold == ours.threshold == 0.05
    assert found.stages == 320 and found.answers == 50_000 // 320 * 320
    assert DpDfd().plan(FREE, "fmnist", 10).share == 120_000 // 320
    assert ours.answers == 50_000 and DpDfdWorking().plan(FREE, "fmnist", 10).answers == 120_000
    assert DpDfd(alpha=1.0) != DpDfd() == DpDfd(alpha=5.0, beta=10.0)


@pytest.mark.parametrize("cls", BOTH)
def test_claimed_budget_is_one_responses_epsilon(cls: type[Any]) -> None:
    assert plan(cls, Budget(3.0)).answer_epsilon == 3
    assert plan(cls, Budget(3.0, account="accounted", unit=Unit.QUERY)).answer_epsilon == 3
    assert plan(cls, Budget(3.0, solve="none"), answer_epsilon=0.7).answer_epsilon == 0.7
    assert plan(cls, FREE, answer_epsilon=0.7).answer_epsilon == 0.7
    assert math.isinf(plan(cls, Budget(math.inf)).answer_epsilon)


def test_accounted_budget_is_met_by_all_responses() -> None:
    budget = Budget(4.0, account="accounted")
    method = DpDfdWorking(queries=200)
    found = method.plan(budget, "mnist", 10)
    cost = account(method.ledger(found), Unit.EXAMPLE, budget.delta).epsilon
    assert 4 / 200 < found.answer_epsilon < 0.2 and 3.99 < cost <= 4


def test_solve_steps_finds_the_number_of_responses() -> None:
    budget = Budget(4.0, account="accounted", solve="steps")
    method = DpDfdWorking(queries=20, answer_epsilon=0.05)
    found = method.plan(budget, "mnist", 10)
    more = replace(found, stages=found.stages + 1)
    assert found.answers > 20 and found.answer_epsilon == 0.05
    assert account(method.ledger(found), Unit.EXAMPLE, budget.delta).epsilon <= 4
    assert account(method.ledger(more), Unit.EXAMPLE, budget.delta).epsilon > 4


def game(budget: Budget, classes: int = 10, **fields: Any) -> DistinguishingGame:
    return DpDfd(**fields).game(budget, "mnist", classes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cls", "classes", "epsilon"),
    [*((DpDfd, classes, epsilon) for classes in (2, 10) for epsilon in (0.5, 3.0)), (DpDfdWorking, 10, 3.0)],
)
def test_audit_does_not_refute_one_hot_responses(cls: type[Any], classes: int, epsilon: float) -> None:
    found = audit(cls().game(Budget(epsilon), "mnist", classes), PLAYS)
    assert found.claimed == epsilon == pytest.approx(found.accounted, rel=1e-3)
    assert 0.8 * epsilon < found.lower_bound <= epsilon and found.verdict == "not refuted"


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_audit_refutes_soft_responses(epsilon: float) -> None:
    found = audit(game(Budget(epsilon), responses="soft"), PLAYS)
    assert found.verdict == "refuted" and found.lower_bound > epsilon + 1 and math.isinf(found.accounted)


@pytest.mark.thorough
def test_audit_refutes_k_before_the_top_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the answer is drawn with the k = 1 that line 5 sets, which keeps the label always."""
    from methods.dp_dfd import dp_dfd

    def planted(labels: Tensor, allowed: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
        odds = math.inf if int(allowed[0].sum()) == 2 else epsilon
        return original(labels, allowed, odds, generator)

    original = dp_dfd.selective_response
    monkeypatch.setattr(dp_dfd, "selective_response", planted)
    for cls in BOTH:
        assert audit(cls().game(Budget(1.0), "mnist", 10), PLAYS).verdict == "accountant refuted"
