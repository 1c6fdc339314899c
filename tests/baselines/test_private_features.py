"""Private features: one account, its noise, stored values, and the release."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import accuracy, epsilon_of, forbidden_teacher
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from dp_accounting.pld import PLDAccountant

from baselines.dp_teacher import DpTeacher
from baselines.private_features import PrivateFeatures
from bench import nets
from bench.api import Context, Release, Teacher
from bench.dp_training.fixed_features import features_of, kept_features, unit_rows
from bench.dp_training.head_accounting import Spending, calibrated
from bench.privacy import Budget
from bench.privacy.audit import audit
from bench.privacy.noise import Noise
from bench.privacy.witness import Trace, Witness
from bench.testing import CLASSES, SHAPE, MemoryArtifacts, context, toy_private

DELTA = 1e-5
MU = {1.0: 0.26805, 3.0: 0.71912, 8.0: 1.66603}
"""Golden mu of Gaussian mechanisms at delta 1e-5, by epsilon."""
FIELDS = Spending(steps=60, multiplier=1.0, share=0.2, neighbours="add-or-remove")


def toy(n: int = 200, shape: tuple[int, int, int] = SHAPE) -> Teacher:
    images, labels = toy_private(0, n)
    return forbidden_teacher(shape=shape, private=(images.expand(-1, *shape).contiguous(), labels))


def convert(
    budget: Budget, records: Teacher | None = None, /, ctx: Any = None, cls: Any = PrivateFeatures, **given: Any
) -> Release:
    return baseline_runs.convert(cls, budget, records or toy(), ctx=ctx, variant=None, **given)


def witnessed(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Record the noise that a run draws."""
    trace = Trace(0)
    monkeypatch.setattr(Context, "privacy_noise", lambda _self, _name: Witness(trace, 1))
    return trace


def pld(*multipliers: tuple[float, int]) -> float:
    accountant = PLDAccountant()
    for multiplier, count in multipliers:
        accountant.compose(GaussianDpEvent(multiplier), count)
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", MU)
@pytest.mark.parametrize(("share", "images"), [(0.0, 0.0), (0.2, 0.0), (0.2, 0.3), (0.0, 0.3)])
def test_gaussians_compose_to_one_mu(epsilon: float, share: float, images: float) -> None:
    mu = MU[epsilon]
    multiplier = math.sqrt(60 / (1 - share - images)) / mu
    spending = replace(FIELDS, share=share, images=images, multiplier=multiplier)
    assert spending.mu == pytest.approx(mu)
    assert spending.epsilon(DELTA) == pytest.approx(epsilon, abs=1e-4)
    entries = [(e.event.noise_multiplier, e.count) for e in spending.ledger().entries()]
    assert pld(*entries) == pytest.approx(spending.epsilon(DELTA), abs=1e-4)
    assert sum(count / z**2 for z, count in entries) == pytest.approx(mu**2)
    shares = [*([images] if images else []), *([share] if share else []), 1 - share - images]
    assert [count / z**2 for z, count in entries] == [pytest.approx(part * mu**2) for part in shares]


@pytest.mark.parametrize("epsilon", MU)
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace"])
@pytest.mark.parametrize("solve", ["sigma", "steps"])
def test_budget_is_met_and_nearly_spent(epsilon: float, neighbours: Any, solve: Any) -> None:
    fields = replace(FIELDS, neighbours=neighbours, multiplier=40.0)
    spending = calibrated(fields, Budget(epsilon, DELTA, solve=solve))
    assert epsilon * 0.97 < spending.epsilon(DELTA) <= epsilon
    assert spending.claim(DELTA).epsilon == spending.epsilon(DELTA)
    left = epsilon_of(spending.ledger())
    assert left == spending.epsilon(DELTA) if neighbours == "add-or-remove" else left < spending.epsilon(DELTA)


def test_replaced_records_have_larger_sensitivities() -> None:
    spending = replace(FIELDS, neighbours="replace", images=0.3)
    assert spending.gradient_noise(0.3) == 2 * 0.3 * spending.multiplier
    assert spending.moment_noise == pytest.approx(math.sqrt(2) * spending.moment_multiplier)
    assert spending.images_noise == pytest.approx(math.sqrt(2) * spending.images_multiplier)


def test_noiseless_release_has_infinite_epsilon() -> None:
    spending = calibrated(FIELDS, Budget(math.inf))
    assert all(isinstance(entry.event, NonPrivateDpEvent) for entry in spending.ledger().entries())
    assert math.isinf(spending.mu) and math.isinf(spending.epsilon(DELTA))


