"""PATE: theorems against closed forms and brute force, what is asked and charged, refusals, what is released."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent
from scipy import integrate, stats
from torch import Tensor, nn

from baselines.pate import Pate
from baselines.pate_gnmax import PateGnmax
from bench import nets
from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.votes import vote_bounds, voted_student
from bench.distillation.votes.pate import DIAGNOSTIC, NoisyVotes
from bench.distillation.votes.vote_bounds import (
    FEW_WHOLE_ORDERS,
    ORDERS,
    Values,
    gaussian_renyi_of_events,
    laplace_renyi_of_votes,
    log_rarer_side,
    log_wrong_gaussian,
    log_wrong_laplace,
)
from bench.errors import BenchError, RunFailed
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account, check_budget
from bench.privacy.audit import audit
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

FREE = Budget(math.inf, solve="none")
FIELDS = Budget(None, solve="none")
BOTH = pytest.mark.parametrize("cls", [Pate, PateGnmax])
VOTES = [[12, 2, 1], [9, 5, 1], [7, 7, 1], [15, 0, 0], [30, 3, 2], [60, 0, 1]]


class SpyEnsemble(nets.Ensemble):
    """An ensemble that counts the images it votes on, and keeps the votes."""

    def votes(self, images: Tensor) -> Tensor:
        counts = super().votes(images)
        self.seen: list[Tensor] = [*getattr(self, "seen", []), counts]
        return counts


class Untouchable(nn.Module):
    """A network that must not be asked."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the undefended teacher was asked")


def smoke(cls: type[Any], **given: str) -> Any:
    return configure(cls, "smoke", given, "method")


PUBLIC = toy_private(seed=1)[0]


def toy(count: int = 3, **held: Any) -> Teacher:
    """Three teachers and 80 public images, or what else is held."""
    made = SpyEnsemble.build(["shard-cnn"], count, SHAPE, CLASSES, range(count)).eval().requires_grad_(False)
    parts: dict[str, Any] = {"ensemble": made, "model": Untouchable()} | (held or {"public": PUBLIC})
    return replace(toy_teacher(), **parts)


def convert(cls: type[Any], budget: Budget | None = None, of: Teacher | None = None, **given: str) -> Release:
    torch.manual_seed(0)
    return smoke(cls, **given).convert(of or toy(), "datalens", budget or Budget(10.0), context())


def asked(of: Teacher) -> int:
    return sum(map(len, of.members().seen))  # type: ignore[arg-type]


def paper(cls: type[Any], **given: str) -> Any:
    return configure(cls, "paper", given, "method", "printed")


@pytest.mark.parametrize(("queries", "golden"), [(100, 5.30), (1000, 20.76)])
def test_the_claim_of_laplace_votes(queries: int, golden: float) -> None:
    """e0 = 1/10; slope s = n e0^2 / 2; s (l + 1) + log(1e5) / l, at l = 5 for 100 queries and 2 for 1000."""
    method = paper(Pate, query_count=str(queries))
    claim = method.claim(method.plan(FIELDS, "mnist"), 1e-5)
    slope, order = queries * 0.01 / 2, 5 if queries == 100 else 2
    assert (
        claim.epsilon == pytest.approx(slope * (order + 1) + math.log(1e5) / order) == pytest.approx(golden, abs=0.005)
    )
    assert claim.unit == Unit.EXAMPLE and claim.source == method.theorem, "public images need no excuse"


@pytest.mark.parametrize(("answers", "golden"), [(286, 3.17), (640, 4.78)])
def test_the_claim_of_gaussian_votes(answers: int, golden: float) -> None:
    method = paper(PateGnmax, answers=str(answers))
    plan = method.plan(FIELDS, "mnist")
    assert plan.aggregation.threshold == 200 and plan.aggregation.threshold_scale == 150
    assert method.claim(plan, 1e-5).epsilon == pytest.approx(golden, abs=0.005)


@pytest.mark.parametrize(
    ("queries", "target", "scale"), [(100, 1, 98), (100, 10, 11.4), (500, 1, 219), (500, 10, 25.5), (1000, 10, 36)]
)
def test_the_scale_that_laplace_votes_need(queries: int, target: float, scale: float) -> None:
    plan = paper(Pate, query_count=str(queries)).plan(Budget(target), "mnist")
    assert plan.aggregation.scale == pytest.approx(scale, rel=0.01)


