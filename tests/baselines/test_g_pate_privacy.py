"""Cost of the votes of G-PATE: ledger, budgets, noise, and the audit game."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from baseline_runs import epsilon_of, record_calls, synthesise
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from g_pate_made import plan, smoke, training
from scipy import stats

from baselines.g_pate import aggregation
from baselines.g_pate.aggregation import ORDERS, Aggregator
from baselines.g_pate.g_pate import GPate
from bench.distillation.votes.noisy_votes import Aggregation
from bench.distillation.votes.pate import DIAGNOSTIC
from bench.distillation.votes.vote_bounds import gaussian_renyi_of_events, log_rarer_side, log_wrong_gaussian
from bench.privacy import Budget, Unit
from bench.privacy.accountant import check_budget


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_noise_is_that_of_the_plan(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Noisy counts of one agreeing teacher ensemble, and how often it passes the threshold; wrong scales are found."""
    calls = record_calls(monkeypatch, aggregation, "read")
    made = Aggregator(plan(7, 40, 20, 5000, 5000, 30), 1.0, 10, "argmax", torch.Generator().manual_seed(2))
    made([torch.full((30, 1000, 5), 0.95)], torch.eye(5).expand(1000, 5, 5))
    seen = torch.cat([call.arguments[0] for call in calls])
    noise = (seen - torch.tensor([0.0] * 9 + [30.0])).flatten().numpy()
    p = stats.kstest(noise, stats.norm(0, 7 * factor).cdf).pvalue
    q = stats.binomtest(made.answered, 5000, float(stats.norm.sf(10 / (20 * factor**3)))).pvalue
    assert (p > 0.01 and q > 0.01) if factor == 1 else (p < 1e-4 and q < 1e-3)


def test_answers_are_limited_to_those_charged() -> None:
    made = Aggregator(plan(0, 1, 0, 8, 3, 2), 1.0, 5, "argmax", torch.Generator())
    found = made([torch.ones(2, 4, 2)], torch.eye(2).expand(4, 2, 2))
    assert (made.queries, made.answered) == (8, 3) and int((found != 0).sum()) == 3


def test_step_answers_at_most_its_share() -> None:
    """Half of 20 coordinates: an only teacher agrees with itself, so that all of them pass."""
    made = training(smoke(responses="0.5", batch="4", projected="5", threshold="0.5"), steps=3)
    for step in (1, 2):
        made.step()
        assert (made.aggregate.queries, made.aggregate.answered) == (20 * step, 10 * step)


def test_step_plan_by_hand() -> None:
    """0.3 of the 3 coordinates of 5 images pass, at most 4; 24 of 48 teachers must agree; noise 6 times 9."""
    by = smoke(teachers="0", responses="0.3", batch="5", projected="3", threshold="0.5", threshold_noise="6")
    once = by.step_plan(Aggregation("gaussian", 9.0), 48)
    assert (once.queries, once.candidates, once.per_image) == (4, 15, 3)
    assert (once.aggregation.threshold, once.aggregation.threshold_scale) == (24.0, 54.0)


def test_ledger_has_every_coordinate_of_every_image() -> None:
    """T k B thresholds of multiplier sigma_1, and as many releases of sigma_2 / sqrt(2), above the threshold or not."""
    by = smoke(projected="5", scale="9", threshold="0.9", threshold_noise="3")
    made = synthesise(by)
    answer, threshold = made.ledger.entries(Unit.EXAMPLE)
    assert answer.event == GaussianDpEvent(9 / math.sqrt(2)) and threshold.event == GaussianDpEvent(27.0)
    assert answer.count == threshold.count == 3 * 5 * 4 == made.solved["queries"] == made.solved["answers"]
    assert made.solved["answered"] < 60
    (single,) = synthesise(replace(by, threshold=0.0)).ledger.entries(Unit.EXAMPLE)
    assert single == answer
    capped = synthesise(replace(by, responses=0.5)).ledger.entries(Unit.EXAMPLE)
    assert [entry.count for entry in capped] == [3 * 10, 60]


def test_drawn_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = record_calls(monkeypatch, Aggregation, "counts")
    thresholds = record_calls(monkeypatch, Aggregation, "confident")
    made = synthesise(smoke(), Budget(2.0, account="accounted"))
    answer, threshold = made.ledger.entries(Unit.EXAMPLE)
    assert {call.arguments[0].scale for call in counts} <= {made.solved["scale"]}
    assert {call.arguments[0].threshold_scale for call in thresholds} == {made.solved["threshold_scale"]}
    assert sum(len(call.arguments[1]) for call in counts) == made.solved["answered"] <= answer.count
    assert sum(len(call.arguments[1]) for call in thresholds) == threshold.count
    assert answer.event.noise_multiplier == pytest.approx(made.solved["scale"] / math.sqrt(2))
    assert threshold.event.noise_multiplier == pytest.approx(6 * made.solved["scale"])


