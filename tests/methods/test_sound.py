"""Many teachers: who is asked what, what an answer is, what noise it has, how it is read, and what an audit finds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import stats
from torch import Tensor, nn

from bench.api import Context, Release, Teacher
from bench.config import configure
from bench.distillation import ensemble_mode
from bench.distillation.distinguishing_games import ensemble_game
from bench.distillation.ensemble_mode import AGREEMENT, noisy_sum
from bench.distillation.losses import dkd_loss, gradient_at_output
from bench.distillation.noisy_labels import Plan
from bench.nets import Ensemble
from bench.privacy import Budget, Unit
from bench.privacy.accountant import epsilon
from bench.privacy.audit import Game, audit
from bench.privacy.counts import noisy_counts
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher, weights
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpsd.dpsd import Dpsd

TEACHERS, BATCH, BATCHES = 3, 6, 3
EIGHT, FREE = Budget(8.0, account="accounted"), Budget(math.inf)
PLAN = Plan(k=CLASSES, beta=0.01, sigma=0.0, answer_epsilon=1.0, iterations=1)
BOTH = pytest.mark.parametrize("method", [Dpsd, Dpdfd])
AGGREGATES = pytest.mark.parametrize("aggregate", ["gradients", "votes"])
PRIORS = pytest.mark.parametrize("prior", ["none", "moments"])
Method = type[Dpsd] | type[Dpdfd]


class Forbidden(nn.Module):
    """The undefended teacher: nobody may ask it."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the undefended teacher was asked")


class Untouchable:
    """Private images and labels that nobody may look at."""

    def __iter__(self) -> Iterator[Tensor]:
        raise AssertionError("private images were looked at")

    def __getitem__(self, at: int) -> Tensor:
        raise AssertionError("private images were looked at")

    def __len__(self) -> int:
        raise AssertionError("private images were counted")


