"""dp-wrn: published settings, augmentation multiplicity against loops, bounded memory, averaged weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import FREE, NO_NOISE, flat, record_calls, renyi_epsilon
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_sgd_made import PLAIN, ROOM, records
from privately_trained import convert, toy
from torch import Tensor

from baselines.dp_sgd import DpSgd
from baselines.dp_wrn import STEPS, DpWrn, steps_for
from bench import nets
from bench.dp_training import dp_sgd
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.augmentation import AUGMENTATIONS
from bench.dp_training.clipped_sums import ClippedSums
from bench.dp_training.coding import Uncoded
from bench.dp_training.dp_sgd import NoisyGradients, train
from bench.dp_training.per_sample_gradients import GRADIENTS, FuncGradients
from bench.nets import Classifier
from bench.privacy import Budget, Unit
from bench.privacy.noise import Noise
from bench.testing import context, recording_context

SHAPE, CLASSES, K = (1, 16, 16), 4, 3
CROP = AUGMENTATIONS["crop-and-flip"]


def network(name: str = "wrn-10-1") -> Classifier:
    torch.manual_seed(0)
    return nets.build(name, SHAPE, CLASSES).double()


def gradient(model: Classifier, image: Tensor, label: Tensor) -> dict[str, Tensor]:
    """The gradient of one view, by a separate backward pass."""
    found = torch.autograd.grad(F.cross_entropy(model(image[None]), label[None]), list(model.parameters()))
    return dict(zip((name for name, _ in model.named_parameters()), found, strict=True))


@pytest.mark.parametrize(("epsilon", "multiplier"), [(1.0, 10.0), (2.0, 6.0), (3.0, 5.0), (4.0, 4.0), (6.0, 3.0)])
def test_steps_for_have_the_published_epsilon(epsilon: float, multiplier: float) -> None:
    """By Renyi divergences, as the paper accounts; our accountant is tighter."""
    event = PoissonSampledDpEvent(4096 / 50_000, GaussianDpEvent(multiplier))
    assert renyi_epsilon(event, STEPS[epsilon]) == pytest.approx(epsilon, rel=0.02)
    assert DpSgdParameters.of(4096, 50_000, STEPS[epsilon], multiplier).epsilon(1e-5) < epsilon


def test_steps_follow_the_budget_or_the_option() -> None:
    method = DpWrn()
    assert [steps_for(e) for e in (0.2, 1.0, 3.5, 8.0, math.inf, None)] == [875, 875, 1593, 2468, 2468, 875]
    assert method._calibrate(method.settings("cifar10"), 50_000, Budget(None, solve="none")).steps == 875
    given = replace(method, steps=7)
    assert given._calibrate(given.settings("cifar10"), 50_000, Budget(8.0)).steps == 7


@pytest.mark.thorough
def test_noise_is_solved_for_the_budget() -> None:
    method = DpWrn()
    found = method._calibrate(method.settings("cifar10"), 50_000, Budget(2.0))
    assert found.steps == 1125 and 1.98 < found.epsilon(1e-5) <= 2.0 and found.multiplier < 6.0


@pytest.mark.parametrize("way", GRADIENTS)
def test_gradients_equal_a_loop_over_records_and_views(way: str) -> None:
    model, (images, labels) = network(), records(4)
    seen = images.double().repeat_interleave(K, 0) / 255
    seen = CROP.apply(seen, CROP.draw(4 * K, Noise(seed=0)))
    gradients = GRADIENTS[way](model, K)
    found = gradients(seen, labels)
    gradients.close()
    for i, label in enumerate(labels):
        each = [gradient(model, view, label) for view in seen[i * K : (i + 1) * K]]
        for name, rows in found.items():
            mean = torch.stack([one[name] for one in each]).mean(0)
            torch.testing.assert_close(rows[i], mean, rtol=1e-8, atol=1e-10)


def sums(model: Classifier, clip: float, views: int, chunk: int = 256) -> ClippedSums:
    coding = Uncoded(dict(model.named_parameters()), clip, "flat")
    return ClippedSums(GRADIENTS["func"](model, views), coding, views, chunk, CROP)


def added(total: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in total.values()])


@pytest.mark.parametrize("chunk", [2, 5])
def test_views_are_averaged_before_the_record_is_clipped(chunk: int) -> None:
    model, (images, labels) = network().float(), records(5)
    drawn = CROP.draw(5 * K, Noise(seed=1))
    seen = CROP.apply(images.float().repeat_interleave(K, 0) / 255, drawn)
    means = []
    for i, label in enumerate(labels):
        each = [gradient(model, view, label) for view in seen[i * K : (i + 1) * K]]
        means.append(torch.stack([added(one) for one in each]).double().mean(0))
    clip = sorted(float(mean.norm()) for mean in means)[2] / ROOM
    expected = sum(mean * min(1.0, ROOM * clip / float(mean.norm())) for mean in means)
    found = sums(model, clip, K, chunk)((images, labels), torch.arange(5), drawn, 5)
    torch.testing.assert_close(added(found), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("views", [2, 8])
def test_record_moves_the_sum_by_at_most_the_clipping_norm(views: int) -> None:
    model, (images, labels) = network().float(), records(6)
    drawn, step = CROP.draw(6 * views, Noise(seed=1)), sums(model, 1e-3, views)
    whole, without = (added(step((images, labels), kept, drawn, 6)) for kept in (torch.arange(6), torch.arange(1, 6)))
    assert 0.9e-3 < float((whole - without).norm()) <= 1e-3, "it is clipped"


def test_one_view_is_the_step_of_dp_sgd() -> None:
    """With K = 1 the augmentation makes no difference, and draws nothing."""
    settings = replace(PLAIN, multiplier=1.0, clip=0.5, gradients="func")

    def trained(**changes: Any) -> Tensor:
        model, ctx = network().float(), recording_context()
        given = replace(settings, **changes)
        train(model, "wrn-10-1", records(16), given, given.parameters(16), ctx, "test")
        return flat(model)

    assert torch.equal(trained(augmentation="crop-and-flip"), trained(augmentation="affine"))
    assert not torch.equal(trained(views=2, augmentation="crop-and-flip"), trained())


@pytest.mark.parametrize("views", [1, 4])
def test_views_change_neither_sample_nor_ledger(views: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, dp_sgd, "poisson_sample")
    for count in (views, 2):
        (entry,) = convert(DpWrn, FREE, batch="20", steps="4", views=str(count)).ledger.entries(Unit.EXAMPLE)
        assert entry.event == PoissonSampledDpEvent(20 / 64, GaussianDpEvent(DpWrn().multiplier)) and entry.count == 4
    samples = [tuple(call.result.tolist()) for call in calls]
    assert samples[:4] == samples[4:] and len(set(samples)) == 4


def test_memory_is_bounded_by_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records a batch has, gradients of at most `chunk` records exist at once."""
    model, settings = network().float(), replace(PLAIN, batch=40, chunk=3, views=K, gradients="func")
    noisy = NoisyGradients(model, "wrn-10-1", records(40), settings, context(), "test")
    calls = record_calls(monkeypatch, FuncGradients, "__call__")
    noisy(0, 0.0, 1.0)
    sizes = [(len(call.arguments[1]), len(call.arguments[2])) for call in calls]
    assert sum(labels for _, labels in sizes) == 40
    assert max(labels for _, labels in sizes) <= 3 and all(images == K * labels for images, labels in sizes)
    assert DpWrn().gradients_at_once("cifar10") == 16 * 16


