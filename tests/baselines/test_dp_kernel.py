"""DP-Kernel: its features, sensitivity and noise, and the fault of the published gradient."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs as runs
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import FREE, class_share, epsilon_of, is_normal, record_calls, refused, rng, synthesise
from torch import Tensor

from baselines.dp_kernel import SCALES, DpKernel, MixedFeatures
from bench.dp_training.mean_embedding import mean_embedding, noisy_embedding
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, toy_private


def smoke(**given: Any) -> DpKernel:
    return runs.smoke(DpKernel, **given)


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """The paper's sum of five Gaussian kernels, of (n, d) and (m, d) pixels in [-1, 1]."""
    squared = (a[:, None] - b).square().sum(2)
    return torch.stack([(-squared / (2 * scale**2)).exp() for scale in SCALES]).sum(0)


@pytest.mark.parametrize("count", [2, 64, 500])
def test_features_have_norm_one(count: int) -> None:
    rows = MixedFeatures.draw(count, 256, rng()).sums(torch.rand(7, *SHAPE), torch.arange(7), 7)
    assert rows.shape == (7, 5 * count) and torch.allclose(rows.norm(dim=1), torch.ones(7), atol=1e-5)


@pytest.mark.parametrize(("pixel_range", "fits"), [(2.0, True), (1.0, False), (3.0, False)])
def test_feature_products_approximate_the_mean_of_five_kernels(pixel_range: float, fits: bool) -> None:
    """Images at distances about the scales; within five deviations of a mean of D/2 cosines."""
    images = 0.5 + torch.randn(12, 1, 2, 2, generator=rng(1)) * torch.logspace(-2, 0.5, 12)[:, None, None, None]
    rows = MixedFeatures.draw(20_000, 4, rng()).sums(images, torch.arange(12), 12, torch.float64)
    pixels = pixel_range * images.flatten(1).double()
    error = (rows @ rows.T - kernel(pixels, pixels) / 5).abs().max()
    assert bool(error < 5 / math.sqrt(2 * 10_000)) == fits


def test_sum_has_sensitivity_one_or_two() -> None:
    images, labels = toy_private(n=40)
    phi = MixedFeatures.draw(64, 256, rng())
    whole = 40 * mean_embedding(phi, images, labels, CLASSES)
    for index in range(5):
        others = torch.arange(40) != index
        rest = 39 * mean_embedding(phi, images[others], labels[others], CLASSES)
        assert (whole - rest).norm().item() == pytest.approx(1, abs=1e-9)
        changed = images.clone()
        changed[index] = 255 - images[index]
        assert 0.1 < (40 * mean_embedding(phi, changed, labels, CLASSES) - whole).norm() <= 2


def test_removed_record_moves_others_only_by_rounding_of_float64() -> None:
    """1,001 large colour images: without the first, all others are in other parts; angles are up to thousands."""
    images = torch.randint(0, 256, (1001, 3, 64, 64), dtype=torch.uint8, generator=rng())
    phi, labels = MixedFeatures.draw(20, 3 * 64 * 64, rng()), torch.zeros(1001, dtype=torch.long)
    whole, rest, first = (
        len(labels[part]) * mean_embedding(phi, images[part], labels[part], 1)
        for part in (slice(0, None), slice(1, None), slice(0, 1))
    )
    assert (whole - rest - first).norm() < 1e-9


@pytest.mark.parametrize(("neighbours", "reach"), [("add-or-remove", 1.0), ("replace", 2.0)])
def test_noise_deviation_is_that_of_the_ledger(neighbours: str, reach: float, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, DpKernel, "fit")
    method = smoke(neighbours=neighbours, sigma="3.0", steps="1", features="200")
    for each in (method, replace(method, sigma=0.0)):
        synthesise(each)
    noisy, exact = (call.arguments[3] for call in calls)
    assert noisy.shape == (CLASSES, 1000) and is_normal(noisy - exact, reach * 3.0 / 80)
    (entry,) = method.calibrate(FREE).ledger().entries()
    assert entry.event.noise_multiplier == reach * 3.0 and entry.count == 1
    made = method.calibrate(Budget(3.0, account="accounted"))
    assert epsilon_of(made.ledger()) == pytest.approx(3.0, rel=5e-3)


def published_gradient(private: Tensor, made: Tensor, sigma: float, seed: int) -> Tensor:
    """Gradient in generated images of one class, as the authors' code computes it, for one draw of its noise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        n, everything = len(private), torch.cat([private, made])
        values = kernel(everything, everything)
        covariance = math.sqrt(2 * len(SCALES)) / n * sigma * values.detach()
        noise = torch.distributions.MultivariateNormal(torch.zeros(len(everything)), covariance).sample()
    f = values[:n].mean(0) + noise
    loss = (f[:n].mean() - 2 * f[n:].mean() + values[n:, n:].mean()).square()
    return torch.autograd.grad(loss, made)[0].flatten()


def corrected_gradient(private: Tensor, made: Tensor, sigma: float, seed: int) -> Tensor:
    """The same by the released function of this version; the images are in [0, 1]."""
    phi = MixedFeatures.draw(200, private[0].numel(), rng())
    labels = torch.zeros(len(private), dtype=torch.long)
    target = noisy_embedding(phi, (private * 255).round().to(torch.uint8), labels, 1, sigma, rng(seed))
    return torch.autograd.grad(phi.distance(target, made, labels), made)[0].flatten()


def test_noise_reaches_the_generator_only_in_the_corrected_version() -> None:
    """At sigma = 50 the published gradients of 8 noise draws are parallel; those of a released function are not."""
    private, made = torch.rand(2, 20, 1, 4, 4, generator=rng(1))
    pixels = (2 * private - 1).flatten(1)
    published = [
        published_gradient(pixels, (2 * made - 1).flatten(1).requires_grad_(), 50.0, seed) for seed in range(8)
    ]
    corrected = [corrected_gradient(private, made.clone().requires_grad_(), 50.0, seed) for seed in range(8)]
    exact = published_gradient(pixels, (2 * made - 1).flatten(1).requires_grad_(), 1e-3, 0)
    assert all(abs(F.cosine_similarity(each, exact, 0)) > 0.9999 for each in published)
    pairs = [(each, other) for each in corrected for other in corrected if each is not other]
    assert all(abs(F.cosine_similarity(each, other, 0)) < 0.99 for each, other in pairs)
    assert (torch.stack(published).norm(dim=1).std() / published[0].norm()) > 0.1, "only its length is noisy"


def test_published_gradient_shows_a_record_at_any_noise() -> None:
    """With another record the direction is another one, which no draw of the noise hides."""
    private, made = 2 * torch.rand(2, 20, 16, generator=rng(1)) - 1
    changed = torch.cat([-private[:1], private[1:]])
    one, same, other = (
        published_gradient(records, made.clone().requires_grad_(), 1e4, seed)
        for seed, records in enumerate((private, private, changed))
    )
    assert abs(F.cosine_similarity(one, same, 0)) > 0.99999 > 0.999 > abs(F.cosine_similarity(one, other, 0))


def test_odd_number_of_features_is_refused() -> None:
    with refused("features", ValueError):
        DpKernel(features=3)


@pytest.mark.thorough
def test_generator_learns_classes_only_without_noise() -> None:
    method = smoke(features="300", steps="200", batch="64", rate="0.01")
    assert class_share(synthesise(method, Budget(10.0), toy_private(n=400)), 100) > 0.95
    assert class_share(synthesise(replace(method, sigma=1e4), FREE, toy_private(n=400)), 100) < 0.7
