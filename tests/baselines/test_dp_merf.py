"""DP-MERF: the embedding and its sensitivity, the added noise, claims, and the fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs as runs
import pytest
import torch
from baseline_runs import FREE, class_share, epsilon_of, gaussian_delta, record_calls, refused, rng, synthesise
from scipy import stats
from torch import Tensor, nn

from baselines.dp_merf import LEAST_LENGTH, DpMerf
from bench.dp_training.mean_embedding import Features, NoisyMeanEmbedding, RandomFeatures, joint_sum, mean_embedding
from bench.nets.bilinear_generator import BilinearGenerator
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, context, toy_private


def smoke(**given: Any) -> DpMerf:
    return runs.smoke(DpMerf, **given)


def features(count: int, pixels: int, length: float, seed: int = 0) -> RandomFeatures:
    return RandomFeatures.draw(count, pixels, length, rng(seed))


def target_of(method: DpMerf, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """mu~, where the generator is fitted to it."""
    calls = record_calls(monkeypatch, DpMerf, "fit")
    synthesise(method)
    target: Tensor = calls[0].arguments[3]
    return target


def test_features_by_hand() -> None:
    """One frequency w = (pi, 0), D = 2: phi = sqrt(2/2) (cos w.x, sin w.x)."""
    phi = RandomFeatures(torch.tensor([[math.pi, 0.0]]))
    images = torch.tensor([[[[0.0, 0.7]]], [[[0.5, 0.1]]], [[[1.0, 0.0]]]])
    assert torch.allclose(phi(images), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), atol=1e-6)


@pytest.mark.parametrize("count", [2, 64, 5000])
def test_features_have_norm_one(count: int) -> None:
    rows = features(count, 256, 40.0)(torch.rand(7, *SHAPE))
    assert rows.shape == (7, count)
    assert torch.allclose(rows.norm(dim=1), torch.ones(7), atol=1e-5)


@pytest.mark.parametrize(("length", "fits"), [(40.0, True), (20.0, False), (80.0, False)])
def test_feature_products_approximate_the_kernel(length: float, fits: bool) -> None:
    """exp(-||x - x'||^2 / (2 l)) at l = 40, within five deviations of a mean of D/2 cosines."""
    images = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(1))
    rows = features(40_000, 256, length)(images)
    kernel = (-torch.cdist(images.flatten(1), images.flatten(1)).square() / (2 * 40.0)).exp()
    error = (rows @ rows.T - kernel).abs().max()
    assert bool(error < 5 / math.sqrt(2 * 20_000)) == fits


def test_mean_embedding_by_hand() -> None:
    images, labels = toy_private(n=2500)
    phi = features(32, 256, 40.0)
    rows = phi(images.float() / 255)
    by_hand = torch.zeros(CLASSES, 32, dtype=torch.float64)
    for row, label in zip(rows, labels.tolist(), strict=True):
        by_hand[label] += row / 2500
    assert torch.allclose(mean_embedding(phi, images, labels, CLASSES), by_hand, atol=1e-6)


def sums(phi: RandomFeatures, images: Tensor, labels: Tensor) -> Tensor:
    """n mu."""
    return len(images) * mean_embedding(phi, images, labels, CLASSES)


def test_sum_has_sensitivity_one_or_two() -> None:
    images, labels = toy_private(n=40)
    phi = features(64, 256, 40.0)
    whole = sums(phi, images, labels)
    for index in range(5):
        others = torch.arange(40) != index
        assert (whole - sums(phi, images[others], labels[others])).norm().item() == pytest.approx(1, abs=1e-4)
        changed, relabelled = images.clone(), labels.clone()
        changed[index], relabelled[index] = 255 - images[index], (labels[index] + index) % CLASSES
        assert 0.1 < (whole - sums(phi, changed, relabelled)).norm() <= 2


