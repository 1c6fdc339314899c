"""Cost of the votes of PATE: claims, the noise for a budget, ledger, and the audit game."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from baseline_runs import FREE
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from pate_made import BOTH, UNBOUNDED, asked, convert, paper, smoke, toy
from scipy import stats

from baselines.pate import Pate
from baselines.pate_gnmax import PateGnmax
from bench.distillation.votes import voted_student
from bench.distillation.votes.pate import DIAGNOSTIC
from bench.distillation.votes.vote_bounds import (
    FEW_WHOLE_ORDERS,
)
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account, check_budget
from bench.privacy.audit import audit
from bench.testing import CLASSES


@pytest.mark.parametrize(("queries", "golden"), [(100, 5.30), (1000, 20.76)])
def test_claim_of_laplace_votes(queries: int, golden: float) -> None:
    """e0 = 1/10; slope s = n e0^2 / 2; s (l + 1) + log(1e5) / l, at l = 5 for 100 queries and 2 for 1000."""
    method = paper(Pate, query_count=str(queries))
    claim = method.claim(method.plan(FREE, "mnist"), 1e-5)
    slope, order = queries * 0.01 / 2, 5 if queries == 100 else 2
    assert (
        claim.epsilon == pytest.approx(slope * (order + 1) + math.log(1e5) / order) == pytest.approx(golden, abs=0.005)
    )
    assert claim.unit == Unit.EXAMPLE and claim.source == method.theorem, "public images need no excuse"


@pytest.mark.parametrize(("answers", "golden"), [(286, 3.17), (640, 4.78)])
def test_claim_of_gaussian_votes(answers: int, golden: float) -> None:
    method = paper(PateGnmax, responses=str(answers))
    plan = method.plan(FREE, "mnist")
    assert plan.aggregation.threshold == 200 and plan.aggregation.threshold_scale == 150
    assert method.claim(plan, 1e-5).epsilon == pytest.approx(golden, abs=0.005)


@pytest.mark.parametrize(
    ("queries", "target", "scale"), [(100, 1, 98), (100, 10, 11.4), (500, 1, 219), (500, 10, 25.5), (1000, 10, 36)]
)
def test_laplace_scale_for_a_budget(queries: int, target: float, scale: float) -> None:
    plan = paper(Pate, query_count=str(queries)).plan(Budget(target), "mnist")
    assert plan.aggregation.scale == pytest.approx(scale, rel=0.01)


@pytest.mark.parametrize(
    ("account", "target", "sigma"),
    [("claimed", 1, 69), ("claimed", 10, 8), ("accounted", 1, 52.8), ("accounted", 10, 7.1)],
)
def test_gaussian_sigma_for_a_budget(account: Any, target: float, sigma: float) -> None:
    """100 queries of plain GNMax: by the paper's conversion, and exactly (sigma = sqrt(200) / mu)."""
    method = paper(PateGnmax, threshold="0", query_count="100")
    plan = method.plan(Budget(target, account=account), "mnist")
    assert plan.aggregation.scale == pytest.approx(sigma, rel=0.02)


def test_claim_is_at_least_the_account() -> None:
    for cls in (Pate, PateGnmax):
        method = smoke(cls)
        plan = method.plan(FREE, "toy")
        claimed, bare = method.claim(plan, 1e-5), replace(method, images="strokes").claim(plan, 1e-5)
        assert claimed == bare and method.ledger(plan).to_json() == plan.ledger().to_json()
        assert claimed.epsilon >= account(method.ledger(plan), Unit.EXAMPLE, 1e-5).epsilon


@pytest.mark.parametrize("against", ["claimed", "accounted"])
@pytest.mark.parametrize("images", ["public", "strokes"])
@BOTH
def test_budget_is_met_and_nearly_spent(cls: type[Any], images: str, against: Any) -> None:
    budget = Budget(3.0, account=against)
    release = convert(cls, budget, images=images, query_count="4", **({"responses": "3"} if cls is PateGnmax else {}))
    check_budget(release.ledger, release.claim, budget)
    assert release.claim is not None
    spent = release.claim.epsilon
    if against == "accounted":
        spent = account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon
    assert 0.99 * 3.0 < spent <= 3.0


@BOTH
def test_claim_uses_the_budgets_delta(cls: type[Any]) -> None:
    release = convert(cls, Budget(3.0, 1e-7))
    assert release.claim is not None and release.claim.delta == 1e-7
    assert 0.99 * 3 < release.claim.epsilon <= 3
    assert account(release.ledger, Unit.EXAMPLE, 1e-7).epsilon <= release.claim.epsilon


def test_ledger_of_laplace_votes() -> None:
    """12 responses at scale 20, of which one vote changes: L1 sensitivity 2."""
    method = smoke(Pate, scale="20", query_count="12")
    (votes,) = method.ledger(method.plan(FREE, "toy")).entries(Unit.EXAMPLE)
    assert (votes.event, votes.count) == (LaplaceDpEvent(10.0), 12)