@pytest.mark.parametrize("views", [1, 3])
def test_chunks_change_only_rounding(views: int) -> None:
    model, (images, labels) = network().float(), records(11)
    drawn = CROP.draw(11 * views, Noise(seed=1)) if views > 1 else None
    one, other = (
        added(sums(model, 0.1, views, chunk)((images, labels), torch.arange(11), drawn, 11)) for chunk in (11, 2)
    )
    assert (one - other).norm() < 2.0**-9 * 0.1


def test_removed_record_moves_others_within_the_margin() -> None:
    """Group normalisation scales up small differences: they stay within the margin for rounding errors."""
    model, (images, labels) = network().float(), records(120)
    drawn = CROP.draw(120 * 2, Noise(seed=1))
    step = sums(model, 0.1, 2, 16)
    every = torch.arange(120)
    whole, rest, single = (added(step((images, labels), kept, drawn, 120)) for kept in (every, every[1:], every[:1]))
    assert float((whole - rest - single).norm()) <= 2.0**-9 * 0.1


def test_release_is_the_average_of_the_weights() -> None:
    """By hand: rate 2 for three steps without noise, decay (1 + t) / (10 + t)."""
    options: dict[str, Any] = {"steps": "3", "batch": "64", "views": "1"}
    model = convert(DpWrn, NO_NOISE, toy(64), **options).student
    path = [convert(DpWrn, NO_NOISE, toy(64), **{**options, "steps": str(t), "average": "0"}) for t in (1, 2, 3)]
    torch.manual_seed(0)
    average = flat(nets.build("wrn-10-1", SHAPE, CLASSES))
    for t, step in enumerate(path):
        decay = (1 + t) / (10 + t)
        average = decay * average + (1 - decay) * flat(step.student)
    torch.testing.assert_close(flat(model), average, rtol=1e-4, atol=1e-6)


def test_dp_sgd_trains_the_network_too() -> None:
    assert convert(DpSgd, FREE, network="wrn-10-1", gradients="func").arch == "wrn-10-1"
