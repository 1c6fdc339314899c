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


def test_accounted_epsilon_matches_golden_value() -> None:
    """docs/privacy.md: 1,024 queries with noise of 100 votes, and half of mu^2 for the moments."""
    votes, moments = mu_squared(replace(VOTES, queries=1024).ledger())
    assert gaussian_epsilon(math.sqrt(votes)) == pytest.approx(1.783, abs=5e-4)
    assert moments == pytest.approx(votes) == pytest.approx(1024 * 2 / 100**2)


def test_ledger_has_the_sensitivity_of_every_release() -> None:
    """One teacher moves two counts by 1 each."""
    answers, moments = VOTES.ledger().entries(Unit.EXAMPLE)
    assert answers.event == GaussianDpEvent(100 / math.sqrt(2)) and answers.count == 200
    assert moments.count == 1


def test_example_epsilon_is_independent_of_teacher_count() -> None:
    assert len({tuple(mu_squared(replace(VOTES, teachers=n).ledger())) for n in (1, 3, 1000)}) == 1


@pytest.mark.parametrize("teachers", [1, 50])
def test_query_epsilon_covers_all_teachers(teachers: int) -> None:
    (entry,) = replace(VOTES, teachers=teachers).ledger().entries(Unit.QUERY)
    assert entry.count == 1 and entry.event == GaussianDpEvent(100 / (teachers * math.sqrt(2)))


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
    expected = gaussian_epsilon(math.sqrt(sum(mu_squared(spending.ledger()))))
    assert spending.epsilon(Unit.EXAMPLE, DELTA) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("account", ["claimed", "accounted"])
@pytest.mark.parametrize("fields", [VOTES, ALONE], ids=["votes", "alone"])
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


@pytest.mark.parametrize("fields", [VOTES, ALONE], ids=["votes", "alone"])
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
def test_audit_bound_is_below_and_near_the_account(plays: int, share: float) -> None:
    for game in games():
        found = audit(game, plays, seed=0)
        assert found.accounted == pytest.approx(1, rel=0.02) and found.delta == DELTA
        assert found.verdict == "not refuted"
        assert share * found.accounted < found.lower_bound <= found.accounted


@pytest.mark.thorough
def test_audit_finds_halved_noise() -> None:
    for method in (ClassMoments(teachers=5, query_count=1, moments_share=0.01), ClassMoments()):
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