def test_threshold_is_charged_for_every_query() -> None:
    """16 images at sigma_1 = 15, 8 answers at sigma_2 = 4: mu^2 = 16 / 225 + 8 * 2 / 16."""
    method = smoke(PateGnmax, scale="4", query_count="16", responses="8")
    ledger = method.ledger(method.plan(FREE, "toy"))
    answers, threshold = ledger.entries(Unit.EXAMPLE)
    assert (answers.event, answers.count) == (GaussianDpEvent(4 / math.sqrt(2)), 8)
    assert (threshold.event, threshold.count) == (GaussianDpEvent(15.0), 16)
    mu, found = math.sqrt(16 / 225 + 8 * 2 / 16), account(ledger, Unit.EXAMPLE, 1e-5).epsilon
    delta = stats.norm.cdf(mu / 2 - found / mu) - math.exp(found) * stats.norm.cdf(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("given", [{}, {"threshold": "0"}, {"threshold": "0.9"}, {"responses": "1"}])
def test_votes_are_drawn_as_often_as_charged(given: dict[str, str]) -> None:
    of = toy()
    answers = {} if given.get("threshold") == "0" else {"responses": "8"}  # plain GNMax answers all queries
    release = convert(PateGnmax, of=of, **({"query_count": "16"} | answers | given))
    entries = {e.why.split(" of ")[0]: e.count for e in release.ledger.entries(Unit.EXAMPLE)}
    threshold = entries.get("the noisy largest count, against the threshold")
    assert asked(of) == release.solved["queries"] == (threshold or entries["noisy votes"]) == 16
    assert release.solved["answered"] <= entries["noisy votes"] == release.solved["answers"]


def test_laplace_votes_are_drawn_as_often_as_charged() -> None:
    of = toy()
    release = convert(Pate, of=of, query_count="17")
    assert asked(of) == 17 == release.ledger.entries(Unit.EXAMPLE)[0].count == release.solved["answered"]


@BOTH
def test_vote_noise_is_that_of_the_ledger(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[float] = []

    def votes(plan: Any, *given: Any) -> Any:
        counted.append(plan.aggregation.scale)
        return original(plan, *given)

    original = voted_student.noisy_votes
    monkeypatch.setattr(voted_student, "noisy_votes", votes)
    release = convert(cls)
    entry = release.ledger.entries(Unit.EXAMPLE)
    noise = entry[0].event.noise_multiplier * 2 if cls is Pate else entry[0].event.noise_multiplier * math.sqrt(2)
    assert counted == [pytest.approx(noise)] and release.solved["scale"] == counted[0]
    if cls is PateGnmax:
        assert release.solved["threshold_scale"] == pytest.approx(entry[1].event.noise_multiplier) != counted[0]


@pytest.mark.thorough
@BOTH
def test_audit_refutes_only_a_third_of_the_claim(cls: type[Any]) -> None:
    game = smoke(cls, query_count="8", **({"responses": "8"} if cls is PateGnmax else {})).game(
        Budget(30.0), "toy", CLASSES
    )
    assert audit(game, 60_000).verdict == "not refuted"
    assert audit(replace(game, claimed=game.claimed / 3), 60_000).verdict == "refuted"


@BOTH
def test_diagnostic_does_not_change_the_release(cls: type[Any]) -> None:
    plain, asked_for = (convert(cls, FREE, diagnostic=flag) for flag in ("false", "true"))
    assert DIAGNOSTIC == "data_dependent_epsilon_diagnostic" and DIAGNOSTIC not in plain.solved
    rest = {name: value for name, value in asked_for.solved.items() if name != DIAGNOSTIC}
    assert rest == plain.solved and asked_for.claim == plain.claim
    assert asked_for.ledger.to_json() == plain.ledger.to_json()
    coarser = math.log(1e5) / len(FEW_WHOLE_ORDERS)  # the claim is the least over more orders
    assert 0 < asked_for.solved[DIAGNOSTIC] <= plain.claim.epsilon + coarser  # type: ignore[union-attr]
    assert DIAGNOSTIC not in convert(cls, UNBOUNDED, diagnostic="true").solved


@BOTH
def test_unanimous_votes_cost_less_than_the_claim(cls: type[Any]) -> None:
    """240 of 250 teachers agree: far below the data-independent 5.30 and 3.17."""
    method = paper(cls)
    plan = method.plan(FREE, "mnist")
    votes = np.tile([240.0, 10.0, *[0.0] * 8], (plan.candidates, 1))
    found = method.formula_of_votes(plan, votes, votes[: plan.queries], 1e-5)
    assert found < 0.6 * method.claim(plan, 1e-5).epsilon


@BOTH
def test_uniform_votes_cost_the_claim(cls: type[Any]) -> None:
    """A tenth of 250 teachers for each class, and a threshold at a tenth: nothing is learnt from looking at votes."""
    method = paper(cls, **({"threshold": "0.1"} if cls is PateGnmax else {}))
    plan = method.plan(FREE, "mnist")
    votes = np.full((plan.candidates, 10), 25.0)
    found = method.formula_of_votes(plan, votes, votes[: plan.queries], 1e-5)
    assert found == pytest.approx(method.claim(plan, 1e-5).epsilon, rel=1e-3)
