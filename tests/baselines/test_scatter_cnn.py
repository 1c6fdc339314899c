"""ScatterNet CNN: DP-SGD on stored features equals DP-SGD on the images, and the release takes raw images."""

from __future__ import annotations

from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import FREE, accuracy, epsilon_of, forbidden_teacher, refused
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from baselines.scatter_cnn import NAME, ScatterCnn, scatter_cnn
from bench import nets
from bench.api import Release
from bench.data import to_float
from bench.dp_training.clipping import add_clipped, clipping_groups
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, toy_private


def convert(budget: Budget, **given: Any) -> Release:
    return baseline_runs.convert(ScatterCnn, budget, forbidden_teacher(200), variant=None, **given)


@pytest.mark.parametrize(
    ("shape", "weights"),
    [
        ((1, 28, 28), (81 * 9 + 1) * 16 + (16 * 9 + 1) * 32 + (32 * 16 + 1) * 32 + 33 * 10),
        ((3, 32, 32), (243 * 9 + 1) * 64 + (64 * 9 + 1) * 64 + (64 * 16 + 1) * 10),
    ],
)
def test_network_is_the_papers(shape: tuple[int, int, int], weights: int) -> None:
    network, trained = scatter_cnn(shape, 10)
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in trained.parameters()) == weights
    assert network(torch.rand(2, *shape)).shape == (2, 10)
    own, other = (list(each.parameters()) for each in (network, trained))
    assert all(a is b for a, b in zip(own, other, strict=True)), "the same modules"


def test_feature_gradients_equal_image_gradients() -> None:
    torch.manual_seed(0)
    network, trained = scatter_cnn(SHAPE, CLASSES)
    images, labels = toy_private(0, 12)
    with torch.no_grad():
        maps = nets.build("wavelet-linear", SHAPE, CLASSES).features(to_float(images))
    gradients = GRADIENTS["opacus"](trained, 1)
    found = gradients(maps.view(12, 81, SHAPE[1] // 4, SHAPE[2] // 4), labels)
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in trained.named_parameters()}
    add_clipped(total, found, clipping_groups(list(total), 1e6), 12)
    gradients.close()
    torch.nn.functional.cross_entropy(network(to_float(images)), labels, reduction="sum").backward()
    for got, parameter in zip(total.values(), network.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(got.float(), parameter.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
def test_ledger_has_the_sampled_gaussians_of_its_steps() -> None:
    release = convert(Budget(2.0), batch="20", steps="7")
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert isinstance(entry.event, PoissonSampledDpEvent) and isinstance(entry.event.event, GaussianDpEvent)
    assert entry.event.sampling_probability == pytest.approx(0.1) and entry.count == 7
    assert 1.98 < epsilon_of(release.ledger) <= 2.0 and release.arch == NAME


@pytest.mark.thorough
def test_noiseless_training_learns_toy_classes() -> None:
    release = convert(FREE, multiplier=0, batch=100, steps=60, rate=1, clip=1)
    assert accuracy(release, 200, 1) > 0.9


def test_unsupported_image_size_is_refused() -> None:
    with refused(r"wavelet-cnn.* 8 to 64 .*6x6"):
        nets.build(NAME, (1, 6, 6), 2)
