"""PATE: which images are queried, the student's training data, and the cost of the votes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import FREE, epsilon_of, record_calls, refused, rng
from dp_accounting import NonPrivateDpEvent
from pate_made import BOTH, PUBLIC, UNBOUNDED, convert, paper, queried, smoke, toy
from torch import Tensor, nn

from baselines.pate import Pate
from baselines.pate_gnmax import PateGnmax
from bench.config import configure
from bench.distillation.votes import voted_student
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan, posterior
from bench.distillation.votes.pate import DIAGNOSTIC, NoisyVotes
from bench.distillation.votes.vote_bounds import FEW_WHOLE_ORDERS
from bench.errors import RunFailed
from bench.privacy import Budget, Unit
from bench.privacy.accountant import check_budget
from bench.privacy.audit import audit
from bench.testing import CLASSES, SHAPE, context, toy_private


@pytest.mark.parametrize("images", ["strokes", "generated"])
@BOTH
def test_data_free_images_use_no_records(cls: type[Any], images: str) -> None:
    assert smoke(cls, images=images).needs == {"teacher_ensemble"}
    release = convert(cls, of=toy(private=None), images=images)
    assert all(e.event != NonPrivateDpEvent() for e in release.ledger.entries()) and release.control is None
    shown = release.synthetic
    assert shown is not None and 0 <= shown.min() < shown.max() <= 1 and shown.std() > 0.05


@BOTH
def test_private_images_are_unprotected_in_the_ledger(cls: type[Any]) -> None:
    assert smoke(cls, images="private").needs == {"teacher_ensemble", "private_data"}
    release = convert(cls, of=toy(private=toy_private()), images="private")
    assert math.isinf(epsilon_of(release.ledger))
    assert release.claim is not None and release.claim.epsilon <= 10 and "not charged" in release.claim.source
    assert release.synthetic is None and release.control is None


def rows(images: Tensor) -> set[bytes]:
    return {(image * 255).round().to(torch.uint8).numpy().tobytes() for image in images}


@BOTH
def test_public_images_are_the_default(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only public images are queried, each once, and the student is trained on nothing else."""
    assert cls().images == "public" and cls().needs == {"teacher_ensemble", "public_data"}
    calls = record_calls(monkeypatch, NoisyVotes, "_learn")
    release = convert(cls, UNBOUNDED, **({"threshold": "0"} if cls is PateGnmax else {}))
    _, _, _, images, _, further, _ = calls[0].arguments
    answered, rest = rows(images), rows(further)
    queries = smoke(cls).query_count
    assert (len(answered), len(rest)) == (queries, 16) and not answered & rest
    assert answered | rest < rows(PUBLIC / 255)
    assert release.synthetic is None and release.control is None, "neither made here nor to be compared with"


def test_too_few_public_images_are_refused() -> None:
    assert smoke(Pate).least_public() == 4 and smoke(Pate, images="strokes").least_public() == 0
    assert smoke(PateGnmax, responses="2").least_public() == 8, "every image that is put to the threshold"
    with refused(r"81 .* 80 "):
        convert(Pate, FREE, query_count="81")
    assert convert(Pate, FREE, query_count="80").solved["queries"] == 80


def test_images_are_queried_once_each() -> None:
    images = voted_student.draw_some(PUBLIC, "private", 10, 70, rng())
    assert images.shape == (70, *SHAPE) and images.dtype == torch.float32 and images.max() <= 1
    assert len(images.flatten(1).unique(dim=0)) == 70
    with refused(r"81 .* 80 "):
        voted_student.draw_some(PUBLIC, "private", 81, 90, rng())