@pytest.mark.parametrize(("epsilon", "sigmas", "steps"), [(1.0, (3000, 1000), 131), (10.0, (600, 100), 50)])
def test_released_settings_allow_few_steps(epsilon: float, sigmas: tuple[int, int], steps: int) -> None:
    """README of the released code: 15 or 30 images, k = 10, by Renyi orders 1.1, 2, 3, ... 199 and the plain bound."""
    teachers, batch = (4000, 15) if epsilon == 1 else (2000, 30)
    given: Any = {"scale": sigmas[1], "threshold_noise": sigmas[0] / sigmas[1], "responses": 1.0, "steps": 1}
    by = GPate(teachers=teachers, batch=batch, **given)
    found = by.calibrate(Budget(epsilon, solve="steps"), teachers)
    allowed = found.candidates // (10 * batch)
    orders = np.array([1.1, *range(2, 200)])
    each = orders / (2 * sigmas[0] ** 2) + orders / sigmas[1] ** 2

    def spent(count: int) -> float:
        return float((count * 10 * batch * each + math.log(1e5) / (orders - 1)).min())

    assert by.formula(found, 1e-5) == pytest.approx(spent(allowed))
    assert spent(allowed) <= epsilon < spent(allowed + 1)
    assert allowed == steps


@pytest.mark.parametrize("against", ["claimed", "accounted"])
@pytest.mark.parametrize("solved", ["sigma", "steps"])
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_budget_is_met_and_nearly_spent(threshold: float, against: Any, solved: Any) -> None:
    budget = Budget(3.0, account=against, solve=solved)
    by = replace(smoke(), threshold=threshold, scale=40.0)
    made, delta = by.calibrate(budget, 3), budget.delta
    claimed, proved = by.formula(made, delta), epsilon_of(made.ledger())
    assert proved <= claimed * (1 + 1e-9)
    check_budget(made.ledger(), None, replace(budget, account="accounted"))
    assert 0.9 * 3.0 < (claimed if against == "claimed" else proved) <= 3.0
    assert made.candidates % 40 == 0 and made.queries == made.candidates


def test_exact_sigma_without_a_threshold() -> None:
    """500 votes at epsilon 10: sqrt(2 500) / mu, mu^2 = 4.002."""
    by = GPate(steps=5, batch=10, projected=10, threshold=0.0)
    found = by.calibrate(Budget(10.0, account="accounted"), 100)
    assert found.aggregation.scale == pytest.approx(math.sqrt(1000 / 4.002), rel=1e-3)


def test_diagnostic_does_not_change_the_release() -> None:
    """Charged and claimed are the same for teachers that agree and for ones that do not; only the diagnostic moves."""
    plain, asked_for = (synthesise(smoke(diagnostic=flag, scale="9")) for flag in ("false", "true"))
    assert DIAGNOSTIC not in plain.solved
    assert {k: v for k, v in asked_for.solved.items() if k != DIAGNOSTIC} == plain.solved
    assert asked_for.claim == plain.claim and asked_for.ledger.to_json() == plain.ledger.to_json()
    assert 0 < asked_for.solved[DIAGNOSTIC] <= plain.claim.epsilon
    projection, found = torch.eye(2).expand(1, 2, 2), []
    for directions in (torch.ones(90, 1, 2), torch.linspace(-1, 1, 180).view(90, 1, 2)):
        made = Aggregator(plan(5, 45, 10, 2, 2, 90), 1.0, 10, "argmax", torch.Generator().manual_seed(0), True)
        made([directions], projection)
        found.append(made.data_dependent_epsilon(1e-5))
    assert found[0] < found[1]


def test_diagnostic_adds_answers_and_thresholds() -> None:
    """90 and 45 of 90 teachers agree: only the first coordinate exceeds 80 of them; both are tested by the
    threshold."""
    directions = torch.tensor([[[0.95, 0.95]], [[0.95, -0.95]]]).repeat(45, 1, 1)
    made = Aggregator(plan(5, 80, 4, 2, 2, 90), 1.0, 2, "argmax", torch.Generator().manual_seed(0), True)
    made([directions], torch.eye(2)[None])
    assert made.answered == 1
    votes = np.array([[0.0, 90.0], [45.0, 45.0]])
    answers = gaussian_renyi_of_events(log_wrong_gaussian(votes[:1], 5.0), 5.0, ORDERS)
    passes = gaussian_renyi_of_events(log_rarer_side(votes, 80.0, 4.0), 4 * math.sqrt(2), ORDERS)
    assert made.renyi == pytest.approx(answers.sum(0) + passes.sum(0))


def test_infinite_budget_has_no_diagnostic() -> None:
    made = synthesise(smoke(diagnostic="true"), Budget(math.inf))
    assert {type(entry.event) for entry in made.ledger.entries(Unit.EXAMPLE)} == {NonPrivateDpEvent}
    assert math.isinf(made.claim.epsilon) and made.solved["scale"] == 0 and DIAGNOSTIC not in made.solved