class Fixed(nn.Module):
    """Answers every batch with the same logits, one row for all images or a row each."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits, self.body = logits, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1) if self.logits.ndim == 1 else self.logits[: len(x)]


def members(n: int = TEACHERS) -> Ensemble:
    built = Ensemble.build(("shard-cnn",), n, SHAPE, CLASSES, seeds=range(n))
    return built.eval().requires_grad_(False)


def many(private: Any = None, ensemble: Ensemble | None = None) -> Teacher:
    """A toy with three teachers."""
    whole = ensemble or members()
    return replace(toy_teacher(), model=Forbidden(), ensemble=whole, private=private)


def smoke(method: Method, **given: Any) -> Any:
    fields = {"teachers": TEACHERS, "batch": BATCH} | given
    return configure(method, "smoke", {name: str(value) for name, value in fields.items()}, "method")


def convert(
    method: Method, budget: Budget = EIGHT, teacher: Teacher | None = None, ctx: Context | None = None, **given: Any
) -> Release:
    torch.manual_seed(0)
    private = toy_private() if given.get("prior") == "moments" else Untouchable()
    return smoke(method, **given).convert(teacher or many(private), "datalens", budget, ctx or context())


def count_images(ensemble: Ensemble) -> list[list[int]]:
    """How many images every member is asked about, call by call."""
    asked: list[list[int]] = [[] for _ in ensemble.members]

    def noting(into: list[int]) -> Callable[..., None]:
        return lambda _module, given, _answer: into.append(len(given[0]))

    for member, into in zip(ensemble.members, asked, strict=True):
        member.register_forward_hook(noting(into))
    return asked


CASES = list(zip(
    itertools.product([Dpsd, Dpdfd], ["gradients", "votes"], ["none", "moments"]),
    itertools.cycle([("step", 0, 1, BATCHES), ("posterior", 13, 0, 3), ("posterior", 8, 2, 2)]),
    strict=False,
))  # fmt: skip


@pytest.mark.parametrize(("kind", "size"), CASES, ids=str)
def test_the_ledger_counts_what_every_teacher_was_asked(
    kind: tuple[Method, str, str], size: tuple[str, int, int, int]
) -> None:
    (method, aggregate, prior), (reading, queries, asks, batches) = kind, size
    ensemble = members()
    asked = count_images(ensemble)
    given = {"aggregate": aggregate, "prior": prior, "reading": reading, "queries": queries, "asks": asks, "extra": 5}
    private = toy_private() if prior == "moments" else Untouchable()
    release = convert(method, teacher=many(private, ensemble), student_steps=2, generator_steps=2, **given)
    assert asked == [[BATCH] * batches] * TEACHERS, "once about every image, however often the student learns"
    answers, *rest = release.ledger.entries(Unit.EXAMPLE)
    assert answers.count == BATCH * batches == release.solved["queries"]
    assert isinstance(answers.event, GaussianDpEvent)
    sensitivity = math.sqrt(2) if aggregate == "votes" else 2
    assert answers.event.noise_multiplier == pytest.approx(release.solved["sigma"] / sensitivity)
    assert len(rest) == (prior == "moments")
    assert epsilon(release.ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(8, rel=1e-3)
    assert release.claim is None and (release.control is not None) == (prior == "moments")
    assert (release.generator is None) == (prior == "moments")
    assert all(w.isfinite().all() for w in weights(release.student))


@pytest.mark.parametrize(("method", "aggregate"), [(Dpsd, "votes"), (Dpdfd, "gradients")])
def test_the_moments_are_released_with_the_noise_that_the_ledger_names(
    method: Method, aggregate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the control's with what all of the budget buys; from a basis that knows nothing of the private images."""
    calls: list[dict[str, Any]] = []
    real = ensemble_mode.release

    def noted(images: Tensor, labels: Tensor, classes: int, basis: Tensor, multiplier: float, *rest: Any) -> Any:
        calls.append({"images": images, "labels": labels, "basis": basis, "multiplier": multiplier})
        return real(images, labels, classes, basis, multiplier, *rest)

    monkeypatch.setattr(ensemble_mode, "release", noted)
    private = toy_private()
    release = convert(method, teacher=many(private), prior="moments", prior_share=0.3, aggregate=aggregate)
    mu_squared = [e.count / e.event.noise_multiplier**2 for e in release.ledger.entries(Unit.EXAMPLE)]
    assert mu_squared[1] / sum(mu_squared) == pytest.approx(0.3)
    assert [1 / call["multiplier"] ** 2 for call in calls] == [
        pytest.approx(mu_squared[1]),
        pytest.approx(sum(mu_squared)),
    ]
    assert all(call["images"] is private[0] and call["labels"] is private[1] for call in calls)
    convert(method, teacher=many(toy_private(seed=9, n=44)), prior="moments", aggregate=aggregate)
    assert torch.equal(calls[0]["basis"], calls[2]["basis"])