@BOTH
def test_noiseless_targets_are_the_pluralities(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calls, of = record_calls(monkeypatch, NoisyVotes, "_learn"), toy()
    convert(cls, UNBOUNDED, of, **({"threshold": "0"} if cls is PateGnmax else {}))
    (votes,) = of.members().seen  # type: ignore[misc]
    targets = calls[0].arguments[4]
    assert torch.equal(targets.argmax(1), votes.argmax(1)) and (targets.sum(1) == 1).all()  # type: ignore[attr-defined]


def test_answers_stay_with_their_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the images that pass are those on which most teachers agree.

    The student also learns from the eight further images, but not from those that fail the threshold.
    """
    calls, of = record_calls(monkeypatch, NoisyVotes, "_learn"), toy(5)
    convert(PateGnmax, UNBOUNDED, of, threshold="0.7", query_count="40", responses="40", unlabelled="8", teachers="5")
    _, _, _, images, targets, further, _ = calls[0].arguments
    (votes,) = of.members().seen  # type: ignore[misc]
    assert len(votes) == 40 and len(further) == len(rows(further)) == 8
    assert not rows(images) & rows(further)
    most = votes.amax(1)
    assert 0 < len(images) == int((most > 3.5).sum()) < 40
    again = of.members().votes(images)
    assert bool((again.amax(1) > 3.5).all()) and torch.equal(again.argmax(1), targets.argmax(1))
    assert len(targets.argmax(1).unique()) > 1


def test_student_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shown(nn.Module):
        """Its logits are the image's first pixels."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, 0, 0, :CLASSES] + self.weight

    cross_entropy, seen, steps = F.cross_entropy, [], []

    def spy(logits: Tensor, targets: Tensor, **given: Any) -> Tensor:
        torch.testing.assert_close(logits.detach(), targets)
        seen.append(len(targets))
        return 0 * cross_entropy(logits, targets, **given)

    def step(self: torch.optim.Adam, closure: Any = None) -> None:
        (weight,) = self.param_groups[0]["params"]
        steps.append((self.param_groups[0]["lr"], float(weight.grad)))

    monkeypatch.setattr(voted_student.F, "cross_entropy", spy)
    monkeypatch.setattr(voted_student.nets, "build", lambda *given: Shown())
    monkeypatch.setattr(torch.optim.Adam, "step", step)
    monkeypatch.setattr(Pate, "_self_training_loss", lambda self, made, *rest: made.weight.sum())
    images = torch.rand(30, *SHAPE, generator=rng())
    method = smoke(Pate, steps="4", batch="20", unlabelled_weight="0.5", augment="false", lr="0.01")
    method._learn("shown", toy(), images, images[:, 0, 0, :CLASSES], images[:5], context())
    rates, gradients = zip(*steps, strict=True)
    assert seen == [20] * 4 and rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    assert gradients == (0.5,) * 4, "the other images' loss has the weight of the option"


def test_targets_are_the_plurality_or_posterior() -> None:
    """At Gaussian noise of 3 votes among 9 teachers, and 4 queries."""
    counts = torch.tensor([[6.0, 2.0, 1.0, 0.0], [3.0, 4.0, 1.0, 1.0]])
    plan = VotePlan(Aggregation("gaussian", 3.0), queries=4, candidates=4, teachers=9)
    plurality, spread = (smoke(Pate, target_estimator=by)._targets(counts, plan) for by in ("argmax", "posterior"))
    assert plurality.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    torch.testing.assert_close(spread, posterior(counts, plan.aggregation, 9))
    assert not torch.allclose(spread, posterior(counts, plan.aggregation, 4), atol=1e-3)


def test_pseudo_labels_need_a_confident_student(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of means 0, 1, 1 under logits (4 m, 0): p = 1/2, s, s = sigmoid(4); mean of 0, -log s, -log s."""

    class Means(nn.Module):
        """Logits (mean of the image, 0), scaled."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(4.0))

        def forward(self, x: Tensor) -> Tensor:
            return F.pad(x.flatten(1).mean(1, keepdim=True) * self.scale, (0, 1))

    monkeypatch.setattr(voted_student, "random_affine", lambda images, rng: images)
    images = torch.stack([torch.zeros(SHAPE), torch.ones(SHAPE), torch.ones(SHAPE)])
    net, s = Means(), 1 / (1 + math.exp(-4))
    loss = smoke(Pate, sure="0.9")._self_training_loss(net, net, images, rng())
    assert float(loss.detach()) == pytest.approx(-2 * math.log(s) / 3, rel=1e-5)
    assert net.training
    (gradient,) = torch.autograd.grad(loss, [net.scale])
    assert float(gradient) == pytest.approx(-2 * (1 - s) / 3, rel=1e-4), "no gradient flows through the answer"
    never = smoke(Pate, sure="1")._self_training_loss(net, net, images, rng())
    assert float(never.detach()) == 0


@pytest.mark.parametrize(
    "given",
    [{"unlabelled": "0"}, {"unlabelled_weight": "0", "augment": "false"}, {"target_estimator": "posterior"},
     {"sure": "0"}],
    ids=lambda given: "-".join(given),
)  # fmt: skip
def test_every_option_changes_the_student(given: dict[str, str]) -> None:
    x = torch.rand(4, *SHAPE, generator=rng())
    plain, changed = convert(Pate).student(x), convert(Pate, **given).student(x)
    assert changed.isfinite().all() and not torch.equal(plain, changed)


def test_threshold_without_answers_is_an_error() -> None:
    with pytest.raises(RunFailed, match="threshold"):
        convert(PateGnmax, UNBOUNDED, threshold="1.5")


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_default_number_of_teachers_by_data_set(name: str) -> None:
    assert paper(Pate, teachers="0").shards("resnet18", name).count == {"digits": 48, "mnist": 250}[name]
    assert paper(Pate, teacher_net="same").shards("resnet18", name).archs == ("resnet18",)


GOLDEN: list[Any] = [
    (Pate, "printed", "strokes", {"scale": 4.498113352967674}, 8.893768454719526, 7.999674368963196,
     [[0.0156368, 0.6358707, 0.0725104, -0.1601128], [0.2518874, 0.3696991, 0.2139836, -0.3993086]]),
    (PateGnmax, "working", "private", {"scale": 3.1952803759994803, "threshold_scale": 11.982301409998051},
     7.99984067809311, math.inf,
     [[1.1573278, -1.2705559, -0.2711231, -0.1422350], [1.0827701, -1.9268242, 0.1623490, 0.2969910]]),
]  # fmt: skip
"""Golden values of version 1, tiers paper and quick: noise, claim, accounted epsilon and two rows of logits."""


@pytest.mark.thorough
@pytest.mark.usefixtures("usual_draws")
@pytest.mark.parametrize("case", GOLDEN, ids=["pate", "pate-gnmax"])
def test_outputs_match_golden_values(case: Any) -> None:
    cls, variant, images, solved, claimed, proved, logits = case
    given = {"images": images, "query_count": "20", "unlabelled": "30", "steps": "30", "teachers": "3", "batch": "16",
             "teacher_net": "shard-cnn"} | ({"responses": "10"} if cls is PateGnmax else {})  # fmt: skip
    method = configure(cls, "paper" if variant == "printed" else "quick", given, "method", variant)
    against: Any = "claimed" if images == "private" else "accounted"
    of = toy(private=toy_private())  # leaves torch seeded
    release = method.convert(of, "datalens", Budget(8.0, account=against), replace(context(), seed=3))
    assert {name: release.solved[name] for name in solved} == pytest.approx(solved, rel=1e-9)
    assert release.claim is not None and release.claim.epsilon == pytest.approx(claimed, rel=1e-6)
    assert epsilon_of(release.ledger) == pytest.approx(proved, rel=1e-6)
    with torch.no_grad():
        found = release.student.eval()(torch.rand(2, *SHAPE, generator=rng()))
    assert torch.allclose(found, torch.tensor(logits), atol=1e-4)


@pytest.mark.parametrize(("queries", "golden"), [(100, 5.30), (1000, 20.76)])
def test_claim_of_laplace_votes(queries: int, golden: float) -> None:
    """e0 = 1/10; slope s = n e0^2 / 2; s (l + 1) + log(1e5) / l, at l = 5 for 100 queries and 2 for 1000."""
    method = paper(Pate, query_count=str(queries))
    claim = method.claim(method.plan(FREE, "mnist"), 1e-5)
    slope, order = queries * 0.01 / 2, 5 if queries == 100 else 2
    assert claim.epsilon == pytest.approx(slope * (order + 1) + math.log(1e5) / order)
    assert claim.epsilon == pytest.approx(golden, abs=0.005)
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


@BOTH
def test_claim_is_at_least_the_account(cls: type[Any]) -> None:
    method = smoke(cls)
    plan = method.plan(FREE, "toy")
    claimed, bare = method.claim(plan, 1e-5), replace(method, images="strokes").claim(plan, 1e-5)
    assert claimed == bare and method.ledger(plan).to_json() == plan.ledger().to_json()
    assert claimed.epsilon >= epsilon_of(method.ledger(plan))


@pytest.mark.parametrize("against", ["claimed", "accounted"])
@pytest.mark.parametrize("images", ["public", "strokes"])
@BOTH
def test_budget_is_met_and_nearly_spent(cls: type[Any], images: str, against: Any) -> None:
    budget = Budget(3.0, account=against)
    release = convert(cls, budget, images=images, query_count="4", **({"responses": "3"} if cls is PateGnmax else {}))
    check_budget(release.ledger, release.claim, budget)
    assert release.claim is not None
    spent = release.claim.epsilon if against == "claimed" else epsilon_of(release.ledger)
    assert 0.99 * 3.0 < spent <= 3.0


@BOTH
def test_claim_uses_the_budgets_delta(cls: type[Any]) -> None:
    release = convert(cls, Budget(3.0, 1e-7))
    assert release.claim is not None and release.claim.delta == 1e-7
    assert 0.99 * 3 < release.claim.epsilon <= 3
    assert epsilon_of(release.ledger, delta=1e-7) <= release.claim.epsilon


@pytest.mark.parametrize("given", [{}, {"threshold": "0"}, {"threshold": "0.9"}, {"responses": "1"}])
def test_votes_are_drawn_as_often_as_charged(given: dict[str, str]) -> None:
    of = toy()
    answers = {} if given.get("threshold") == "0" else {"responses": "8"}  # plain GNMax answers all queries
    release = convert(PateGnmax, of=of, **({"query_count": "16"} | answers | given))
    entries = {e.why.split(" of ")[0]: e.count for e in release.ledger.entries(Unit.EXAMPLE)}
    threshold = entries.get("the noisy largest count, against the threshold")
    assert queried(of) == release.solved["queries"] == (threshold or entries["noisy votes"]) == 16
    assert release.solved["answered"] <= entries["noisy votes"] == release.solved["answers"]


def test_laplace_votes_are_drawn_as_often_as_charged() -> None:
    of = toy()
    release = convert(Pate, of=of, query_count="17")
    assert queried(of) == 17 == release.ledger.entries(Unit.EXAMPLE)[0].count == release.solved["answered"]


@BOTH
def test_vote_noise_is_that_of_the_ledger(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, voted_student, "noisy_votes")
    release = convert(cls)
    counted, entry = [call.arguments[0].aggregation.scale for call in calls], release.ledger.entries(Unit.EXAMPLE)
    noise = entry[0].event.noise_multiplier * 2 if cls is Pate else entry[0].event.noise_multiplier * math.sqrt(2)
    assert counted == [pytest.approx(noise)] and release.solved["scale"] == counted[0]
    if cls is PateGnmax:
        assert release.solved["threshold_scale"] == pytest.approx(entry[1].event.noise_multiplier) != counted[0]


@pytest.mark.thorough
@BOTH
def test_audit_refutes_only_a_third_of_the_claim(cls: type[Any]) -> None:
    method = smoke(cls, query_count="8", **({"responses": "8"} if cls is PateGnmax else {}))
    game = method.game(Budget(30.0), "toy", CLASSES)
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
