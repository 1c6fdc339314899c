from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from inversion_made import LinearQuadrants
from inversion_made import target as target_of
from torch import nn

from attacks.dafl import Dafl, information, measure_statistics, most_confident
from bench import nets
from bench.api import AttackResult, Target
from bench.errors import BenchError
from bench.nets import recorded_features
from bench.nets.generators import UpsampleGenerator
from bench.testing import context

SHAPE = (1, 16, 16)
TINY: dict[str, Any] = {"steps": 3, "gen_batch": 16, "latent": 6, "width": 2, "pool": 40, "lr": 1e-2}
TINY |= {"draws": 2, "images_per_class": 3}
NO_AUX = torch.zeros(0, *SHAPE)


def attack(model: nn.Module | None = None, seed: int = 0, **changes: Any) -> tuple[AttackResult, Target]:
    target = target_of(model or LinearQuadrants(20.0), side=16)
    return Dafl(**{**TINY, **changes}).run(target, NO_AUX, context(seed)), target


def test_information_by_hand_in_both_bases() -> None:
    """Two images sure of one class each: pbar = (1/2, 1/2, 0)."""
    logits = torch.tensor([[0.0, -200.0, -200.0], [-200.0, 0.0, -200.0]])
    assert information(logits, "ln").item() == pytest.approx(-math.log(2))
    assert information(logits, "log10").item() == pytest.approx(-math.log10(2))
    mixed = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3]]).log()
    expected = sum(p * math.log10(p) for p in (0.5, 0.3, 0.2))
    assert information(mixed, "log10").item() == pytest.approx(expected)
    assert information(mixed, "ln").item() == pytest.approx(expected * math.log(10))


def test_information_gradient_is_finite_at_zero_probability() -> None:
    logits = torch.tensor([[0.0, -2000.0, 1.0], [0.5, -3000.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(information(logits, "log10"), logits)
    assert gradient.isfinite().all() and gradient[:, [0, 2]].abs().min() > 1e-4


def test_generator_loss_by_hand() -> None:
    p = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3]])
    features = torch.tensor([[1.0, -3.0], [0.0, 2.0]])
    one_hot = -(math.log(0.8) + math.log(0.5)) / 2
    information = sum(q * math.log(q) for q in (0.5, 0.3, 0.2))
    loss = Dafl(one_hot=2.0, activation=0.3, balance=0.7, log="ln")._loss(p.log(), features)
    assert loss.item() == pytest.approx(2 * one_hot - 0.3 * 1.5 + 0.7 * information)


def test_most_confident_by_hand() -> None:
    """Class 0 has images 1, 3; class 1 has 0, 2, 4; class 2 has none. Image 4 is nearly of class 0."""
    p = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.4, 0.1], [0.01, 0.9, 0.09], [0.6, 0.2, 0.2], [0.41, 0.59, 0.0]])
    rows = most_confident(p.log(), 3)
    assert rows.tolist() == [[3, 1, 4], [2, 0, 4], [3, 0, 1]] or rows.tolist() == [[3, 1, 4], [2, 0, 4], [3, 1, 0]]
    assert most_confident(p.log(), 1).tolist() == [[3], [2], [3]]


def test_most_confident_prefers_assigned_images() -> None:
    p = torch.tensor([[0.45, 0.55, 0.0], [0.4, 0.3, 0.3], [0.0, 1.0, 0.0]])
    assert most_confident(p.log(), 2).tolist()[0] == [1, 0]


def test_most_confident_ranks_probabilities_rounded_to_one() -> None:
    logits = torch.tensor([[30.0, 0.0], [50.0, 0.0], [40.0, 0.0]])
    assert logits.softmax(1)[:, 0].unique().tolist() == [1.0]
    assert most_confident(logits, 3)[0].tolist() == [1, 2, 0]


