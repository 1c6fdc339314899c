"""Class moments with or without votes: what is taken and told, how votes are read, the control, what an audit finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import optimize, stats
from torch import Tensor, nn

from baselines.class_moments.class_moments import AGREEMENT, ClassMoments
from baselines.class_moments.spending import Spending, calibrated, moments_game, vote_game
from bench.api import Context, Release, Teacher
from bench.config import configure, default_variant
from bench.distillation.class_moments import class_images
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame, audit
from bench.privacy.counts import noisy_counts
from bench.testing import (
    CLASSES,
    SHAPE,
    MemoryArtifacts,
    asking_context,
    context,
    silent,
    toy_private,
    toy_teacher,
    weights,
)

DELTA, TEACHERS = 1e-5, 3
EIGHT, FREE = Budget(8.0, account="accounted"), Budget(math.inf)
VOTES = Spending(teachers=50, queries=200, sigma=100.0, share=0.5, multiplier=1.0)
ALONE = replace(VOTES, teachers=0)
SHARES = pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
WITH_AND_WITHOUT = pytest.mark.parametrize("teachers", [0, TEACHERS])


class Forbidden(nn.Module):
    """The undefended teacher: no one may ask it."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the undefended teacher was asked")


class Fixed(nn.Module):
    """Answers every image with the same logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits, self.body = logits, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


def members(n: int = TEACHERS) -> Ensemble:
    built = Ensemble.build(("shard-cnn",), n, SHAPE, CLASSES, seeds=range(n))
    return built.eval().requires_grad_(False)


def toy(teachers: int = TEACHERS, private: Any = None) -> Teacher:
    ensemble = members(teachers) if teachers else None
    return replace(toy_teacher(), model=Forbidden(), ensemble=ensemble, private=private or toy_private())


def smoke(**given: Any) -> ClassMoments:
    return configure(ClassMoments, "smoke", {name: str(value) for name, value in given.items()}, "method")


def convert(
    teachers: int = TEACHERS,
    budget: Budget = EIGHT,
    of: Teacher | None = None,
    ctx: Context | None = None,
    **given: Any,
) -> Release:
    torch.manual_seed(0)
    return smoke(teachers=teachers, **given).convert(of or toy(teachers), "datalens", budget, ctx or context())


def gaussian_epsilon(mu: float) -> float:
    """Balle and Wang (2018): delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""

    def log_excess(e: float) -> float:
        upper, lower = stats.norm.logcdf(mu / 2 - e / mu), e + stats.norm.logcdf(-mu / 2 - e / mu)
        return upper + math.log1p(-math.exp(lower - upper)) - math.log(DELTA)

    return optimize.brentq(log_excess, 1e-9, 200.0, xtol=1e-12)


def mu_squared(ledger: Ledger, unit: Unit = Unit.EXAMPLE) -> list[float]:
    """Of every entry: count / multiplier^2."""
    found = []
    for entry in ledger.entries(unit):
        assert isinstance(entry.event, GaussianDpEvent)
        found.append(entry.count / entry.event.noise_multiplier**2)
    return found


# What is taken


def test_the_golden_value() -> None:
    """docs/privacy.md: 1,024 queries with noise of 100 votes, and half of mu^2 for the moments."""
    votes, moments = mu_squared(replace(VOTES, queries=1024).ledger())
    assert gaussian_epsilon(math.sqrt(votes)) == pytest.approx(1.783, abs=5e-4)
    assert moments == pytest.approx(votes) == pytest.approx(1024 * 2 / 100**2)


def test_every_answer_is_counted_with_its_own_sensitivity() -> None:
    """One teacher moves two counts by 1 each."""
    answers, moments = VOTES.ledger().entries(Unit.EXAMPLE)
    assert answers.event == GaussianDpEvent(100 / math.sqrt(2)) and answers.count == 200
    assert moments.count == 1


def test_what_a_record_costs_does_not_depend_on_how_many_teachers_there_are() -> None:
    assert len({tuple(mu_squared(replace(VOTES, teachers=n).ledger())) for n in (1, 3, 1000)}) == 1


@pytest.mark.parametrize("teachers", [1, 50])
def test_another_synthetic_image_may_change_every_teachers_vote(teachers: int) -> None:
    (entry,) = replace(VOTES, teachers=teachers).ledger().entries(Unit.QUERY)
    assert entry.count == 1 and entry.event == GaussianDpEvent(100 / (teachers * math.sqrt(2)))


