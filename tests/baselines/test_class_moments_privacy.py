"""Cost of class moments and votes: ledger, budgets, refused settings, and the result of an audit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from class_moments_made import DELTA, EIGHT, FREE, VOTES, mu_squared
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import optimize, stats

from baselines.class_moments.class_moments import ClassMoments
from baselines.class_moments.spending import Spending, calibrated, votes_play
from bench.config import default_variant
from bench.distillation.class_moments.noisy_moments import played_moments
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame, audit

ALONE = replace(VOTES, teachers=0)
SHARES = pytest.mark.parametrize("share", [0.1, 0.5, 0.9])


def gaussian_epsilon(mu: float) -> float:
    """Balle and Wang (2018): delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""

    def log_excess(e: float) -> float:
        upper, lower = stats.norm.logcdf(mu / 2 - e / mu), e + stats.norm.logcdf(-mu / 2 - e / mu)
        return upper + math.log1p(-math.exp(lower - upper)) - math.log(DELTA)

    return optimize.brentq(log_excess, 1e-9, 200.0, xtol=1e-12)


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
    """There is no claim to compare a budget with."""
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


# What an audit finds


def games(target: float = 1.0) -> list[DistinguishingGame]:
    """One response, or the moments, with the part of a budget that a release with one query has for it."""
    budget = Budget(target)
    many = ClassMoments(teachers=5, query_count=1, moments_share=0.01)
    return [method.game(budget, "x", 3) for method in (many, ClassMoments())]


@pytest.mark.thorough
@pytest.mark.parametrize(("plays", "share"), [(20_000, 0.25), pytest.param(200_000, 0.45, marks=pytest.mark.slow)])
def test_an_audit_comes_close_to_what_is_accounted_and_not_above(plays: int, share: float) -> None:
    for game in games():
        found = audit(game, plays, seed=0)
        assert found.accounted == pytest.approx(1, rel=0.02) and found.delta == DELTA
        assert found.verdict == "not refuted"
        assert share * found.accounted < found.lower_bound <= found.accounted


@pytest.mark.thorough
def test_an_audit_finds_half_of_the_noise_missing() -> None:
    for method in (ClassMoments(teachers=5, query_count=1, moments_share=0.01), ClassMoments()):
        sound, budget = method.spending(Budget(1.0)), Budget(None, solve="none")
        half = replace(method, sigma=sound.sigma / 2, multiplier=sound.multiplier / 2)
        game = replace(method.game(Budget(1.0), "x", 3), play=half.game(budget, "x", 3).play)
        assert audit(game, 20_000, seed=1).verdict == "accountant refuted"


def test_the_hypotheses_lie_as_far_apart_as_one_record_reaches() -> None:
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
def test_game_of_moments_and_one_answer_is_accounted_at_the_budget(share: float) -> None:
    game = ClassMoments(teachers=5, query_count=1, moments_share=share).game(Budget(1.0), "x", 3)
    assert game.accounted == pytest.approx(1.0, rel=1e-3)