@pytest.mark.parametrize(
    ("given", "entries"),
    [
        ({}, 2),
        ({"whitened": "maps"}, 2),
        ({"neighbours": "replace"}, 2),
        ({"whitening": "public"}, 1),
        ({"whitening": "none"}, 1),
    ],
)
def test_drawn_noise_is_that_of_the_ledger(
    given: dict[str, str], entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = witnessed(monkeypatch)
    release = convert(Budget(3.0), **given)
    written = [(e.event.noise_multiplier, e.count) for e in release.ledger.entries()]
    assert len(written) == entries and sum(count for _, count in written) == len(trace.steps)
    drawn = [step.scale for step in trace.steps]
    if entries == 2:
        assert drawn[0] == pytest.approx(written[0][0] / (1 - 2**-7))
    assert drawn[-3:] == pytest.approx([PrivateFeatures.clip * written[-1][0]] * 3)


@pytest.mark.parametrize("cls", [PrivateFeatures, DpTeacher])
@pytest.mark.parametrize("epsilon", [0.25, 0.5])
def test_solved_steps_are_the_steps_taken(cls: type[Any], epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At z = 30 they are fewer than the field's 120, which a former version used at any cost."""
    given = {"steps": "120"}
    if cls is DpTeacher:
        given |= {"teacher": "private-features", "conversion": "none"}
    trace = witnessed(monkeypatch)
    release = convert(Budget(epsilon, solve="steps", account="accounted"), cls=cls, **given)
    second_moment, gradients = release.ledger.entries()
    assert gradients.count == release.solved["steps"] < 120
    assert len(trace.steps) == second_moment.count + gradients.count


def test_features_are_cached_rows_of_norm_one() -> None:
    ctx, (images, _) = context(), toy_private()
    network = nets.build("wavelet-linear", SHAPE, CLASSES)
    first, again = (kept_features(network, "wavelet-linear", images, ctx) for _ in range(2))
    kept_features(network, "wavelet-linear", images.flip(0), ctx)
    assert isinstance(ctx.artifacts, MemoryArtifacts) and ctx.artifacts.made == ["fixed-features"] * 2
    assert torch.equal(first, again) and first.dtype == torch.float16
    assert float(unit_rows(first, ctx.device).double().norm(dim=1).max()) <= 1 + 1e-6


def test_features_are_float32_under_autocast() -> None:
    ctx, (images, _) = context(), toy_private()
    network = nets.build("wavelet-linear", SHAPE, CLASSES)
    plain = features_of(network, images, ctx)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(network.features(images.float() / 255).half(), plain), "else this cannot fail"
        assert torch.equal(features_of(network, images, ctx), plain)


@pytest.mark.parametrize(
    "given",
    [{}, {"whitened": "maps"}, {"whitening": "public"}, {"whitening": "public", "whitened": "maps"},
     {"whitening": "none"}, {"neighbours": "replace"}, {"average": 0.5}],
    ids=str,
)  # fmt: skip
def test_head_learns_toy_classes_and_can_be_rebuilt(given: dict[str, Any]) -> None:
    release = convert(Budget(8.0), steps=30, **given)
    assert accuracy(release, 200, 1) > 0.9
    nets.build(release.arch, SHAPE, CLASSES).load_state_dict(release.student.state_dict())


@pytest.mark.thorough
def test_colour_images_use_public_whitening() -> None:
    release = convert(Budget(8.0), toy(shape=(3, 16, 16)))
    assert release.arch == "wavelet-linear-mirrored" and len(release.ledger.entries()) == 1


def test_rate_follows_from_the_logit_noise() -> None:
    """n = 50,000 at epsilon 1: 0.75 n mu / 120, shared with the second moment; never above 400."""
    mu = MU[1.0] * math.sqrt(0.8)
    head = PrivateFeatures().head(50_000, 120, mu)
    assert head.rate * head.clip == pytest.approx(0.75 * 50_000 * mu / 120)
    assert PrivateFeatures().head(50_000, 120, math.inf).rate * head.clip == pytest.approx(400)
    assert PrivateFeatures(rate=12.0).head(10, 120, 1.0).rate * head.clip == pytest.approx(12)
    replaced = PrivateFeatures(neighbours="replace").head(50_000, 120, mu)
    assert replaced.rate == pytest.approx(head.rate / 2), "a step's noise is twice that, and on a logit the same"


@pytest.mark.thorough
def test_audit_refutes_only_halved_noise_or_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The game is a single step that uses the whole budget."""
    game = PrivateFeatures(steps=1, whitening="none").game(Budget(3.0), "mnist", CLASSES)
    assert game.claimed == game.accounted == pytest.approx(3.0, rel=0.01)
    assert audit(game, plays=40_000, seed=0).verdict == "not refuted"
    assert audit(replace(game, claimed=1.0), plays=40_000, seed=0).verdict == "refuted"
    gaussian = Noise.gaussian
    monkeypatch.setattr(Noise, "gaussian", lambda self, values, std: gaussian(self, values, std / 2))
    assert audit(game, plays=40_000, seed=0).verdict == "accountant refuted"


def test_game_uses_the_whitening_of_the_data_set() -> None:
    grey, colour = (PrivateFeatures().game(Budget(1.0), name, CLASSES) for name in ("mnist", "cifar10"))
    shown = [game.play(False, 2, torch.Generator().manual_seed(0)).shape[1] for game in (grey, colour)]
    assert shown[0] > shown[1], "the noisy second moment of private whitening is part of the game"
    assert grey.accounted > colour.accounted, "and it is accounted"