@SHARES
@pytest.mark.parametrize("queries", [1, 1000])
def test_the_moments_take_exactly_their_share(share: float, queries: int) -> None:
    spending = replace(VOTES, queries=queries, share=share)
    answers, moments = mu_squared(spending.ledger())
    assert moments / (answers + moments) == pytest.approx(share, rel=1e-12)
    assert answers == pytest.approx(queries * 2 / 100**2)
    assert spending.whole_multiplier**-2 == pytest.approx(answers + moments)


def test_without_teachers_the_moments_are_all_that_is_taken() -> None:
    assert mu_squared(replace(ALONE, multiplier=2.0).ledger()) == [0.25]
    assert not ALONE.ledger().entries(Unit.QUERY) and ALONE.whole_multiplier == ALONE.moments_multiplier


@SHARES
@pytest.mark.parametrize("sigma", [30.0, 100.0, 1000.0])
def test_the_accountant_agrees_with_the_closed_form(share: float, sigma: float) -> None:
    spending = replace(VOTES, sigma=sigma, share=share)
    expected = gaussian_epsilon(math.sqrt(sum(mu_squared(spending.ledger()))))
    assert spending.epsilon(Unit.EXAMPLE, DELTA) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("account", ["claimed", "accounted"])
@pytest.mark.parametrize("fields", [VOTES, ALONE], ids=["votes", "alone"])
@pytest.mark.parametrize("target", [0.05, 1.0, 8.0])
def test_the_accounted_budget_is_met_and_used_whatever_the_account(
    fields: Spending, target: float, account: Any
) -> None:
    """There is no claim that a budget could be held against."""
    spending = calibrated(fields, Budget(target, account=account))
    assert target * (1 - 1e-3) <= spending.epsilon(Unit.EXAMPLE, DELTA) <= target
    assert spending.queries == fields.queries


def test_a_share_for_the_moments_costs_noise_on_the_votes() -> None:
    thin, thick = (calibrated(replace(VOTES, share=share), EIGHT).sigma for share in (0.2, 0.8))
    assert thick == pytest.approx(2 * thin, rel=1e-3), "a quarter of mu^2 is twice the noise"


def test_solving_for_steps_stops_before_one_query_too_many() -> None:
    spending = calibrated(VOTES, Budget(1.0, solve="steps"))
    assert spending.sigma == VOTES.sigma
    more = replace(spending, queries=spending.queries + 1)
    assert spending.epsilon(Unit.EXAMPLE, DELTA) <= 1 < more.epsilon(Unit.EXAMPLE, DELTA)


@pytest.mark.parametrize("fields", [VOTES, ALONE], ids=["votes", "alone"])
def test_without_noise_nothing_is_proved(fields: Spending) -> None:
    free = calibrated(fields, FREE)
    assert free.moments_multiplier == 0
    for unit in (Unit.EXAMPLE, Unit.QUERY)[: 2 if fields.teachers else 1]:
        entries = free.ledger().entries(unit)
        assert entries and all(isinstance(entry.event, NonPrivateDpEvent) for entry in entries)
    assert math.isinf(free.epsilon(Unit.EXAMPLE, DELTA))


@pytest.mark.parametrize(
    ("fields", "budget", "says"),
    [
        (ALONE, Budget(8.0, solve="steps"), "taken once"),
        (ALONE, Budget(8.0, unit=Unit.QUERY), "per example, and, with --method.teachers N, per query; name"),
        (VOTES, Budget(8.0, unit=Unit.CLIENT), "per example and per query; name one"),
        (VOTES, Budget(8.0, unit=Unit.QUERY, solve="steps"), "does not depend on how many"),
        (VOTES, Budget(0.001, solve="steps"), "does not allow a single use"),
    ],
    ids=str,
)
def test_impossible_budgets_are_refused_in_one_line(fields: Spending, budget: Budget, says: str) -> None:
    with pytest.raises(BenchError, match=says) as refused:
        calibrated(fields, budget)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"teachers": -1}, {"query_count": 0}, {"teacher_lr": 0.0}, {"teacher_steps": 0}, {"prior_logit": 0.0}),
        *({"moments_share": 0.0}, {"moments_share": 1.0}, {"moments_share": math.nan}, {"steps": 0}, {"images": 0}),
    ],
    ids=str,
)
def test_impossible_fields_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        ClassMoments(**wrong)