def test_recorded_features_are_the_last_layers_input() -> None:
    images = torch.rand(5, *SHAPE, requires_grad=True)
    model = LinearQuadrants()
    with recorded_features(model) as features:
        model(images)
    torch.testing.assert_close(features[0], model.pool(images).flatten(1))
    (gradient,) = torch.autograd.grad(features[0].sum(), images)
    assert gradient.abs().min() > 0
    model(images)
    assert len(features) == 1


@pytest.mark.parametrize("arch", ["datalens", "evaluator-cnn", "resnet18", "tv:squeezenet1_1"])
def test_recorded_features_are_those_of_our_networks(arch: str) -> None:
    torch.manual_seed(0)
    model = nets.build(arch, (1, 32, 32), 4).eval()
    images = torch.rand(2, 1, 32, 32)
    with torch.no_grad(), recorded_features(model) as features:
        model(images)
        torch.testing.assert_close(features[0], model.features(images))


def test_recorded_features_without_layers_is_refused() -> None:
    with pytest.raises(BenchError), recorded_features(nn.Flatten()):
        pass


@pytest.mark.parametrize("arch", ["datalens", "resnet18"])
def test_attack_leaves_hooks_and_buffers_unchanged(arch: str) -> None:
    torch.manual_seed(0)
    model = nets.build(arch, SHAPE, 4).eval().requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found, _ = attack(model, steps=2, draws=1)
    assert found.images.isfinite().all() and not model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_measure_statistics_averages_over_batches() -> None:
    torch.manual_seed(0)
    generator = UpsampleGenerator(SHAPE, 6, 2)
    latents = [torch.randn(8, 6) for _ in range(3)]
    maps = [generator.start[:2](z) for z in latents]
    measure_statistics(generator, latents)
    norm = generator.start[2]
    torch.testing.assert_close(norm.running_mean, torch.stack([m.mean((0, 2, 3)) for m in maps]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([m.var((0, 2, 3)) for m in maps]).mean(0))
    assert not generator.training and not any(p.requires_grad for p in generator.parameters())


@pytest.mark.parametrize("never", [0, 3])
def test_attack_returns_classes_never_predicted(never: int) -> None:
    found, target = attack(LinearQuadrants(20.0, never))
    assert not (target.labels(found.images) == never).any()
    assert found.targets.bincount().tolist() == [6] * 4


def test_attack_returns_most_confident_images_first() -> None:
    found, target = attack(steps=40, pool=300, draws=1, images_per_class=5)
    scores = target.scores(found.images).gather(1, found.targets[:, None]).view(4, 5).double()
    assert (scores.diff(dim=1) <= 1e-6).all()
    few, _ = attack(steps=40, pool=300, draws=1, images_per_class=2)
    torch.testing.assert_close(few.images.view(4, 2, *SHAPE), found.images.view(4, 5, *SHAPE)[:, :2])


@pytest.mark.thorough
def test_training_gives_confident_balanced_images() -> None:
    """An untrained generator's images are grey: no quadrant is brighter."""
    settings: dict[str, Any] = {"draws": 1, "pool": 200, "images_per_class": 20, "gen_batch": 32, "width": 4}
    before, target = attack(LinearQuadrants(), **settings, steps=1, lr=1e-9)
    after, _ = attack(LinearQuadrants(), **settings, steps=90)
    start, end = (target.scores(r.images).gather(1, r.targets[:, None]).mean() for r in (before, after))
    assert end > 0.9 > start + 0.1
    assert (target.labels(after.images) == after.targets).all()


@pytest.mark.thorough
def test_training_without_balance_loses_a_class() -> None:
    """The purpose of L_ie: confident responses can also be reached with only one class."""
    settings: dict[str, Any] = {"draws": 1, "pool": 200, "images_per_class": 40, "gen_batch": 32, "width": 4}
    even, target = attack(**settings, steps=90)
    lopsided, _ = attack(**settings, steps=90, balance=0.0)
    hits = [(target.labels(r.images) == r.targets).float().mean() for r in (even, lopsided)]
    assert hits[0] > hits[1]