@pytest.mark.parametrize(
    ("account", "target", "sigma"),
    [("claimed", 1, 69), ("claimed", 10, 8), ("accounted", 1, 52.8), ("accounted", 10, 7.1)],
)
def test_the_sigma_that_gaussian_votes_need(account: Any, target: float, sigma: float) -> None:
    """100 queries of plain GNMax: by the paper's conversion, and exactly (sigma = sqrt(200) / mu)."""
    method = paper(PateGnmax, threshold="0", query_count="100")
    plan = method.plan(Budget(target, account=account), "mnist")
    assert plan.aggregation.scale == pytest.approx(sigma, rel=0.02)


def test_the_claim_is_no_smaller_than_what_is_proved_and_images_cost_nothing() -> None:
    for cls in (Pate, PateGnmax):
        method = smoke(cls)
        plan = method.plan(FIELDS, "toy")
        claimed, bare = method.claim(plan, 1e-5), replace(method, images="strokes").claim(plan, 1e-5)
        assert claimed == bare and method.ledger(plan).to_json() == plan.ledger().to_json()
        assert claimed.epsilon >= account(method.ledger(plan), Unit.EXAMPLE, 1e-5).epsilon


@pytest.mark.parametrize("against", ["claimed", "accounted"])
@pytest.mark.parametrize("images", ["public", "strokes"])
@BOTH
def test_the_budget_is_met_and_nearly_spent(cls: type[Any], images: str, against: Any) -> None:
    budget = Budget(3.0, account=against)
    release = convert(cls, budget, images=images, query_count="4", **({"answers": "3"} if cls is PateGnmax else {}))
    check_budget(release.ledger, release.claim, budget)
    assert release.claim is not None
    spent = release.claim.epsilon
    if against == "accounted":
        spent = account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon
    assert 0.99 * 3.0 < spent <= 3.0


def test_the_ledger_of_laplace_votes() -> None:
    """12 answers at scale 20, one vote of which moves: L1 sensitivity 2."""
    method = smoke(Pate, scale="20", query_count="12")
    (votes,) = method.ledger(method.plan(FIELDS, "toy")).entries(Unit.EXAMPLE)
    assert (votes.event, votes.count) == (LaplaceDpEvent(10.0), 12)