def test_it_is_an_algorithm_of_ours_that_asks_for_no_more_private_things_than_it_uses() -> None:
    assert default_variant(ClassMoments) == "own"
    assert ClassMoments().needs == {"private_data"}
    assert ClassMoments(teachers=2).needs == {"private_data", "teacher_ensemble"}
    assert ClassMoments(teachers=2, teacher_nets="same, shard-cnn").shards("resnet18", "x").archs == (
        "same",
        "shard-cnn",
    )
    assert ClassMoments(teachers=2, teacher_nets="same").shards("resnet18", "x").archs == ("resnet18",)


# What is done


def count_images(ensemble: Ensemble) -> list[list[int]]:
    """How many images every member is asked about, call by call."""
    asked: list[list[int]] = [[] for _ in ensemble.members]

    def noting(into: list[int]) -> Callable[..., None]:
        return lambda _module, given, _answer: into.append(len(given[0]))

    for member, into in zip(ensemble.members, asked, strict=True):
        member.register_forward_hook(noting(into))
    return asked


@pytest.mark.parametrize(("queries", "images", "asked"), [(12, 32, [12]), (300, 300, [256, 44]), (40, 7, [40])])
def test_the_ledger_counts_what_every_teacher_was_asked(queries: int, images: int, asked: list[int]) -> None:
    of = toy()
    seen = count_images(of.members())
    release = convert(of=of, query_count=queries, images=images)
    assert seen == [asked] * TEACHERS, "once about every image, however often the student learns"
    answers, moments = release.ledger.entries(Unit.EXAMPLE)
    assert answers.count == queries == release.solved["queries"]
    assert answers.event.noise_multiplier == pytest.approx(release.solved["sigma"] / math.sqrt(2))
    assert moments.event.noise_multiplier == release.solved["moments_multiplier"]
    assert account(release.ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(8, rel=1e-3)
    assert release.claim is None and release.control is not None and release.generator is None


def test_without_teachers_there_is_neither_a_control_nor_a_vote() -> None:
    release = convert(teachers=0)
    assert release.control is None and release.claim is None and set(release.solved) == {"moments_multiplier"}
    (moments,) = release.ledger.entries(Unit.EXAMPLE)
    assert moments.event == GaussianDpEvent(release.solved["moments_multiplier"])
    assert account(release.ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(8, rel=1e-3)
    shown = release.synthetic
    assert shown is not None and shown.shape == (60, *SHAPE) and 0 <= shown.min() < shown.max() <= 1


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every call of `noisy_moments`."""
    calls: list[dict[str, Any]] = []
    real = class_images.noisy_moments

    def noted(images: Tensor, labels: Tensor, classes: int, basis: Tensor, multiplier: float, *rest: Any) -> Any:
        given = {"images": images, "labels": labels, "basis": basis, "multiplier": multiplier}
        calls.append(given | {"made": real(images, labels, classes, basis, multiplier, *rest), "pooled": rest[-1]})
        return calls[-1]["made"]

    monkeypatch.setattr(class_images, "noisy_moments", noted)
    return calls


def test_the_moments_are_released_with_the_noise_that_the_ledger_names(releases: list[dict[str, Any]]) -> None:
    """And the control's with what all of the budget buys; from a basis that knows nothing of the private images."""
    private = toy_private()
    release = convert(of=toy(private=private), moments_share=0.3)
    squares = mu_squared(release.ledger)
    assert squares[1] / sum(squares) == pytest.approx(0.3)
    assert [1 / call["multiplier"] ** 2 for call in releases] == [
        pytest.approx(squares[1]),
        pytest.approx(sum(squares)),
    ]
    assert all(call["images"] is private[0] and call["labels"] is private[1] for call in releases)
    convert(of=toy(private=toy_private(seed=9, n=44)))
    assert torch.equal(releases[0]["basis"], releases[2]["basis"])


def test_the_control_draws_noise_of_its_own(releases: list[dict[str, Any]]) -> None:
    """The same draws in two scales would give the sums away: S + a z and S + b z, both known but for S and z."""
    private = toy_private()
    convert(of=toy(private=private), moments_share=0.5)
    convert(of=toy(private=private), budget=FREE, moments_share=0.5)
    first, control, silent_, _ = (call["made"].first.double() for call in releases)
    one, other = ((first - silent_) / releases[0]["multiplier"], (control - silent_) / releases[1]["multiplier"])
    assert abs(float(np.corrcoef(one.flatten(), other.flatten())[0, 1])) < 0.7
    assert not torch.allclose(one, other, atol=0.1)


@pytest.mark.parametrize(
    ("given", "count", "pooled"),
    [({}, 80, True), ({"second_moments": "per-class"}, 80, False), ({}, 1000 * CLASSES, False)],
    ids=str,
)
def test_moments_of_few_records_are_pooled(
    given: dict[str, str], count: int, pooled: bool, releases: list[dict[str, Any]]
) -> None:
    convert(teachers=0, of=toy(0, toy_private(n=count)), **given)
    assert releases[0]["pooled"] is pooled


@WITH_AND_WITHOUT
def test_student_and_control_take_as_many_steps_and_end_at_rate_zero(
    teachers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Noted(torch.optim.lr_scheduler.CosineAnnealingLR):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(torch.optim.lr_scheduler, "CosineAnnealingLR", Noted)
    convert(teachers, steps=7)
    assert [each.last_epoch for each in made] == [7] * (2 if teachers else 1)
    assert all(each.get_last_lr()[0] == pytest.approx(0, abs=1e-9) for each in made)


@WITH_AND_WITHOUT
def test_noise_is_the_contexts(teachers: int) -> None:
    seeded = weights(convert(teachers).student)
    drawn = weights(convert(teachers, ctx=replace(context(), noise="os")).student)
    assert not all(torch.equal(a, b) for a, b in zip(seeded, drawn, strict=True))


@WITH_AND_WITHOUT
def test_moments_votes_and_the_control_have_streams_of_their_own(teachers: int) -> None:
    ctx = asking_context()
    convert(teachers, ctx=ctx)
    assert len(ctx.asked) == len(set(ctx.asked)) == (3 if teachers else 1), "two streams with the same draws"


@WITH_AND_WITHOUT
def test_an_infinite_budget_adds_no_noise_and_proves_nothing(teachers: int) -> None:
    release = convert(teachers, FREE)
    assert release.solved["moments_multiplier"] == 0 and release.solved.get("sigma", 0) == 0
    assert math.isinf(account(release.ledger, Unit.EXAMPLE, DELTA).epsilon)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(RuntimeError, match="private_data"):
        convert(of=replace(toy(), private=None))
    with pytest.raises(RuntimeError, match="teacher_ensemble"):
        convert(of=replace(toy(), ensemble=None))


def test_images_of_moments_look_like_their_class_without_noise() -> None:
    """Each toy class is bright in a corner of its own."""
    made = smoke(dimension=100).class_images(toy(), 0.0, torch.Generator().manual_seed(0), context())
    images, classes = made.draw(80, torch.Generator().manual_seed(1))
    corners = images.unflatten(2, (2, 8)).unflatten(4, (2, 8)).mean((1, 3, 5)).flatten(1)
    assert (corners.argmax(1) == classes).float().mean() > 0.9


# How votes are read


def read(votes: list[int], sigma: float, rows: int, logit: float = 2.0, drawn_for: int = 2, seed: int = 0) -> Tensor:
    """(rows, classes) targets of as many images drawn for one class, a teacher voting for each of the classes named."""
    method = smoke(teachers=len(votes), prior_logit=logit)
    voters = Ensemble([Fixed(torch.eye(CLASSES)[c]) for c in votes], CLASSES)  # type: ignore[misc]
    spending = replace(VOTES, teachers=len(votes), sigma=sigma)
    counts = method.answers(torch.zeros(rows, *SHAPE), voters, spending, torch.Generator().manual_seed(seed))
    return method.targets(torch.full((rows,), drawn_for), CLASSES, method.evidence(counts, spending))


def has_standard_deviation(noise: np.ndarray, std: float) -> None:
    """Gaussian of that standard deviation, and of no other."""
    assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 0.01
    for wrong in (1 / 3, 1 / 2, 1 / math.sqrt(2), 1 / 1.1, 1.1, math.sqrt(2), 2, 3):
        assert stats.kstest(noise, stats.norm(0, wrong * std).cdf).pvalue < 1e-6, wrong


def test_the_noise_on_a_vote_count_has_standard_deviation_sigma() -> None:
    """Read back from the posterior mean, whose log-odds are linear in the counts."""
    sigma = 5.0
    logs = read([0, 0, 1], sigma, 10_000, logit=1e-9).double().log()
    odds = torch.cat([logs[:, 0] - logs[:, 1], logs[:, 2] - logs[:, 3]])
    counts = odds * sigma**2 / (AGREEMENT * 3) - torch.tensor([1.0, 0.0]).repeat_interleave(10_000)
    has_standard_deviation(counts.numpy(), math.sqrt(2) * sigma)


@pytest.mark.parametrize("logit", [0.5, 2.0])
@pytest.mark.parametrize("drawn_for", [0, 2])
def test_votes_are_read_by_the_posterior_mean(logit: float, drawn_for: int) -> None:
    """Five teachers, counts c with noise of sigma 4. If the class is r, the count of r has mean 0.7 * 5 and the others
    0; before, the class that the image was drawn for is e^logit times as likely as each of the others."""
    got = read([0, 0, 0, 1, 3], 4.0, 7, logit, drawn_for, seed=11)
    votes = torch.tensor([3.0, 1.0, 0.0, 1.0]).expand(7, -1)
    counts = noisy_counts(votes, "gaussian", 4.0, torch.Generator().manual_seed(11))
    for row in range(7):
        products = []
        for r in range(CLASSES):
            before = math.exp(logit) if r == drawn_for else 1.0
            likely = [stats.norm.pdf(counts[row, j], 0.7 * 5 * (j == r), 4.0) for j in range(CLASSES)]
            products.append(before * math.prod(likely))
        by_hand = torch.tensor(products) / sum(products)
        assert torch.allclose(got[row].double(), by_hand, atol=1e-5)


def test_an_image_that_no_one_was_asked_about_has_its_prior() -> None:
    got = smoke(prior_logit=1.5).targets(torch.tensor([1]), CLASSES)
    assert got[0].tolist() == pytest.approx([math.exp(1.5 * (c == 1)) / (3 + math.exp(1.5)) for c in range(CLASSES)])


def test_many_agreeing_teachers_are_heard_through_the_noise() -> None:
    """300 teachers sure of a class, sigma 40: votes stand 7 standard deviations out, and beat the prior."""
    assert (read([1] * 300, 40.0, 200).argmax(1) == 1).float().mean() > 0.99


# What an audit finds


def games(target: float = 1.0) -> list[DistinguishingGame]:
    """One answer, or the moments, at what the whole budget of a release with one query leaves it."""
    budget = Budget(target)
    many = ClassMoments(teachers=5, query_count=1, moments_share=0.01)
    return [method.game(budget, "x", 3) for method in (many, ClassMoments())]


@pytest.mark.thorough
@pytest.mark.parametrize(("plays", "share"), [(200_000, 0.45), pytest.param(1_000_000, 0.6, marks=pytest.mark.slow)])
def test_an_audit_comes_close_to_what_is_accounted_and_not_above(plays: int, share: float) -> None:
    for game in games():
        found = audit(game, plays, seed=0)
        assert found.accounted == pytest.approx(1, rel=0.02) and found.delta == DELTA
        assert found.verdict == "not refuted"
        assert share * found.accounted < found.lower_bound <= found.accounted


@pytest.mark.thorough
def test_an_audit_finds_half_of_the_noise_missing() -> None:
    for fields, make in (
        (replace(VOTES, queries=1, share=0.01), lambda s: vote_game(s, 3, DELTA)),
        (ALONE, lambda s: moments_game(s, 0.5, DELTA)),
    ):
        sound = calibrated(fields, Budget(1.0))
        careless = make(sound.with_noise((sound.sigma if fields.teachers else sound.multiplier) / 2))
        game = replace(make(sound), play=careless.play)
        assert audit(game, 200_000, seed=1).verdict == "accountant refuted"


def test_the_hypotheses_lie_as_far_apart_as_one_record_reaches() -> None:
    free = calibrated(VOTES, FREE)
    votes = vote_game(free, 4, DELTA)
    rows = [votes.play(hypothesis, 2, torch.Generator()).double() for hypothesis in (False, True)]
    assert (rows[0] - rows[1]).norm(dim=1).tolist() == pytest.approx([math.sqrt(2)] * 2, rel=1e-5)
    assert all(row.sum(1).tolist() == [50.0] * 2 for row in rows)
    for weight in (0.5, 0.7):
        moments = moments_game(calibrated(ALONE, FREE), weight, DELTA)
        rows = [moments.play(hypothesis, 2, torch.Generator()).double() for hypothesis in (False, True)]
        assert (rows[0] - rows[1]).norm(dim=1).tolist() == pytest.approx([1.0] * 2, rel=1e-5)


def test_moments_leave_an_answer_less_epsilon_and_the_game_says_so() -> None:
    little, much = (
        ClassMoments(teachers=5, query_count=1, moments_share=share).game(Budget(1.0), "x", 3).accounted
        for share in (0.01, 0.75)
    )
    assert much < 0.6 * little


# Golden values

GOLDEN: list[Any] = [
    ("digits", 80, 8.0, 42.9501898534385, 0.6710967164599765, 7.999708833582836,
     [[0.3249612, 0.214242, 0.4504644, 0.9339559], [0.3918192, 0.3278616, 0.4597038, 0.8576655]],
     [[0.245057, -0.0018373, 0.1047364, 0.2445392], [0.1494476, 0.1113601, 0.2498471, 0.0996748]]),
    ("toy", 4400, 2.0, 142.67131616635982, 2.2292393150993717, 1.9999105922796097,
     [[0.3230917, 0.1005481, 0.5095467, 0.8857501], [0.3416921, 0.282167, 0.5339138, 0.7231797]],
     [[0.2976406, -0.0115464, 0.1429496, 0.2831128], [0.300996, 0.0855491, 0.2565403, 0.1878611]]),
]  # fmt: skip
"""Pooled moments in strokes, and one per class in cosines: data set, records, epsilon; both noises, what is spent;
logits of student and control for two images."""


@pytest.mark.thorough
@pytest.mark.usefixtures("double_precision", "usual_draws")
@pytest.mark.parametrize(("dataset", "records", "target", "sigma", "multiplier", "spent", "student", "control"), GOLDEN)
def test_the_algorithm_has_not_moved(
    dataset: str,
    records: int,
    target: float,
    sigma: float,
    multiplier: float,
    spent: float,
    student: list[list[float]],
    control: list[list[float]],
) -> None:
    given = {"teachers": "3", "query_count": "512", "images": "712", "steps": "20"}
    method = configure(ClassMoments, "quick", given, "method")
    ctx = Context(torch.device("cpu"), 3, silent, MemoryArtifacts())
    of = replace(toy(private=toy_private(n=records)), dataset=dataset)  # leaves torch seeded
    release = method.convert(of, "datalens", Budget(target), ctx)
    assert release.solved == {
        "queries": 512,
        "sigma": pytest.approx(sigma, rel=1e-9),
        "moments_multiplier": pytest.approx(multiplier, rel=1e-9),
    }
    assert account(release.ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(spent, rel=1e-9)
    x = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert release.control is not None
        assert torch.allclose(release.student.eval()(x), torch.tensor(student), atol=1e-5)
        assert torch.allclose(release.control.eval()(x), torch.tensor(control), atol=1e-5)


def test_moments_alone_are_what_the_control_is_but_for_the_noise() -> None:
    """Same multiplier, same draws: the control of a run with teachers and the run without are one implementation."""
    spending = smoke(teachers=TEACHERS).spending(EIGHT)

    class OtherStream(Context):
        def privacy_noise(self, name: str) -> Any:
            return super().privacy_noise("control" if name == "moments" else name)

    before: list[Tensor] = []
    real = ClassMoments._without_votes

    def noted(self: ClassMoments, *given: Any) -> Any:
        before.append(torch.get_rng_state())
        return real(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClassMoments, "_without_votes", noted)
        control = convert().control
    alone, of = smoke(multiplier=repr(spending.whole_multiplier)), toy(0)
    torch.set_rng_state(before[0])
    other = OtherStream(torch.device("cpu"), 0, silent, MemoryArtifacts())
    made = alone.convert(of, "datalens", Budget(None, solve="none"), other)
    assert control is not None
    assert all(torch.equal(a, b) for a, b in zip(weights(control), weights(made.student), strict=True))
