"""Label privacy: the cost of a label, that only its randomised value is used, and the audit game."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import LaplaceDpEvent, NonPrivateDpEvent
from label_privacy_made import METHODS, convert, watched, weights
from scipy import stats

from baselines import alibi, lp_2st, rr, rr_debiased
from baselines.alibi import Alibi
from baselines.lp_2st import Lp2st, rr_with_prior
from baselines.rr import Rr
from bench.dp_training.label_privacy import respond
from bench.dp_training.noisy_label_training import LabelPrivate
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import audit
from bench.testing import CLASSES, context, toy_private

# What it costs.


@pytest.mark.parametrize("eps", [0.2, 0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("cls", METHODS)
def test_label_costs_epsilon_and_example_is_unprotected(cls: type[LabelPrivate], eps: float) -> None:
    release = convert(cls, Budget(eps))
    found = account(release.ledger, Unit.LABEL, 1e-5)
    assert found.epsilon == pytest.approx(eps, rel=1e-3) and found.epsilon <= eps * (1 + 1e-9)
    assert release.claim is not None and release.claim.epsilon == eps
    assert release.claim.unit == Unit.LABEL and release.claim.delta == 0
    assert release.solved["label_epsilon"] == eps
    assert math.isinf(account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon)
    (label,), (example,) = release.ledger.entries(Unit.LABEL), release.ledger.entries(Unit.EXAMPLE)
    assert label.count == (2 if cls is Alibi else 1) and example.event == NonPrivateDpEvent()


def test_laplace_scale_is_two_over_epsilon() -> None:
    release = convert(Alibi, Budget(3.0))
    (entry,) = release.ledger.entries(Unit.LABEL)
    assert release.solved["scale"] == pytest.approx(2 / 3) and entry.event == LaplaceDpEvent(2 / 3)


@pytest.mark.parametrize(("eps", "delta"), [(0.5, 1e-5), (1.0, 1e-5), (3.0, 1e-3), (8.0, 1e-6)])
def test_gaussian_noise_meets_the_exact_curve(eps: float, delta: float) -> None:
    """Balle and Wang (2018): delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = sqrt(2) / s."""
    release = convert(Alibi, Budget(eps, delta), noise="gaussian")
    mu = math.sqrt(2) / release.solved["scale"]
    found = stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu)
    assert 0.995 * delta < found <= delta
    assert release.claim is not None and 0.9999 * eps < release.claim.epsilon <= eps and release.claim.delta == delta


@pytest.mark.parametrize("cls", METHODS)
def test_options_apply_if_nothing_is_solved(cls: type[LabelPrivate]) -> None:
    for budget in (Budget(None, solve="none"), Budget(5.0, solve="none")):
        release = convert(cls, budget, label_epsilon="1.5")
        assert release.claim is not None and release.claim.epsilon == 1.5


# What is seen of a label.


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mechanisms that draw as before and answer about a label that is always 0."""
    for module in (rr, rr_debiased):
        monkeypatch.setattr(module, "respond", lambda y, *rest: respond(torch.zeros_like(y), *rest))
    monkeypatch.setattr(lp_2st, "rr_with_prior", lambda y, *rest: rr_with_prior(torch.zeros_like(y), *rest))
    noisy = Alibi._noisy
    monkeypatch.setattr(alibi.Alibi, "_noisy", lambda self, y, *rest: noisy(self, torch.zeros_like(y), *rest))


@pytest.mark.parametrize("cls", METHODS)
def test_training_uses_only_noisy_labels(monkeypatch: pytest.MonkeyPatch, cls: type[LabelPrivate]) -> None:
    images, labels = toy_private()
    other = (images, (labels + 1) % CLASSES)
    assert not torch.equal(weights(convert(cls)), weights(convert(cls, private=other)))
    blind(monkeypatch)
    assert torch.equal(weights(convert(cls)), weights(convert(cls, private=other)))


@pytest.mark.parametrize("cls", METHODS)
def test_label_is_randomised_once_as_in_the_ledger(monkeypatch: pytest.MonkeyPatch, cls: type[LabelPrivate]) -> None:
    asked, noise, _ = watched(monkeypatch)
    images, labels = toy_private()
    release = convert(cls, Budget(1.6), private=(images, labels), epochs="3")
    assert noise == [release.solved["scale"]] if cls is Alibi else set(noise) == {1.6}
    assert len(asked) == (2 if cls is Lp2st else 1)
    assert torch.equal(torch.cat(asked).sort().values, labels.sort().values)


@pytest.mark.parametrize("cls", METHODS)
def test_game_uses_the_mechanism_at_the_budget(monkeypatch: pytest.MonkeyPatch, cls: type[LabelPrivate]) -> None:
    asked, noise, answers = watched(monkeypatch)
    game = cls().game(Budget(1.6, unit=Unit.LABEL), "toy", 4)  # type: ignore[attr-defined]
    seen = [game.play(world, 50, torch.Generator().manual_seed(0)) for world in (False, True)]
    assert set(noise) == {2 / 1.6 if cls is Alibi else 1.6}
    one, other = asked[-3][::2], asked[-1][::2]  # of two calls for each world, and of two labels for each play
    assert len(one.unique()) == len(other.unique()) == 1 and one[0] != other[0]
    for row, answer in zip(seen, (answers[-3][::2], answers[-1][::2]), strict=True):
        assert torch.equal(row[:, :4], answer if cls is Alibi else F.one_hot(answer, 4).double())


@pytest.mark.parametrize("cls", METHODS)
def test_system_noise_differs_between_runs(cls: type[LabelPrivate]) -> None:
    first, again = (weights(convert(cls, Budget(0.5), ctx=replace(context(), noise="os"))) for _ in range(2))
    assert not torch.equal(first, again)


@pytest.mark.thorough
@pytest.mark.parametrize("cls", METHODS)
def test_audit_bound_is_below_and_near_epsilon(cls: type[LabelPrivate]) -> None:
    game = cls().game(Budget(1.5, unit=Unit.LABEL), "toy", 4)  # type: ignore[attr-defined]
    found = audit(game, plays=240_000)
    assert (game.claimed, game.accounted) == pytest.approx((1.5, 1.5), rel=1e-3)
    assert found.verdict == "not refuted" and found.lower_bound > 1.1
    assert audit(replace(game, claimed=0.75), plays=60_000).verdict == "refuted"


def test_tiny_epsilon_uses_the_accountants_delta() -> None:
    game = Rr().game(Budget(1e-4, unit=Unit.LABEL), "toy", 4)
    assert game.delta == 1e-5 and game.accounted < game.claimed == 1e-4
    assert audit(game, plays=5_000).verdict == "not refuted"