def test_removed_record_moves_others_only_by_rounding() -> None:
    """2,001 colour images of 64 pixels: where the first is left out, all others are cut otherwise into parts of 1,000.

    2.1e-6 at the usual length and 2.1e-5 at the least one.
    """
    images = torch.randint(0, 256, (2001, 3, 64, 64), dtype=torch.uint8, generator=rng())
    labels, pixels = torch.zeros(2001, dtype=torch.long), 3 * 64 * 64

    def moved(length: float) -> float:
        phi = features(200, pixels, length)
        whole, rest = (len(labels[at:]) * mean_embedding(phi, images[at:], labels[at:], 1) for at in (0, 1))
        (first,) = phi(images[:1].flatten(1).float() / 255)
        return float((whole - rest - first.reshape(whole.shape)).norm())

    assert 1e-7 < moved(pixels / 6) < 4e-6 < moved(LEAST_LENGTH * pixels) < 4e-5
    narrow = replace(smoke(), length=0.99 * LEAST_LENGTH * math.prod(SHAPE))
    with refused(r"--method\.length"):
        synthesise(narrow)
    with refused(r"--method\.length"):
        narrow.sampler(SHAPE, CLASSES, "digits")


def test_mean_embedding_uses_float32_under_autocast() -> None:
    """Rounded factors would move the others by more than rounding does, as kernels may differ with a part's size."""
    images, labels = toy_private(n=40)
    phi = features(64, 256, 40.0)
    rows, plain = phi(images.float() / 255), mean_embedding(phi, images, labels, CLASSES)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(phi(images.float() / 255), rows), "else this cannot fail"
        assert torch.equal(mean_embedding(phi, images, labels, CLASSES), plain)
    torch.set_float32_matmul_precision("high")
    try:
        with refused("highest"):
            mean_embedding(phi, images, labels, CLASSES)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_replaced_record_can_move_the_sum_by_two() -> None:
    """At w x = 0 and pi the features are opposite: a replaced record of the same class moves the sum by 2."""
    phi = RandomFeatures(torch.full((1, 1), math.pi))
    black, white = torch.zeros(1, 1, 1, 1, dtype=torch.uint8), torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)
    label = torch.zeros(1, dtype=torch.int64)
    assert (sums(phi, black, label) - sums(phi, white, label)).norm().item() == pytest.approx(2, abs=1e-5)