@BOTH
@pytest.mark.parametrize(("ensemble_steps", "prior"), [(0, "none"), (5, "moments")])
def test_student_and_control_take_as_many_steps_and_end_at_rate_zero(
    method: Method, ensemble_steps: int, prior: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = method.players

    def noted(self: Any, *given: Any, **more: Any) -> Any:
        made.append(real(self, *given, **more))
        return made[-1]

    monkeypatch.setattr(method, "players", noted)
    given = {"queries": 4 * BATCH, "asks": 2, "student_steps": 3, "ensemble_steps": ensemble_steps, "decay": "true"}
    convert(method, prior=prior, **given)
    steps = 2 * (ensemble_steps or 3)
    assert [player.schedule.last_epoch for player in made] == [steps] * (2 if prior == "moments" else 1)
    assert all(player.schedule.get_last_lr()[0] == pytest.approx(0, abs=1e-9) for player in made)


@pytest.mark.parametrize(
    ("method", "aggregate", "prior"),
    [
        (Dpsd, "gradients", "moments"),
        (Dpdfd, "votes", "none"),
        (Dpsd, "votes", "moments"),
    ],
)
def test_the_same_seed_gives_the_same_release_and_noise_is_the_contexts(
    method: Method, aggregate: str, prior: str
) -> None:
    once, again, other = (
        weights(convert(method, ctx=context(seed), aggregate=aggregate, prior=prior, reading="posterior").student)
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(once, other, strict=True))
    entropy = replace(context(1), noise="os")
    drawn = weights(convert(method, ctx=entropy, aggregate=aggregate, prior=prior, reading="posterior").student)
    assert not all(torch.equal(a, b) for a, b in zip(once, drawn, strict=True))


@AGGREGATES
@PRIORS
@pytest.mark.parametrize("method", [Dpdfd])
def test_an_infinite_budget_adds_no_noise_and_proves_nothing(method: Method, aggregate: str, prior: str) -> None:
    release = convert(method, FREE, aggregate=aggregate, prior=prior)
    assert release.solved["sigma"] == 0 and release.claim is None
    for unit in (Unit.EXAMPLE, Unit.QUERY):
        assert all(isinstance(entry.event, NonPrivateDpEvent) for entry in release.ledger.entries(unit))
    assert math.isinf(epsilon(release.ledger, Unit.EXAMPLE, 1e-5).epsilon)


@BOTH
def test_moments_without_private_images_are_an_error(method: Method) -> None:
    with pytest.raises(RuntimeError, match="private"):
        convert(method, teacher=many(None), prior="moments")
    with pytest.raises(RuntimeError, match="teacher_ensemble"):
        convert(method, teacher=replace(many(), ensemble=None))


def answer(
    method: Any, ours: Tensor, theirs: list[Tensor], plan: Plan, classes: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Targets of as many images as the student has rows, the teachers' logits being `theirs`."""
    ensemble = Ensemble([Fixed(logits) for logits in theirs], ours.shape[1])  # type: ignore[list-item]
    noise, images = torch.Generator().manual_seed(seed), torch.zeros(len(ours), *SHAPE)
    return method._answer(images, classes, Fixed(ours), ensemble, plan, method._bounded_gradient, noise)


def stepping(method: Method, step: float, **given: Any) -> Any:
    """With the step of a target, which DPDFD and DPSD name differently."""
    named = {"gamma_s": step} | ({"gamma": step} if method is Dpdfd else {})
    return smoke(method, **(named | given))


@BOTH
def test_a_gradient_answer_is_the_mean_of_three_normalised_gradients(method: Method) -> None:
    """y = p - gamma / n sum_j beta g_j / (|g_j| + h); with plain distillation g_j = p - p_j."""
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    teachers = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.4, 0.3, 0.15, 0.15]]
    expected = p.double().clone()
    for q in teachers:
        g = p.double() - torch.tensor(q, dtype=torch.double)
        length = math.sqrt(sum(float(x) ** 2 for x in g))
        expected -= 0.5 / 3 * 0.01 * g / (length + 1e-4)
    got = answer(stepping(method, 0.5, loss="kd"), p.log()[None], [torch.tensor(q).log()[None] for q in teachers], PLAN)
    assert torch.allclose(got[0].double(), expected, atol=1e-6)


def test_the_step_of_a_target_is_gamma_in_dpdfd_and_not_the_students_learning_rate() -> None:
    """Line 10: y_s = phi_s(D) - gamma g~, as with one teacher."""
    torch.manual_seed(0)
    ours, theirs = torch.randn(2, CLASSES), [torch.randn(2, CLASSES)]
    one, three, slow = (
        ours.softmax(1) - answer(stepping(Dpdfd, 1.0, gamma=gamma, gamma_s=rate), ours, theirs, PLAN)
        for gamma, rate in ((1.0, 1.0), (3.0, 1.0), (1.0, 0.1))
    )
    assert torch.allclose(three, 3 * one, atol=1e-6) and torch.allclose(slow, one, atol=1e-6)


@BOTH
def test_with_the_decoupled_loss_every_teacher_has_its_own_gradient(method: Method) -> None:
    torch.manual_seed(1)
    ours, theirs = torch.randn(5, CLASSES), list(torch.randn(3, 5, CLASSES) * 3)
    gradients = [gradient_at_output(partial(dkd_loss, weight=8.0), ours, of) for of in theirs]
    bounded = torch.stack([0.01 * g / (g.norm(dim=1, keepdim=True) + 1e-4) for g in gradients])
    assert torch.allclose(
        answer(stepping(method, 0.5), ours, theirs, PLAN), ours.softmax(1) - 0.5 * bounded.mean(0), atol=1e-6
    )


