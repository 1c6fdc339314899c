"""Class moments with and without votes: released values, how votes are read, the cost, and an audit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import Call, epsilon_of, forbidden_teacher, gaussian_delta, record_calls, rng
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import stats
from torch import Tensor, nn

from baselines.class_moments.class_moments import AGREEMENT, ClassMoments
from baselines.class_moments.spending import Spending, calibrated, votes_play
from bench.api import Context, Release, Teacher
from bench.config import configure, default_variant
from bench.distillation.class_moments import class_images
from bench.distillation.class_moments.noisy_moments import played_moments
from bench.nets import Ensemble
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.audit import audit
from bench.privacy.counts import noisy_counts
from bench.testing import CLASSES, SHAPE, context, recording_context, toy_private, weights
from bench.testing.toys import same_tensors

DELTA, TEACHERS = 1e-5, 3
EIGHT, FREE = Budget(8.0, account="accounted"), Budget(math.inf)
VOTES = Spending(teachers=50, queries=200, sigma=100.0, share=0.5, multiplier=1.0)


def mu_squared(ledger: Ledger) -> list[float]:
    """Return count / multiplier^2 of every entry."""
    return [entry.count / entry.event.noise_multiplier**2 for entry in ledger.entries(Unit.EXAMPLE)]


class Fixed(nn.Module):
    """Answers every image with the same logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits, self.body = logits, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


def toy(teachers: int = TEACHERS, private: Any = None) -> Teacher:
    """Records, and teachers if there are any; leaves torch seeded."""
    members = Ensemble.build(("shard-cnn",), teachers, SHAPE, CLASSES, range(teachers)) if teachers else None
    ensemble = members and members.eval().requires_grad_(False)
    return forbidden_teacher(ensemble=ensemble, private=private or toy_private())


def smoke(**given: Any) -> ClassMoments:
    return baseline_runs.smoke(ClassMoments, None, **given)


def convert(
    teachers: int = TEACHERS, budget: Budget = EIGHT, of: Teacher | None = None, ctx: Any = None, **given: Any
) -> Release:
    of = of or toy(teachers)
    return baseline_runs.convert(ClassMoments, budget, of, ctx=ctx, variant=None, teachers=teachers, **given)


@pytest.mark.parametrize(("queries", "images", "queried"), [(12, 32, [12]), (300, 300, [256, 44]), (40, 7, [40])])
def test_ledger_counts_every_query(queries: int, images: int, queried: list[int]) -> None:
    of, ctx = toy(), recording_context()
    seen: list[list[int]] = [[] for _ in of.members().members]
    for member, sizes in zip(of.members().members, seen, strict=True):
        member.register_forward_hook(lambda _, given, __, sizes=sizes: sizes.append(len(given[0])))
    release = convert(of=of, query_count=queries, images=images, ctx=ctx)
    assert seen == [queried] * TEACHERS, "once about every image, however often the student learns"
    answers, moments = release.ledger.entries(Unit.EXAMPLE)
    assert answers.count == queries == release.solved["queries"]
    assert answers.event.noise_multiplier == pytest.approx(release.solved["sigma"] / math.sqrt(2))
    assert moments.event.noise_multiplier == release.solved["moments_multiplier"]
    assert release.claim is None and release.control is not None and release.generator is None
    assert len(ctx.streams) == len(set(ctx.streams)) == 3, "two streams with the same draws"