@pytest.mark.parametrize(("neighbours", "reach"), [("add-or-remove", 1.0), ("replace", 2.0)])
@pytest.mark.parametrize(("wrong", "fits"), [(1.0, True), (0.9, False), (1.1, False), (2.0, False)])
def test_noise_deviation_is_that_of_the_ledger(
    neighbours: str, reach: float, wrong: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta sigma / n on each of D x classes coordinates, by a chi-squared test."""
    method = smoke(neighbours=neighbours, features="2000", sigma="3.0", epochs="1", steps="1")
    noisy, exact = (target_of(each, monkeypatch) for each in (method, replace(method, sigma=0.0)))
    difference = (noisy - exact).double().flatten()
    statistic = float((difference / (wrong * reach * 3.0 / 80)).square().sum())
    tail = stats.chi2.sf(statistic, len(difference))
    assert (0.005 < tail < 0.995) == fits
    (entry,) = method.calibrate(FREE).ledger().entries()
    assert entry.event.noise_multiplier == reach * 3.0 and entry.count == 1 and entry.unit == Unit.EXAMPLE


@pytest.mark.parametrize(("sigma", "golden"), [(5.0, 0.726), (25.0, 0.1254), (3.731, 1.0), (0.5, 10.0)])
def test_claim_is_the_exact_gaussian(sigma: float, golden: float) -> None:
    claim = NoisyMeanEmbedding(sigma, "add-or-remove").claim(1e-5, DpMerf.source)
    assert claim.epsilon == pytest.approx(golden, rel=3e-3)
    assert gaussian_delta(claim.epsilon, 1 / sigma) == pytest.approx(1e-5, rel=1e-3)
    assert claim.disputed == "" and "DP-MERF" in claim.source


def test_added_record_costs_less_than_replaced() -> None:
    method = smoke(neighbours="replace")
    made = NoisyMeanEmbedding(5.0, "replace")
    claim, found = made.claim(1e-5, DpMerf.source).epsilon, epsilon_of(made.ledger())
    assert claim == pytest.approx(0.726, abs=1e-3)
    assert gaussian_delta(found, 1 / 10.0) == pytest.approx(1e-5, rel=1e-3)
    by_claim, by_ledger = method.calibrate(Budget(1.0)), method.calibrate(Budget(1.0, account="accounted"))
    assert by_claim.sigma == pytest.approx(2 * by_ledger.sigma, rel=3e-3)
    assert "replaced" in made.claim(1e-5, DpMerf.source).source


def test_bandwidth_depends_on_option_and_data_set() -> None:
    paper, public = DpMerf(), DpMerf(bandwidth="public")
    assert paper.length_for("mnist", (1, 28, 28)) == 105 and paper.length_for("fmnist", (1, 28, 28)) == 127
    assert paper.length_for("digits", (1, 16, 16)) == public.length_for("digits", (1, 16, 16)) == 256 / 6
    assert public.length_for("mnist", (1, 28, 28)) == 784 / 6
    assert DpMerf(length=9.0).length_for("mnist", (1, 28, 28)) == 9.0


def test_public_bandwidth_is_the_uniform_distance() -> None:
    a, b = torch.rand(2, 2000, 256, generator=torch.Generator().manual_seed(0))
    distance = (a - b).square().sum(1)
    error = float(distance.std()) / math.sqrt(2000)
    assert abs(float(distance.mean()) - DpMerf().length_for("x", SHAPE)) < 4 * error


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (3, 32, 32)])
def test_generator_makes_images_of_any_shape(shape: tuple[int, int, int]) -> None:
    with torch.no_grad():
        made = BilinearGenerator(shape, 10)(torch.randn(3, 5), torch.tensor([0, 4, 9]))
    assert made.shape == (3, *shape) and 0 <= float(made.min()) <= float(made.max()) <= 1


def test_generator_size_by_hand() -> None:
    """(15 + 1) 200 + 2 200 + 201 784 + 2 784 + (25 16 + 1) 8 + 25 8 + 1."""
    count = sum(p.numel() for p in BilinearGenerator((1, 28, 28), 10).parameters())
    assert count == 3200 + 400 + 157_584 + 1568 + 3208 + 201
    with refused("30x30"):
        BilinearGenerator((1, 30, 30), 10)


@pytest.mark.thorough
def test_generator_learns_classes_only_without_noise() -> None:
    method = smoke(features="500", epochs="2", steps="120", batch="64")
    assert class_share(synthesise(method, Budget(10.0), toy_private(n=400)), 100) > 0.95
    assert class_share(synthesise(replace(method, sigma=1e4), FREE, toy_private(n=400)), 100) < 0.7


def test_joint_sum_by_hand() -> None:
    """The mean of phi (x) onehot over a batch, by hand for B = 2."""
    phi = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert joint_sum(phi, torch.tensor([1, 1]), 3).tolist() == [[0.0, 0.0], [4.0, 6.0], [0.0, 0.0]]


def test_generator_is_fitted_at_a_falling_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator of one shade, one class and features that are the shade: it becomes that of the target."""

    class Shade(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shade = nn.Parameter(torch.zeros(1))

        def condition(self, z: Tensor, labels: Tensor) -> Tensor:
            return z

        def forward(self, z: Tensor) -> Tensor:
            return self.shade.expand(len(z), 1, 1, 1)

    class Shades(Features):
        def sums(self, images: Tensor, labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return joint_sum(images.flatten(1).to(dtype), labels, classes)

    rates = runs.rates_of(monkeypatch, torch.optim.Adam)
    method, generator = smoke(batch="8", epochs="3", steps="80", rate="0.1", decay="0.5"), Shade()
    method.fit(generator, Shades(), torch.tensor([[0.7]]), context())  # type: ignore[arg-type]
    assert float(generator.shade.detach()) == pytest.approx(0.7, abs=0.01) and not generator.training
    assert rates == pytest.approx([0.1] * 80 + [0.05] * 80 + [0.025] * 80)