@BOTH
@pytest.mark.parametrize("bound", ["normalise", "clip"])
def test_no_teacher_moves_a_sum_of_gradients_by_more_than_two_beta(method: Method, bound: str) -> None:
    torch.manual_seed(2)
    converter = stepping(method, 1.0, bound=bound)
    ours = torch.randn(6, CLASSES)
    others = list(torch.randn(4, 6, CLASSES))
    sure = 60 * F.one_hot(torch.arange(6) % CLASSES, CLASSES).float()
    odd = [sure, -sure, sure.roll(1, 1), torch.full_like(sure, math.nan), sure * math.inf, torch.zeros_like(sure)]
    sums = [answer(converter, ours, [*others, one], PLAN) * 5 for one in odd]
    assert all(one.isfinite().all() for one in sums)
    distances = [(a - b).norm(dim=1).max().item() for a, b in itertools.combinations(sums, 2)]
    assert 0.01 < max(distances) <= 2 * 0.01 + 1e-5


def has_standard_deviation(noise: np.ndarray, std: float) -> None:
    """Gaussian of that standard deviation, and of no other."""
    assert stats.kstest(noise, "norm", args=(0, std)).pvalue > 0.01
    for wrong in (1 / 3, 1 / 2, 1 / math.sqrt(2), 1 / 1.1, 1.1, math.sqrt(2), 2, 3):
        assert stats.kstest(noise, "norm", args=(0, wrong * std)).pvalue < 1e-6, wrong


@BOTH
def test_the_noise_on_a_sum_of_gradients_has_standard_deviation_sigma_beta(method: Method) -> None:
    """Whatever the number of teachers; the target has it times gamma over n."""
    torch.manual_seed(3)
    converter, ours = stepping(method, 1.0), torch.randn(5000, CLASSES)
    theirs = list(torch.randn(3, 5000, CLASSES))
    silent, noisy = (answer(converter, ours, theirs, replace(PLAN, sigma=sigma)) for sigma in (0.0, 40.0))
    noise = ((noisy - silent) * 3).flatten().double().numpy()
    has_standard_deviation(noise, 40 * 0.01)


@BOTH
def test_the_noise_on_a_vote_count_has_standard_deviation_sigma(method: Method) -> None:
    """Read back from the posterior, whose log-odds are linear in the counts."""
    theirs = [torch.eye(CLASSES)[c] for c in (0, 0, 1)]
    ours, sigma = torch.zeros(10_000, CLASSES), 5.0
    converter = smoke(method, aggregate="votes", reading="posterior")
    logs = answer(converter, ours, theirs, replace(PLAN, sigma=sigma)).double().log()
    odds = torch.cat([logs[:, 0] - logs[:, 1], logs[:, 2] - logs[:, 3]])
    counts = odds * sigma**2 / (AGREEMENT * 3) - torch.tensor([1.0, 0.0]).repeat_interleave(10_000)
    has_standard_deviation(counts.numpy(), math.sqrt(2) * sigma)


@BOTH
@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("drawn_for", [None, 2])
def test_votes_are_read_by_bayes_rule(method: Method, weight: float, drawn_for: int | None) -> None:
    """Five teachers, counts c with noise of sigma 4. If the class is r, the count of r has mean 0.7 * 5 and the others
    0; before, the class that the image was drawn for is e^weight times as likely as each of the others."""
    theirs = [torch.eye(CLASSES)[c] for c in (0, 0, 0, 1, 3)]
    converter = smoke(method, aggregate="votes", reading="posterior", prior_weight=weight)
    classes = None if drawn_for is None else torch.full((7,), drawn_for)
    got = answer(converter, torch.zeros(7, CLASSES), theirs, replace(PLAN, sigma=4.0), classes, seed=11)
    votes = torch.tensor([3.0, 1.0, 0.0, 1.0]).expand(7, -1)
    counts = noisy_counts(votes, "gaussian", 4.0, torch.Generator().manual_seed(11))
    for row in range(7):
        products = []
        for r in range(CLASSES):
            before = math.exp(weight) if r == drawn_for else 1.0
            likely = [stats.norm.pdf(counts[row, j], 0.7 * 5 * (j == r), 4.0) for j in range(CLASSES)]
            products.append(before * math.prod(likely))
        by_hand = torch.tensor(products) / sum(products)
        assert torch.allclose(got[row].double(), by_hand, atol=1e-5)


