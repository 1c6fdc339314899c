"""DP-NTK: the closed form of its features, its sensitivity, the added noise, and calibration."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs as runs
import pytest
import torch
from baseline_runs import FREE, class_share, epsilon_of, gaussian_delta, is_normal, record_calls, rng, synthesise
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from baselines.dp_ntk import COLOUR, GREY, DpNtk, TangentFeatures
from bench.dp_training.mean_embedding import mean_embedding
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, toy_private

RECORDS = 55_000
DELTA = 1 / (RECORDS * math.log(RECORDS))
"""Of DPImageBench on MNIST."""


def smoke(**given: Any) -> DpNtk:
    return runs.smoke(DpNtk, **given)


def features(pixels: int = 256, hidden: tuple[int, ...] = (30,)) -> TangentFeatures:
    return TangentFeatures.draw(pixels, hidden, rng())


def network(phi: TangentFeatures) -> nn.Sequential:
    """The untrained network as torch has it: ReLU after the first layer, normalisation before the last."""
    dense = [nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype) for weight in phi.weights]
    with torch.no_grad():
        for layer, weight, bias in zip(dense, phi.weights, phi.biases, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    normalise = nn.LayerNorm(phi.weights[-1].shape[1], elementwise_affine=False)
    return nn.Sequential(dense[0], nn.ReLU(), *dense[1:-1], normalise, dense[-1])


def by_autograd(phi: TangentFeatures, images: Tensor) -> Tensor:
    """phi of every image, (n, D), from torch's gradients of the sum of outputs."""
    net = network(phi)

    def output(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(net, parameters, (image,)).sum()

    parameters = {name: value.detach() for name, value in net.named_parameters()}
    found = vmap(grad(output), (None, 0))(parameters, images.flatten(1).double())
    rows = torch.cat([found[name].flatten(1) for name in parameters], 1)
    return rows / rows.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("hidden", [(30,), (7, 12), (800,), (32, 256)])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_closed_form_equals_autograd(hidden: tuple[int, ...], dtype: torch.dtype, error: float) -> None:
    """Also for a class with no image."""
    phi, images, labels = (
        features(256, hidden),
        torch.rand(6, *SHAPE, generator=rng(1)),
        torch.tensor([2, 0, 2, 2, 0, 4]),
    )
    rows, made = by_autograd(phi, images), phi.sums(images, labels, 5, dtype)
    by_hand = torch.stack([rows[labels == c].sum(0) for c in range(5)])
    assert made.dtype == dtype and (made - by_hand).norm(dim=1).max() < error
    assert (made[1] == 0).all() and (made[3] == 0).all()


@pytest.mark.parametrize(
    ("pixels", "hidden", "size"), [(784, GREY, 636_010), (3072, COLOUR, 109_354), (4, (3,), 15 + 40)]
)
def test_features_have_the_published_size_and_norm_one(pixels: int, hidden: tuple[int, ...], size: int) -> None:
    images = torch.rand(3, 1, 1, pixels, generator=rng(1))
    rows = features(pixels, hidden).sums(images, torch.arange(3), 3)
    assert rows.shape == (3, size) and torch.allclose(rows.norm(dim=1), torch.ones(3), atol=1e-5)


def test_network_depends_on_the_number_of_channels() -> None:
    sizes = {c: DpNtk().draw_features((c, 8, 8), "toy", rng()).weights[0].shape for c in (1, 3)}
    assert sizes == {1: (800, 64), 3: (32, 192)}
    assert len(DpNtk(width=9).draw_features((3, 8, 8), "toy", rng()).weights) == 2


@pytest.mark.parametrize("hidden", [(30,), (7, 12)])
def test_distance_and_its_gradient_are_those_of_the_sums(hidden: tuple[int, ...]) -> None:
    phi, labels = features(256, hidden), torch.tensor([2, 0, 2, 2, 0, 4])
    images = torch.rand(6, *SHAPE, generator=rng(1), dtype=torch.float64).requires_grad_()
    target = torch.randn(5, len(by_autograd(phi, images[:1])[0]), generator=rng(2), dtype=torch.float64) / 100
    plain = (target - phi.sums(images, labels, 5, torch.float64) / 6).square().sum()
    short = phi.distance(target, images, labels)
    assert short.item() == pytest.approx(plain.item(), rel=1e-10)
    (expected,), (found,) = torch.autograd.grad(plain, images), torch.autograd.grad(short, images)
    assert expected.abs().max() > 1e-4 and torch.allclose(found, expected, atol=1e-12)


def test_gradient_through_the_closed_form_equals_double_backward() -> None:
    """d/dx of a product with phi, by torch through its own gradients."""
    phi = features()
    image = torch.rand(1, *SHAPE, generator=rng(1), dtype=torch.float64).requires_grad_()
    against = torch.randn(1, 256 * 30 + 30 + 310, generator=rng(2), dtype=torch.float64)
    net = network(phi)
    found = torch.autograd.grad(net(image.flatten(1)).sum(), list(net.parameters()), create_graph=True)
    row = torch.cat([part.flatten() for part in found])
    (expected,) = torch.autograd.grad((row / row.norm() * against[0]).sum(), image)
    made = phi.sums(image, torch.zeros(1, dtype=torch.long), 1, torch.float64)
    assert torch.allclose(torch.autograd.grad((made * against).sum(), image)[0], expected, atol=1e-12)


def test_sum_has_sensitivity_one_or_two() -> None:
    """1 if a record is removed; sqrt(2) if it changes its class, less than 2 if only its pixels."""
    images, labels = toy_private(n=40)
    phi = features()
    whole = 40 * mean_embedding(phi, images, labels, CLASSES)
    for index in range(5):
        others = torch.arange(40) != index
        rest = 39 * mean_embedding(phi, images[others], labels[others], CLASSES)
        assert (whole - rest).norm().item() == pytest.approx(1, abs=1e-9)
        changed, relabelled = images.clone(), labels.clone()
        changed[index], relabelled[index] = 255 - images[index], (labels[index] + 1) % CLASSES
        moved = [40 * mean_embedding(phi, changed, given, CLASSES) - whole for given in (labels, relabelled)]
        assert 0.1 < moved[0].norm() <= 2 and moved[1].norm().item() == pytest.approx(math.sqrt(2), abs=1e-9)


def test_all_records_are_in_the_mean() -> None:
    """More than two chunks; a published copy of the method stops after the first batch."""
    images, labels = toy_private(n=2100)
    phi, pairs = features(), zip(images.split(1050), labels.split(1050), strict=True)
    halves = [mean_embedding(phi, part, of, CLASSES) for part, of in pairs]
    assert torch.allclose(mean_embedding(phi, images, labels, CLASSES), (halves[0] + halves[1]) / 2, atol=1e-12)
    assert (halves[0] - halves[1]).norm() > 1e-4


@pytest.mark.parametrize(("neighbours", "reach"), [("add-or-remove", 1.0), ("replace", 2.0)])
def test_noise_deviation_is_that_of_the_ledger(neighbours: str, reach: float, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, DpNtk, "fit")
    method = smoke(neighbours=neighbours, sigma="3.0", steps="1")
    for each in (method, replace(method, sigma=0.0)):
        synthesise(each)
    noisy, exact = (call.arguments[3] for call in calls)
    assert is_normal(noisy - exact, reach * 3.0 / 80)
    (entry,) = method.calibrate(FREE).ledger().entries()
    assert entry.event.noise_multiplier == reach * 3.0 and entry.count == 1 and entry.unit == Unit.EXAMPLE


@pytest.mark.parametrize(("epsilon", "golden"), [(1.0, 4.119), (10.0, 0.532)])
def test_sigma_is_the_exact_gaussian(epsilon: float, golden: float) -> None:
    found = DpNtk().calibrate(Budget(epsilon, delta=DELTA, account="accounted"))
    assert found.sigma == pytest.approx(golden, rel=2e-3)
    assert gaussian_delta(epsilon, 1 / found.sigma) == pytest.approx(DELTA, rel=0.02)
    assert found.claim(DELTA, DpNtk.source).epsilon == epsilon_of(found.ledger(), delta=DELTA)
    replaced = DpNtk(neighbours="replace").calibrate(Budget(epsilon, delta=DELTA, account="accounted"))
    assert replaced.multiplier == pytest.approx(found.sigma, rel=2e-3), "one account, two neighbour relations"


@pytest.mark.thorough
def test_generator_learns_classes_only_without_noise() -> None:
    method = smoke(width="100", steps="200", batch="64")
    assert class_share(synthesise(method, Budget(10.0), toy_private(n=400)), 100) > 0.95
    assert class_share(synthesise(replace(method, sigma=1e4), FREE, toy_private(n=400)), 100) < 0.7