@pytest.mark.parametrize(("queries", "images", "learnt"), [(12, 32, 32), (40, 7, 40)])
def test_student_and_control_use_equally_many_images(
    queries: int, images: int, learnt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queried images are among them, or include all of them if more are queried."""
    calls = record_calls(monkeypatch, ClassMoments, "_learn")
    convert(query_count=queries, images=images, steps=1)
    assert [tuple(map(len, call.arguments[2:4])) for call in calls] == [(learnt, learnt)] * 2


def test_release_without_teachers_has_no_control() -> None:
    release = convert(teachers=0)
    assert release.control is None and release.claim is None and set(release.solved) == {"moments_multiplier"}
    (moments,) = release.ledger.entries(Unit.EXAMPLE)
    assert moments.event == GaussianDpEvent(release.solved["moments_multiplier"])
    shown = release.synthetic
    assert shown is not None and shown.shape == (60, *SHAPE) and 0 <= shown.min() < shown.max() <= 1


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Every call of `noisy_moments`: images, labels, classes, basis, multiplier, ..., pooled."""
    return record_calls(monkeypatch, class_images, "noisy_moments")


def test_moments_have_the_noise_of_the_ledger(releases: list[Call]) -> None:
    """The baseline without teacher uses the whole budget for moments; its basis does not depend on private images."""
    private = toy_private()
    release = convert(of=toy(private=private), moments_share=0.3)
    squares = mu_squared(release.ledger)
    assert squares[1] / sum(squares) == pytest.approx(0.3)
    found = [1 / call.arguments[4] ** 2 for call in releases]
    assert found == [pytest.approx(squares[1]), pytest.approx(sum(squares))]
    assert all(call.arguments[0] is private[0] and call.arguments[1] is private[1] for call in releases)
    convert(of=toy(private=toy_private(seed=9, n=44)))
    assert torch.equal(releases[0].arguments[3], releases[2].arguments[3])


def test_control_draws_independent_noise(releases: list[Call]) -> None:
    """Equal draws at two scales would reveal the sums: S + a z and S + b z have only S and z unknown."""
    for budget in (EIGHT, FREE):
        convert(of=toy(private=toy_private()), budget=budget, moments_share=0.5)
    first, control, silent_, _ = (call.result.first.double() for call in releases)
    scales = [call.arguments[4] for call in releases]
    one, other = (first - silent_) / scales[0], (control - silent_) / scales[1]
    assert abs(float(np.corrcoef(one.flatten(), other.flatten())[0, 1])) < 0.7
    assert not torch.allclose(one, other, atol=0.1)


@pytest.mark.parametrize(
    ("given", "count", "pooled"),
    [({}, 80, True), ({"second_moments": "per-class"}, 80, False), ({}, 1000 * CLASSES, False)],
    ids=str,
)
def test_moments_are_pooled_for_few_records(given: Any, count: int, pooled: bool, releases: list[Call]) -> None:
    convert(teachers=0, of=toy(0, toy_private(n=count)), **given)
    assert releases[0].arguments[-1] is pooled


@pytest.mark.parametrize("teachers", [0, TEACHERS])
def test_student_and_control_train_alike_and_end_at_rate_0(teachers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = record_calls(monkeypatch, torch.optim.lr_scheduler.CosineAnnealingLR, "__init__")
    convert(teachers, steps=7)
    schedules = [call.arguments[0] for call in made]
    assert [each.last_epoch for each in schedules] == [7] * (2 if teachers else 1)
    assert all(each.get_last_lr()[0] == pytest.approx(0, abs=1e-9) for each in schedules)


def test_noiseless_images_resemble_their_class() -> None:
    made = smoke(dimension=100).class_images(toy(), 0.0, rng(), context())
    images, classes = made.draw(80, rng(1))
    assert (F.avg_pool2d(images, 8).flatten(1).argmax(1) == classes).float().mean() > 0.9


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


def test_vote_count_noise_has_deviation_sigma() -> None:
    """Read back from the posterior mean, whose log-odds are linear in the counts."""
    sigma = 5.0
    logs = read([0, 0, 1], sigma, 10_000, logit=1e-9).double().log()
    odds = torch.cat([logs[:, 0] - logs[:, 1], logs[:, 2] - logs[:, 3]])
    counts = odds * sigma**2 / (AGREEMENT * 3) - torch.tensor([1.0, 0.0]).repeat_interleave(10_000)
    has_standard_deviation(counts.numpy(), math.sqrt(2) * sigma)


@pytest.mark.parametrize("logit", [0.5, 2.0])
@pytest.mark.parametrize("drawn_for", [0, 2])
def test_targets_are_the_posterior_mean_of_votes(logit: float, drawn_for: int) -> None:
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


def test_unqueried_image_has_its_prior_as_target() -> None:
    got = smoke(prior_logit=1.5).targets(torch.tensor([1]), CLASSES)
    assert got[0].tolist() == pytest.approx([math.exp(1.5 * (c == 1)) / (3 + math.exp(1.5)) for c in range(CLASSES)])


def test_agreement_of_many_teachers_exceeds_the_noise() -> None:
    """300 teachers sure of a class, sigma 40: votes stand 7 standard deviations out, and beat the prior."""
    assert (read([1] * 300, 40.0, 200).argmax(1) == 1).float().mean() > 0.99


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
@pytest.mark.parametrize("case", GOLDEN, ids=["pooled", "per-class"])
def test_outputs_match_golden_values(case: Any) -> None:
    dataset, records, target, sigma, multiplier, spent, student, control = case
    given = {"teachers": "3", "query_count": "512", "images": "712", "steps": "20"}
    method = configure(ClassMoments, "quick", given, "method")
    of = replace(toy(private=toy_private(n=records)), dataset=dataset)
    release = method.convert(of, "datalens", Budget(target), context(3))
    noises = {"queries": 512, "sigma": sigma, "moments_multiplier": multiplier}
    assert release.solved == pytest.approx(noises, rel=1e-9)
    assert epsilon_of(release.ledger) == pytest.approx(spent, rel=1e-9)
    x = torch.rand(2, *SHAPE, generator=rng())
    assert release.control is not None
    with torch.no_grad():
        for network, expected in ((release.student, student), (release.control, control)):
            assert torch.allclose(network.eval()(x), torch.tensor(expected), atol=1e-5)


def test_release_without_teachers_equals_the_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same multiplier, same draws: the control of a run with teachers and the run without are one implementation."""

    class OtherStream(Context):
        def privacy_noise(self, name: str) -> Any:
            return super().privacy_noise("control" if name == "moments" else name)

    before: list[Tensor] = []
    real = ClassMoments._without_votes
    monkeypatch.setattr(
        ClassMoments, "_without_votes", lambda *given: (before.append(torch.get_rng_state()), real(*given))[1]
    )
    control, of = convert().control, toy(0)
    single = smoke(multiplier=repr(smoke(teachers=TEACHERS).spending(EIGHT).whole_multiplier))
    torch.set_rng_state(before[0])
    made = single.convert(of, "datalens", Budget(None, solve="none"), OtherStream(**vars(context())))
    assert control is not None and same_tensors(weights(control), weights(made.student))


ALONE = replace(VOTES, teachers=0)
SHARES = pytest.mark.parametrize("share", [0.1, 0.5, 0.9])


def test_accounted_epsilon_matches_golden_value() -> None:
    """docs/privacy.md: 1,024 queries with noise of 100 votes, and half of mu^2 for the moments."""
    votes, moments = mu_squared(replace(VOTES, queries=1024).ledger())
    assert gaussian_delta(1.783 + 5e-4, math.sqrt(votes)) < DELTA < gaussian_delta(1.783 - 5e-4, math.sqrt(votes))
    assert moments == pytest.approx(votes) == pytest.approx(1024 * 2 / 100**2)


def test_ledger_has_the_sensitivity_of_every_release() -> None:
    """One teacher moves two counts by 1 each."""
    answers, moments = VOTES.ledger().entries(Unit.EXAMPLE)
    assert answers.event == GaussianDpEvent(100 / math.sqrt(2)) and answers.count == 200
    assert moments.count == 1


@pytest.mark.parametrize("teachers", [1, 50, 1000])
def test_query_epsilon_covers_all_teachers(teachers: int) -> None:
    """That of an example does not depend on their number."""
    ledger = replace(VOTES, teachers=teachers).ledger()
    (entry,) = ledger.entries(Unit.QUERY)
    assert entry.count == 1 and entry.event == GaussianDpEvent(100 / (teachers * math.sqrt(2)))
    assert mu_squared(ledger) == mu_squared(VOTES.ledger())


@SHARES
@pytest.mark.parametrize("queries", [1, 1000])
def test_moments_have_their_share_of_mu_squared(share: float, queries: int) -> None:
    spending = replace(VOTES, queries=queries, share=share)
    answers, moments = mu_squared(spending.ledger())
    assert moments / (answers + moments) == pytest.approx(share, rel=1e-12)
    assert answers == pytest.approx(queries * 2 / 100**2)
    assert spending.whole_multiplier**-2 == pytest.approx(answers + moments)


def test_ledger_without_teachers_has_only_moments() -> None:
    assert mu_squared(replace(ALONE, multiplier=2.0).ledger()) == [0.25]
    assert not ALONE.ledger().entries(Unit.QUERY) and ALONE.whole_multiplier == ALONE.moments_multiplier


@SHARES
@pytest.mark.parametrize("sigma", [30.0, 100.0, 1000.0])
def test_accountant_matches_closed_form(share: float, sigma: float) -> None:
    spending = replace(VOTES, sigma=sigma, share=share)
    mu = math.sqrt(sum(mu_squared(spending.ledger())))
    assert gaussian_delta(spending.epsilon(Unit.EXAMPLE, DELTA), mu) == pytest.approx(DELTA, rel=1e-5)


@pytest.mark.parametrize("account", ["claimed", "accounted"])
@pytest.mark.parametrize("fields", [VOTES, ALONE], ids=["votes", "moments"])
@pytest.mark.parametrize("target", [0.05, 1.0, 8.0])
def test_accounted_budget_is_met_for_either_account(fields: Spending, target: float, account: Any) -> None:
    """The budget limits the account, because class moments have no claim."""
    spending = calibrated(fields, Budget(target, account=account))
    assert target * (1 - 1e-3) <= spending.epsilon(Unit.EXAMPLE, DELTA) <= target
    assert spending.queries == fields.queries


def test_share_of_moments_increases_vote_noise() -> None:
    thin, thick = (calibrated(replace(VOTES, share=share), EIGHT).sigma for share in (0.2, 0.8))
    assert thick == pytest.approx(2 * thin, rel=1e-3), "a quarter of mu^2 is twice the noise"


def test_solved_query_count_is_the_largest() -> None:
    spending = calibrated(VOTES, Budget(1.0, solve="steps"))
    assert spending.sigma == VOTES.sigma
    more = replace(spending, queries=spending.queries + 1)
    assert spending.epsilon(Unit.EXAMPLE, DELTA) <= 1 < more.epsilon(Unit.EXAMPLE, DELTA)


@pytest.mark.parametrize("fields", [VOTES, ALONE], ids=["votes", "moments"])
def test_noiseless_release_has_infinite_epsilon(fields: Spending) -> None:
    free = calibrated(fields, FREE)
    assert free.moments_multiplier == 0
    for unit in (Unit.EXAMPLE, Unit.QUERY)[: 2 if fields.teachers else 1]:
        entries = free.ledger().entries(unit)
        assert entries and all(isinstance(entry.event, NonPrivateDpEvent) for entry in entries)
    assert math.isinf(free.epsilon(Unit.EXAMPLE, DELTA))


def test_needs_depend_on_teachers() -> None:
    assert default_variant(ClassMoments) == "own"
    assert ClassMoments().needs == {"private_data"}
    assert ClassMoments(teachers=2).needs == {"private_data", "teacher_ensemble"}
    for names, archs in (("same, shard-cnn", ("same", "shard-cnn")), ("same", ("resnet18",))):
        assert ClassMoments(teachers=2, teacher_nets=names).shards("resnet18", "x").archs == archs


WITH_VOTES = ClassMoments(teachers=5, query_count=1, moments_share=0.01)
"""One response has nearly the whole budget."""


@pytest.mark.thorough
@pytest.mark.parametrize("method", [WITH_VOTES, ClassMoments()], ids=["votes", "moments"])
@pytest.mark.parametrize(("plays", "share"), [(20_000, 0.25), pytest.param(200_000, 0.45, marks=pytest.mark.slow)])
def test_audit_bound_is_below_and_near_the_account(method: ClassMoments, plays: int, share: float) -> None:
    found = audit(method.game(Budget(1.0), "x", 3), plays, seed=0)
    assert found.accounted == pytest.approx(1, rel=0.02) and found.delta == DELTA
    assert found.verdict == "not refuted"
    assert share * found.accounted < found.lower_bound <= found.accounted


@pytest.mark.thorough
@pytest.mark.parametrize("method", [WITH_VOTES, ClassMoments()], ids=["votes", "moments"])
def test_audit_finds_halved_noise(method: ClassMoments) -> None:
    sound, budget = method.spending(Budget(1.0)), Budget(None, solve="none")
    half = replace(method, sigma=sound.sigma / 2, multiplier=sound.multiplier / 2)
    game = replace(method.game(Budget(1.0), "x", 3), play=half.game(budget, "x", 3).play)
    assert audit(game, 20_000, seed=1).verdict == "accountant refuted"


def test_game_worlds_differ_by_one_record() -> None:
    votes = votes_play(calibrated(VOTES, FREE), ClassMoments(teachers=2).answers)
    rows = [votes(hypothesis, 2, torch.Generator()).double() for hypothesis in (False, True)]
    assert (rows[0] - rows[1]).norm(dim=1).tolist() == pytest.approx([math.sqrt(2)] * 2, rel=1e-5)
    assert all(row[:, :3].sum(1).tolist() == [2.0] * 2 for row in rows)
    for weight, pooled in ((0.5, False), (0.7, True)):
        plays = [played_moments(0.0, weight, pooled, world, 2, torch.Generator()) for world in (False, True)]
        first, second = (plays[1] - plays[0])[:, :2].double(), (plays[1] - plays[0])[:, 2:].double()
        twice = torch.tensor([1.0, 2.0, 1.0]).double()
        moved = weight * first.square().sum(1) + (1 - weight) * (twice * second.square()).sum(1)
        assert moved.sqrt().tolist() == pytest.approx([1.0] * 2, rel=1e-5)


@pytest.mark.parametrize("share", [0.01, 0.75])
def test_game_with_votes_is_accounted_at_the_budget(share: float) -> None:
    game = ClassMoments(teachers=5, query_count=1, moments_share=share).game(Budget(1.0), "x", 3)
    assert game.accounted == pytest.approx(1.0, rel=1e-3)
