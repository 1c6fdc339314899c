"""DGD: cost of the votes, claims, budgets, the audit game, and options."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dgd_made import SpyEnsemble, learning, printed, teacher
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent
from methods_made import Spy, convert, rng

from bench.config import configure
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import audit
from bench.privacy.claims import defect
from bench.testing import CLASSES, SHAPE, toy_teacher
from methods.dgd import working
from methods.dgd.dgd import Dgd
from methods.dgd.working import DgdWorking


@pytest.mark.parametrize(("method", "events"), [
    (printed(), [(LaplaceDpEvent, 6), (NonPrivateDpEvent, 1)]),
    (learning(), [(GaussianDpEvent, 12)]),
    (learning(aggregation="laplace"), [(LaplaceDpEvent, 12)]),
    (learning(queries="7", prior="generator"), [(GaussianDpEvent, 7)]),
    (learning(queries="2", prior="pen", choose="3"), [(GaussianDpEvent, 2)]),
    (learning(prior="baseline"), [(GaussianDpEvent, 12), (NonPrivateDpEvent, 1)]),
])  # fmt: skip
def test_convert_queries_as_often_as_the_ledger(
    method: Dgd | DgdWorking, events: list[tuple[type[Any], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "GENERATOR_STEPS", 2)
    of = teacher()
    release = convert(method, of)
    assert isinstance(of.ensemble, SpyEnsemble) and of.ensemble.queried == events[0][1]
    assert [(type(e.event), e.count) for e in release.ledger.entries(Unit.EXAMPLE)] == events


def test_convert_refuses_queries_beyond_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DgdWorking, "training", lambda self, plan: TRAINING(self, plan.with_queries(13)))
    with pytest.raises(ValueError, match=r"13\b.*\b12"):
        convert(learning(), teacher())


TRAINING = DgdWorking.training


@pytest.mark.parametrize(("epsilon", "rounds"), [(10.0, 5), (1.0, 1), (math.inf, 5)])
def test_training_has_one_round_with_large_noise(epsilon: float, rounds: int) -> None:
    quick = configure(DgdWorking, "quick", {}, "method")
    assert quick.training(quick.plan(Budget(epsilon), "mnist")).rounds == rounds


@pytest.mark.parametrize("method", [printed(), learning(reading="argmax")])
def test_label_without_noise_is_the_plurality(method: Dgd | DgdWorking) -> None:
    of, images = teacher(), torch.rand(6, *SHAPE, generator=rng())
    labels = method.label(VotePlan(Aggregation("laplace", 0.0), 6, 6, 3), images, of.members(), rng())
    labels = labels.exp() if isinstance(method, DgdWorking) else labels
    assert torch.allclose(labels, F.one_hot(of.members().votes(images).argmax(1), CLASSES).float(), atol=1e-4)


def test_label_posterior_reflects_the_noise() -> None:
    of, images = teacher(), torch.rand(6, *SHAPE, generator=rng())
    sure, drowned = (
        learning().label(VotePlan(Aggregation("laplace", scale), 6, 6, 3), images, of.members(), rng()).exp()
        for scale in (0.0, 1e4)
    )
    assert torch.equal(sure.argmax(1), of.members().votes(images).argmax(1)) and sure.amax() > 0.9
    assert drowned.amax() < 1 / CLASSES + 0.05 and torch.allclose(drowned.sum(1), torch.ones(6), atol=1e-5)


def test_label_refuses_queries_beyond_the_plan() -> None:
    with pytest.raises(ValueError, match=r"7\b.*\b6"):
        printed().label(
            VotePlan(Aggregation("laplace", 1.0), 6, 6, 3), torch.rand(7, *SHAPE), teacher().members(), rng()
        )


def test_private_images_are_used_and_charged() -> None:
    method = printed(images="private")
    assert method.needs == Dgd().needs | {"private_data"} and "private_data" not in Dgd().needs
    private = (torch.randint(0, 256, (60, *SHAPE), dtype=torch.uint8), torch.zeros(60, dtype=torch.long))
    spy = Spy(toy_teacher().model)
    release = convert(method, teacher(private=private, model=spy))
    assert not spy.queried and not spy.with_gradient and release.generator is None and release.synthetic is None
    assert any("private images" in e.why for e in release.ledger.entries(Unit.EXAMPLE))
    assert release.claim is not None and defect(release.claim.source) == "private-images-not-charged"
    few = (private[0][:6], private[1][:6])
    with pytest.raises(BenchError, match="6 queries for 6"):
        convert(method, teacher(private=few))


@pytest.mark.parametrize("method", [Dgd(), DgdWorking(aggregation="laplace")])
@pytest.mark.parametrize(("queries", "golden"), [(400, 5.7985), (1000, 10.087)])
def test_golden_claims(method: Dgd | DgdWorking, queries: int, golden: float) -> None:
    """Section IV-C: 5.80 for 400 queries and 10.1 for 1000, at 2 / epsilon_0 = 40 and delta 1e-5."""
    method = replace(method, queries=queries)
    claim = method.claim(method.plan(Budget(None, solve="none"), "mnist"), 1e-5)
    assert claim.epsilon == pytest.approx(golden, abs=1e-3)
    assert claim.unit == Unit.EXAMPLE and ("not charged" in claim.source) == isinstance(method, Dgd)
    assert defect(claim.source) == ("baseline-not-charged" if isinstance(method, Dgd) else "")


def test_code_noise_enters_claim_and_budget() -> None:
    noisy = replace(Dgd(), queries=1000, code_epsilon=0.01)
    assert noisy.claim(noisy.plan(Budget(None, solve="none"), "mnist"), 1e-5).epsilon == pytest.approx(10.097, abs=1e-3)
    assert noisy.claim(noisy.plan(Budget(3.0), "mnist"), 1e-5).epsilon == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize(("target", "queries"), [(1.0, 27), (1.1, 1300), (10.0, 1300)])
def test_plan_uses_the_papers_queries(target: float, queries: int) -> None:
    plan = Dgd().plan(Budget(target), "mnist")
    assert plan.queries == queries
    claimed = Dgd().claim(plan, 1e-5).epsilon
    assert claimed == pytest.approx(target, rel=1e-3) and claimed <= target


def test_plan_limits_queries_by_the_noise() -> None:
    """At claimed epsilon 10 a noise of 50 votes, a tenth of 500 teachers, is that of 5002 queries; 1300 at least."""
    free = DgdWorking(teachers=500)
    plan = free.plan(Budget(10.0), "mnist")
    assert plan.queries == 5002 and plan.aggregation.scale == pytest.approx(50.0, rel=1e-3)
    assert free.plan(Budget(1.0), "mnist").queries == free.plan(Budget(4.0), "mnist").queries == 1300
    assert replace(free, teachers=3).plan(Budget(9.0), "digits").queries == 1300
    assert free.plan(Budget(math.inf), "mnist").queries == working.MAX_QUERIES
    assert replace(free, queries=700).plan(Budget(10.0), "mnist").queries == 700
    assert free.plan(Budget(10.0, account="accounted", unit=Unit.QUERY), "mnist").queries == working.MAX_QUERIES


@pytest.mark.parametrize("method", [printed(aggregation="gaussian"), learning(aggregation="gaussian")])
def test_claim_of_gaussian_votes_is_accounted(method: Dgd | DgdWorking) -> None:
    plan = method.plan(Budget(2.0), "digits")
    assert method.claim(plan, 1e-5).epsilon == pytest.approx(2.0, rel=1e-3)
    answers, *unprotected = method.ledger(plan).entries(Unit.EXAMPLE)
    assert isinstance(answers.event, GaussianDpEvent) and answers.count == plan.queries
    assert [each.event for each in unprotected] == [NonPrivateDpEvent()] * isinstance(method, Dgd)


@pytest.mark.parametrize("given", [{}, {"prior": "generator"}, {"aggregation": "laplace"}])
def test_accounted_budget_is_met_without_baseline(given: dict[str, str]) -> None:
    release = convert(learning(**given), teacher(), Budget(3.0, account="accounted"))
    found = account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon
    assert 2.9 < found <= 3.0


@pytest.mark.thorough
@pytest.mark.parametrize("method", [printed(), learning()])
def test_audit_does_not_refute_the_ledger(method: Dgd | DgdWorking) -> None:
    found = audit(method.game(Budget(6.0), "digits", CLASSES), 100_000)
    assert found.verdict == "not refuted" and found.lower_bound > 0


@pytest.mark.parametrize("method", [printed(), learning(prior="baseline")])
@pytest.mark.parametrize("epsilon", [None, math.inf])
def test_plan_without_finite_budget_is_not_refused(method: Dgd | DgdWorking, epsilon: float | None) -> None:
    plan = method.plan(Budget(epsilon, account="accounted", solve="none"), "digits")
    assert plan.aggregation.scale == (method.scale if epsilon is None else 0)


@pytest.mark.parametrize(
    "method",
    [
        printed(aggregation="gaussian", follow="equations", code_epsilon="0.01"),
        printed(generator_steps="0"),
        printed(synthetic="257", step_size="0.1"),
        learning(reading="argmax", jitter="no"),
        learning(prior="generator", rounds="1"),
        learning(early="0"),
        learning(evolve="0", choose="1"),
    ],
    ids=repr,
)
def test_options_run(method: Dgd | DgdWorking) -> None:
    release = convert(method, teacher(), Budget(50.0))
    assert all(torch.isfinite(w).all() for w in release.student.state_dict().values())
    assert release.ledger.entries(Unit.EXAMPLE)


def test_shards_are_the_papers() -> None:
    shards = Dgd().shards("resnet18", "mnist")
    assert (shards.count, shards.archs, shards.steps, shards.batch) == (250, ("dgd-cnn",), 3000, 128)
    assert (shards.lr, shards.shift) == (0.05, 0)
    assert DgdWorking().shards("resnet18", "mnist").count == 250
    for method in (Dgd(), DgdWorking()):
        assert replace(method, teacher_net="same").shards("resnet18", "mnist").archs == ("resnet18",)


@pytest.mark.parametrize(("dataset", "count", "net"), [("digits", 48, "shard-cnn"), ("mnist", 500, "scatter-linear")])
def test_shards_of_tier_quick_depend_on_the_data_set(dataset: str, count: int, net: str) -> None:
    shards = configure(DgdWorking, "quick", {}, "method").shards("resnet18", dataset)
    assert (shards.count, shards.archs) == (count, (net,))