@BOTH
def test_votes_read_as_printed_are_the_class_with_most(method: Method) -> None:
    theirs = [torch.eye(CLASSES)[c] for c in (2, 2, 0)]
    got = answer(smoke(method, aggregate="votes"), torch.zeros(3, CLASSES), theirs, PLAN)
    assert torch.equal(got, torch.eye(CLASSES)[[2, 2, 2]])
    noisy = answer(smoke(method, aggregate="votes"), torch.zeros(400, CLASSES), theirs, replace(PLAN, sigma=50.0))
    assert (noisy.sum(0) > 50).all(), "drowned in noise all classes win"


@BOTH
def test_the_prior_moves_what_is_read_of_gradients_by_its_weight(method: Method) -> None:
    torch.manual_seed(4)
    ours, theirs = torch.randn(9, CLASSES), list(torch.randn(3, 9, CLASSES))
    plan, classes = replace(PLAN, sigma=2.0), torch.arange(9) % CLASSES
    converter = smoke(method, reading="posterior", prior_weight=1.5)
    without, with_it = answer(converter, ours, theirs, plan), answer(converter, ours, theirs, plan, classes)
    shift = with_it.log() - without.log()
    own = F.one_hot(classes, CLASSES).bool()
    others = shift.masked_fill(own, 0).sum(1) / (CLASSES - 1)
    assert torch.allclose(shift[own] - others, torch.full((9,), 1.5), atol=1e-4)


def test_many_agreeing_teachers_are_heard_through_the_noise() -> None:
    """300 teachers sure of a class, sigma 40: votes stand 7 standard deviations out."""
    theirs = [5 * torch.eye(CLASSES)[1]] * 300
    for aggregate in ("votes", "gradients"):
        converter = smoke(Dpsd, aggregate=aggregate, reading="posterior", loss="kd", teachers=300)
        got = answer(converter, torch.zeros(200, CLASSES), theirs, replace(PLAN, sigma=40.0))
        assert (got.argmax(1) == 1).float().mean() > 0.99, aggregate


def played(aggregate: str, target: float = 1.0, method: Method = Dpsd, **fields: Any) -> Game:
    """One answer, at what the whole budget of a release with one answer leaves it."""
    one = {"teachers": 5, "batch": 1, "queries": 1} | fields
    return method(aggregate=aggregate, **one).game(Budget(target, account="accounted"), "x", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "aggregate"), [(Dpsd, "gradients"), (Dpdfd, "votes")])
def test_an_audit_comes_close_to_what_is_accounted_and_not_above(method: Method, aggregate: str) -> None:
    found = audit(played(aggregate, method=method), 1_200_000, seed=0)
    assert found.accounted == pytest.approx(1, rel=1e-3) and found.delta == 1e-5
    assert found.verdict == "not refuted"
    assert 0.6 * found.accounted < found.lower_bound <= found.accounted


@AGGREGATES
def test_an_audit_finds_half_of_the_noise_missing(aggregate: str) -> None:
    method = Dpsd(teachers=5, batch=1, queries=1, aggregate=aggregate)  # type: ignore[arg-type]
    plan, mechanism = method.plan(Budget(1.0, account="accounted"), "x", 3), method._mechanism(3)
    careless = partial(noisy_sum, plan=replace(plan, sigma=plan.sigma / 2), votes=mechanism.votes)
    found = audit(ensemble_game(mechanism, plan, 1e-5, careless), 300_000, seed=1)
    assert found.accounted == pytest.approx(1, rel=1e-3) and found.verdict == "accountant refuted"


@AGGREGATES
def test_the_worlds_of_the_game_lie_as_far_apart_as_one_teacher_reaches(aggregate: str) -> None:
    game = Dpsd(teachers=5, sigma=0.0, beta=0.01, aggregate=aggregate).game(  # type: ignore[arg-type]
        Budget(None, solve="none"), "x", 4
    )
    rows = [game.play(world, 2, torch.Generator()).double() for world in (False, True)]
    reach = math.sqrt(2) if aggregate == "votes" else 0.02
    assert (rows[0] - rows[1]).norm(dim=1).tolist() == pytest.approx([reach] * 2, rel=1e-5)
    if aggregate == "votes":
        assert all(row.sum(1).tolist() == [5.0] * 2 for row in rows)


@AGGREGATES
def test_moments_leave_an_answer_less_epsilon_and_the_game_says_so(aggregate: str) -> None:
    with_moments = played(aggregate, prior="moments", prior_share=0.75)
    assert with_moments.accounted < 0.6 * played(aggregate).accounted