def test_the_threshold_is_charged_for_every_image_asked_about() -> None:
    """16 images at sigma_1 = 15, 8 answers at sigma_2 = 4: mu^2 = 16 / 225 + 8 * 2 / 16."""
    method = smoke(PateGnmax, scale="4", query_count="16", answers="8")
    ledger = method.ledger(method.plan(FIELDS, "toy"))
    answers, threshold = ledger.entries(Unit.EXAMPLE)
    assert (answers.event, answers.count) == (GaussianDpEvent(4 / math.sqrt(2)), 8)
    assert (threshold.event, threshold.count) == (GaussianDpEvent(15.0), 16)
    mu, found = math.sqrt(16 / 225 + 8 * 2 / 16), account(ledger, Unit.EXAMPLE, 1e-5).epsilon
    delta = stats.norm.cdf(mu / 2 - found / mu) - math.exp(found) * stats.norm.cdf(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("given", [{}, {"threshold": "0"}, {"threshold": "0.9"}, {"answers": "1"}])
def test_votes_are_asked_exactly_as_often_as_charged(given: dict[str, str]) -> None:
    of = toy()
    answers = {} if given.get("threshold") == "0" else {"answers": "8"}  # plain GNMax answers whatever it is asked
    release = convert(PateGnmax, of=of, **({"query_count": "16"} | answers | given))
    entries = {e.why.split(" of ")[0]: e.count for e in release.ledger.entries(Unit.EXAMPLE)}
    threshold = entries.get("the noisy largest count, against the threshold")
    assert asked(of) == release.solved["queries"] == (threshold or entries["noisy votes"]) == 16
    assert release.solved["answered"] <= entries["noisy votes"] == release.solved["answers"]


def test_laplace_votes_are_asked_exactly_as_often_as_charged() -> None:
    of = toy()
    release = convert(Pate, of=of, query_count="17")
    assert asked(of) == 17 == release.ledger.entries(Unit.EXAMPLE)[0].count == release.solved["answered"]


@BOTH
def test_the_noise_of_the_votes_is_what_the_ledger_says(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[float] = []

    def votes(plan: Any, *given: Any) -> Any:
        counted.append(plan.aggregation.scale)
        return ask(plan, *given)

    ask = voted_student.ask
    monkeypatch.setattr(voted_student, "ask", votes)
    release = convert(cls)
    entry = release.ledger.entries(Unit.EXAMPLE)
    noise = entry[0].event.noise_multiplier * 2 if cls is Pate else entry[0].event.noise_multiplier * math.sqrt(2)
    assert counted == [pytest.approx(noise)] and release.solved["scale"] == counted[0]


@pytest.mark.parametrize("images", ["strokes", "generated"])
@BOTH
def test_data_free_images_touch_no_record(cls: type[Any], images: str) -> None:
    assert smoke(cls, images=images).needs == {"teacher_ensemble"}
    release = convert(cls, of=toy(private=None), images=images)
    assert all(e.event != NonPrivateDpEvent() for e in release.ledger.entries()) and release.control is None
    shown = release.synthetic
    assert shown is not None and 0 <= shown.min() < shown.max() <= 1 and shown.std() > 0.05


@BOTH
def test_private_images_are_unprotected_and_said_to_be(cls: type[Any]) -> None:
    assert smoke(cls, images="private").needs == {"teacher_ensemble", "private_data"}
    release = convert(cls, of=toy(private=toy_private()), images="private")
    assert math.isinf(account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon)
    assert release.claim is not None and release.claim.epsilon <= 10 and "not charged" in release.claim.source
    assert release.synthetic is None and release.control is None


def rows(images: Tensor) -> set[bytes]:
    return {(image * 255).round().to(torch.uint8).numpy().tobytes() for image in images}


@BOTH
def test_public_images_are_the_papers_and_the_default(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The teachers are asked about public images, the student learns from nothing else, and no image is asked twice."""
    assert cls().images == "public" and cls().needs == {"teacher_ensemble", "public_data"}
    learnt: list[Tensor] = []
    learn = NoisyVotes._learn

    def spy(self: Any, student: str, teacher: Teacher, asked: Tensor, targets: Tensor, rest: Tensor, ctx: Any) -> Any:
        learnt.extend([asked, rest])
        return learn(self, student, teacher, asked, targets, rest, ctx)

    monkeypatch.setattr(NoisyVotes, "_learn", spy)
    release = convert(cls, FREE, **({"threshold": "0"} if cls is PateGnmax else {}))
    answered, rest = map(rows, learnt)
    queries = smoke(cls).query_count
    assert (len(answered), len(rest)) == (queries, 16) and not answered & rest
    assert answered | rest < rows(PUBLIC / 255)
    assert release.synthetic is None and release.control is None, "neither made here nor to be compared with"


def test_too_few_public_images_are_refused_and_few_further_ones_are_not() -> None:
    assert smoke(Pate).least_public() == 4 and smoke(Pate, images="strokes").least_public() == 0
    assert smoke(PateGnmax, answers="2").least_public() == 8, "every image that is put to the threshold"
    with pytest.raises(BenchError, match="81 images to query of 80 public ones; lower"):
        convert(Pate, FIELDS, query_count="81")
    assert convert(Pate, FIELDS, query_count="80").solved["queries"] == 80
    with pytest.raises(RuntimeError, match="public_data"):
        convert(Pate, of=toy(private=toy_private()))


def test_images_are_asked_about_once_each() -> None:
    rng = torch.Generator().manual_seed(0)
    images = voted_student.some_of(PUBLIC, "private", 10, 70, rng)
    assert images.shape == (70, *SHAPE) and images.dtype == torch.float32 and images.max() <= 1
    assert len(images.flatten(1).unique(dim=0)) == 70
    with pytest.raises(BenchError, match="81 images to query of 80 private ones"):
        voted_student.some_of(PUBLIC, "private", 81, 90, rng)


@BOTH
def test_without_noise_the_student_gets_the_teachers_pluralities(
    cls: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[Tensor] = []
    learn = NoisyVotes._learn

    def spy(self: Any, *given: Any) -> Any:
        got.append(given[3])
        return learn(self, *given)

    monkeypatch.setattr(NoisyVotes, "_learn", spy)
    of = toy()
    release = convert(cls, FREE, of, **({"threshold": "0"} if cls is PateGnmax else {}))
    (votes,) = of.members().seen  # type: ignore[misc]
    assert torch.equal(got[0].argmax(1), votes.argmax(1)) and (got[0].sum(1) == 1).all()  # type: ignore[attr-defined]
    assert release.claim is not None and math.isinf(release.claim.epsilon) and release.solved["scale"] == 0
    assert all(e.event == NonPrivateDpEvent() for e in release.ledger.entries(Unit.EXAMPLE))


class Fixed(nn.Module):
    """Logits (mean of the image, 0), scaled."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1) * self.scale
        return torch.stack([mean, torch.zeros_like(mean)], 1)


def test_own_answers_count_only_where_the_student_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of means 0, 1, 1 under logits (4 m, 0): p = 1/2, s, s = sigmoid(4); mean of 0, -log s, -log s."""
    monkeypatch.setattr(voted_student, "random_affine", lambda images, rng: images)
    images = torch.stack([torch.zeros(SHAPE), torch.ones(SHAPE), torch.ones(SHAPE)])
    net, s = Fixed(4.0), 1 / (1 + math.exp(-4))
    loss = smoke(Pate, sure="0.9")._own_answers(net, net, images, torch.Generator())
    assert float(loss.detach()) == pytest.approx(-2 * math.log(s) / 3, rel=1e-5)
    assert net.training
    (gradient,) = torch.autograd.grad(loss, [net.scale])
    assert float(gradient) == pytest.approx(-2 * (1 - s) / 3, rel=1e-4), "no gradient flows through the answer"
    never = smoke(Pate, sure="1")._own_answers(net, net, images, torch.Generator())
    assert float(never.detach()) == 0


@pytest.mark.parametrize(
    "given",
    [{"unlabelled": "0"}, {"unlabelled_weight": "0", "augment": "false"}, {"target_estimator": "posterior"},
     {"sure": "0"}],
    ids=lambda given: "-".join(given),
)  # fmt: skip
def test_options_run_and_move_the_student(given: dict[str, str]) -> None:
    x = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    plain, changed = convert(Pate).student(x), convert(Pate, **given).student(x)
    assert changed.isfinite().all() and not torch.equal(plain, changed)


def test_a_threshold_that_no_vote_reaches_fails_with_a_way_out() -> None:
    with pytest.raises(RunFailed, match="threshold"):
        convert(PateGnmax, FREE, threshold="1.5")


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_zero_teachers_means_as_many_as_the_data_set_bears(name: str) -> None:
    assert paper(Pate, teachers="0").shards("resnet18", name).count == {"digits": 48, "mnist": 250}[name]
    assert paper(Pate, teacher_net="same").shards("resnet18", name).archs == ("resnet18",)


@pytest.mark.parametrize(
    ("given", "budget", "says"),
    [
        ({"images": "private"}, Budget(3.0, account="accounted"), "images public"),
        ({}, Budget(3.0, unit=Unit.CLIENT), "per example or per query"),
        ({}, Budget(0.001, solve="steps"), "does not allow a single use"),
        ({}, Budget(3.0, unit=Unit.QUERY, account="accounted", solve="steps"), "solve sigma"),
    ],
)
@BOTH
def test_impossible_budgets_are_refused_in_one_line(
    cls: type[Any], given: dict[str, str], budget: Budget, says: str
) -> None:
    with pytest.raises(BenchError, match=says) as caught:
        smoke(cls, **given).check(budget, "toy", CLASSES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (Pate, {"query_count": "0"}),
        (Pate, {"scale": "-1"}),
        (Pate, {"sure": "1.1"}),
        (Pate, {"batch": "1"}),
        (Pate, {"teachers": "-1"}),
        (Pate, {"target_estimator": "posterior", "diagnostic": "true"}),
        (PateGnmax, {"answers": "17"}),
        (PateGnmax, {"threshold_noise": "0"}),
        (PateGnmax, {"threshold": "-0.1"}),
    ],
)
def test_impossible_fields_are_refused_in_one_line(cls: type[Any], given: dict[str, str]) -> None:
    with pytest.raises(BenchError, match="expected") as caught:
        smoke(cls, **given)
    assert "\n" not in str(caught.value)


def test_missing_records_are_a_defect_and_said() -> None:
    with pytest.raises(RuntimeError, match="private_data"):
        convert(Pate, images="private")


@BOTH
def test_an_audit_does_not_refute_one_query_and_refutes_a_third_of_it(cls: type[Any]) -> None:
    game = smoke(cls, query_count="8", **({"answers": "8"} if cls is PateGnmax else {})).game(
        Budget(30.0), "toy", CLASSES
    )
    assert audit(game, 60_000).verdict == "not refuted"
    assert audit(replace(game, claimed=game.claimed / 3), 60_000).verdict == "refuted"


def answers_of(votes: Values, law: Any) -> Values:
    """(classes,) probabilities of the noisy arg-max: the integral of f(x - n_j) times the others' F(x - n_k)."""
    spread = math.ceil((20 if law.dist.name == "laplace" else 9) * law.std())
    low, high = int(votes.min()) - spread, int(votes.max()) + spread
    x = np.linspace(low, high, 64 * (high - low) + 1)
    below, at = law.cdf(x[:, None] - votes), law.pdf(x[:, None] - votes)
    each = [integrate.simpson(at[:, j] * np.delete(below, j, 1).prod(1), x=x) for j in range(len(votes))]
    assert sum(each) == pytest.approx(1, abs=1e-7)
    return np.array(each)


def log_wrong(votes: Values, law: Any) -> float:
    """Logarithm of the probability that the answer is not the first class with the most votes."""
    return math.log(np.delete(answers_of(votes, law), votes.argmax()).sum())


def renyi(p: Values, q: Values, orders: Values) -> Values:
    terms = orders[:, None] * np.log(p) + (1 - orders[:, None]) * np.log(q)
    return np.log(np.exp(terms - terms.max(1, keepdims=True)).sum(1)) + terms.max(1)


def worst_neighbour(votes: Values, law: Any, orders: Values) -> Values:
    """(k,) the largest divergence from the answer's distribution to that after one vote has moved."""
    here = answers_of(votes, law)
    found = []
    for i in range(len(votes)):
        for j in range(len(votes)):
            if i != j and votes[i] >= 1:
                moved = votes.copy()
                moved[i] -= 1
                moved[j] += 1
                found.append(renyi(here, answers_of(moved, law), orders) / (orders - 1))
    return np.max(found, axis=0)


@pytest.mark.parametrize("scale", [1.5, 4.0])
@pytest.mark.parametrize("votes", VOTES, ids=str)
def test_theorem_3_of_2017_holds(votes: list[int], scale: float) -> None:
    at, orders, law = np.array(votes, dtype=float), FEW_WHOLE_ORDERS[:40], stats.laplace(scale=scale)
    assert log_wrong(at, law) <= log_wrong_laplace(at[None], scale)[0] + 1e-6
    bound, truth = laplace_renyi_of_votes(at[None], scale, orders)[0], worst_neighbour(at, law, orders)
    assert (truth <= bound * (1 + 1e-6) + 1e-9).all()
    assert (bound <= vote_bounds.laplace_renyi(scale, orders) + 1e-12).all()


@pytest.mark.parametrize("sigma", [1.5, 4.0])
@pytest.mark.parametrize("votes", VOTES, ids=str)
def test_theorem_6_of_2018_holds(votes: list[int], sigma: float) -> None:
    at, orders, law = np.array(votes, dtype=float), ORDERS[ORDERS < 60], stats.norm(scale=sigma)
    log_q = log_wrong_gaussian(at[None], sigma)
    assert log_wrong(at, law) <= log_q[0] + 1e-6
    bound, truth = gaussian_renyi_of_events(log_q, sigma, orders)[0], worst_neighbour(at, law, orders)
    assert (truth <= bound * (1 + 1e-6) + 1e-9).all()
    assert (bound <= orders / sigma**2 + 1e-12).all()


def test_theorem_6_of_2018_by_hand() -> None:
    """q = 1e-6, sigma = 10, alpha = 5: its two orders are 37.2 and, one more, 38.2."""
    q, second = 1e-6, 10 * math.sqrt(math.log(1e6))
    first = second + 1
    a = (1 - q) / (1 - (q * math.exp(second / 100)) ** ((second - 1) / second))
    b = math.exp(first / 100) / q ** (1 / (first - 1))
    expected = math.log((1 - q) * a**4 + q * b**4) / 4
    found = gaussian_renyi_of_events(np.array([math.log(q)]), 10.0, np.array([5.0]))
    assert found.item() == pytest.approx(expected, rel=1e-6) and expected < 5 / 100


@pytest.mark.parametrize("sigma", [1.0, 5.0])
@pytest.mark.parametrize("largest", [3, 12, 20, 60])
def test_the_thresholds_bound_holds(largest: float, sigma: float) -> None:
    """Pass or fail of N(largest, sigma^2) at 12, against one vote more or less."""
    orders, at = ORDERS[ORDERS < 60], np.array([[largest, 0.0, 0.0]])
    log_q = log_rarer_side(at, 12.0, sigma)

    def both(count: float) -> Values:
        return np.maximum(stats.norm.cdf([(count - 12) / sigma, (12 - count) / sigma]), 1e-300)

    assert math.exp(log_q[0]) == pytest.approx(min(both(largest)), rel=1e-9)
    bound = gaussian_renyi_of_events(log_q, math.sqrt(2) * sigma, orders)[0]
    for moved in (largest - 1, largest + 1):
        truth = renyi(both(largest), both(moved), orders) / (orders - 1)
        assert (truth <= bound * (1 + 1e-6) + 1e-9).all()


def test_a_bound_from_a_larger_lead_than_there_is_would_be_wrong() -> None:
    """What the tests above would notice: with q of a lead of 16 instead of 7 the true divergence is larger."""
    orders, votes = FEW_WHOLE_ORDERS[:40], np.array([9.0, 2.0, 2.0])
    false = np.array([[18.0, 2.0, 2.0]])
    law = worst_neighbour(votes, stats.laplace(scale=1.5), orders)
    assert (law > laplace_renyi_of_votes(false, 1.5, orders)[0]).any()
    gauss, at = worst_neighbour(votes, stats.norm(scale=3.0), ORDERS[ORDERS < 60]), ORDERS[ORDERS < 60]
    assert (gauss > gaussian_renyi_of_events(log_wrong_gaussian(false, 3.0), 3.0, at)[0]).any()


@pytest.mark.parametrize("scale", [20.0, 40.0])
def test_bounds_of_hopeless_and_of_unanimous_votes(scale: float) -> None:
    """Even votes: the data-independent bound. 250 to 0: a hundredth of it or less at small orders."""
    even, sure, low = np.full((1, 10), 25.0), np.array([[250.0] + [0.0] * 9]), FEW_WHOLE_ORDERS[:4]
    laplace, gauss = vote_bounds.laplace_renyi(scale, low), low / scale**2
    assert np.allclose(laplace_renyi_of_votes(even, scale, low)[0], laplace)
    assert np.allclose(gaussian_renyi_of_events(log_wrong_gaussian(even, scale), scale, low)[0], gauss)
    if scale == 20.0:
        assert (laplace_renyi_of_votes(sure, scale, low)[0] < laplace / 50).all()
        assert (gaussian_renyi_of_events(log_wrong_gaussian(sure, scale), scale, low)[0] < gauss / 100).all()
    assert np.isfinite(laplace_renyi_of_votes(1e4 * sure, scale, FEW_WHOLE_ORDERS)).all()
    assert np.isfinite(gaussian_renyi_of_events(log_wrong_gaussian(1e4 * sure, scale), scale, ORDERS)).all()


@BOTH
def test_the_diagnostic_is_asked_for_and_changes_nothing_else(cls: type[Any]) -> None:
    plain, asked_for = (convert(cls, FIELDS, diagnostic=flag) for flag in ("false", "true"))
    assert DIAGNOSTIC == "data_dependent_epsilon_diagnostic" and DIAGNOSTIC not in plain.solved
    rest = {name: value for name, value in asked_for.solved.items() if name != DIAGNOSTIC}
    assert rest == plain.solved and asked_for.claim == plain.claim
    assert asked_for.ledger.to_json() == plain.ledger.to_json()
    coarser = math.log(1e5) / len(FEW_WHOLE_ORDERS)  # the claim is the least over more orders
    assert 0 < asked_for.solved[DIAGNOSTIC] <= plain.claim.epsilon + coarser  # type: ignore[union-attr]
    assert DIAGNOSTIC not in convert(cls, FREE, diagnostic="true").solved


def test_the_variants_are_what_the_tiers_were_but_for_the_images() -> None:
    """Until version 1, tier quick also set `augment` and the threshold, and its images came from class moments."""
    quick = {"teachers": 0, "teacher_net": "scatter-linear", "unlabelled": 3000, "steps": 600, "batch": 64}
    assert configure(Pate, "quick", {}, "method") == Pate(**quick, augment=True)
    fewer = {"query_count": 100, "answers": 50}
    assert configure(PateGnmax, "quick", {}, "method") == PateGnmax(**quick, **fewer, augment=True, threshold=0.6)
    for cls in (Pate, PateGnmax):
        assert paper(cls) == cls() and not cls().augment


@BOTH
def test_the_papers_unanimous_votes_cost_less_than_the_claim(cls: type[Any]) -> None:
    """240 of 250 teachers agree: far below the data-independent 5.30 and 3.17."""
    method = paper(cls)
    plan = method.plan(FIELDS, "mnist")
    votes = np.tile([240.0, 10.0, *[0.0] * 8], (plan.candidates, 1))
    found = method.formula_of_votes(plan, votes, votes[: plan.queries], 1e-5)
    assert found < 0.6 * method.claim(plan, 1e-5).epsilon


@BOTH
def test_even_votes_cost_what_the_claim_says_for_all_that_are_asked(cls: type[Any]) -> None:
    """A tenth of 250 teachers for each class, and a threshold at a tenth: nothing is learnt from looking at votes."""
    method = paper(cls, **({"threshold": "0.1"} if cls is PateGnmax else {}))
    plan = method.plan(FIELDS, "mnist")
    votes = np.full((plan.candidates, 10), 25.0)
    found = method.formula_of_votes(plan, votes, votes[: plan.queries], 1e-5)
    assert found == pytest.approx(method.claim(plan, 1e-5).epsilon, rel=1e-3)


GOLDEN: list[Any] = [
    (Pate, "printed", "strokes", {"scale": 4.498113352967674}, 8.893768454719526, 7.999674368963196,
     [[0.0156368, 0.6358707, 0.0725104, -0.1601128], [0.2518874, 0.3696991, 0.2139836, -0.3993086]]),
    (PateGnmax, "working", "private", {"scale": 3.1952803759994803, "threshold_scale": 11.982301409998051},
     7.99984067809311, math.inf,
     [[1.1573278, -1.2705559, -0.2711231, -0.1422350], [1.0827701, -1.9268242, 0.1623490, 0.2969910]]),
]  # fmt: skip
"""Of version 1, tiers paper and quick: noise, claim, accounted epsilon and two rows of the student's logits."""


@pytest.mark.usefixtures("usual_draws")
@pytest.mark.parametrize(("cls", "variant", "images", "solved", "claimed", "proved", "logits"), GOLDEN)
def test_but_for_the_images_it_is_what_it_was(
    cls: type[Any],
    variant: Any,
    images: str,
    solved: dict[str, float],
    claimed: float,
    proved: float,
    logits: list[list[float]],
) -> None:
    given = {"images": images, "query_count": "20", "unlabelled": "30", "steps": "30", "teachers": "3", "batch": "16",
             "teacher_net": "shard-cnn"} | ({"answers": "10"} if cls is PateGnmax else {})  # fmt: skip
    method = configure(cls, "paper" if variant == "printed" else "quick", given, "method", variant)
    against: Any = "claimed" if images == "private" else "accounted"
    of = toy(private=toy_private())  # leaves torch seeded
    release = method.convert(of, "datalens", Budget(8.0, account=against), replace(context(), seed=3))
    assert {name: release.solved[name] for name in solved} == pytest.approx(solved, rel=1e-9)
    assert release.claim is not None and release.claim.epsilon == pytest.approx(claimed, rel=1e-6)
    assert account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(proved, rel=1e-6)
    x = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(release.student.eval()(x), torch.tensor(logits), atol=1e-4)
