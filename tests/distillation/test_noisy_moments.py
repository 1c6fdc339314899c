"""The private release of class moments: sums by loops, sensitivity, noise in both directions, derived values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bench.distillation.class_moments.class_images import cosine_basis, stroke_basis
from bench.distillation.class_moments.noisy_moments import (
    SENSITIVITY,
    Gaussians,
    Moments,
    denoised_factors,
    gaussians,
    noisy_moments,
    to_image,
    to_stroke_image,
)

SHAPE, PIXELS, CLASSES = (1, 3, 4), 12, 3
BOTH = pytest.mark.parametrize(("weight", "pooled"), [(0.5, False), (0.7, True), (0.2, False)])


def basis(d: int, pixels: int = PIXELS, seed: int = 0) -> Tensor:
    """Return random orthonormal columns, with entries of both signs."""
    random = torch.randn(pixels, d, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(random)[0]


def records(n: int, seed: int = 0, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Return (n, c, h, w) uint8 images with another brightness per class and pixel, and labels that cycle."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    brightest = torch.randint(40, 256, (classes, *SHAPE), generator=rng)[labels]
    return (torch.rand(n, *SHAPE, generator=rng) * brightest).to(torch.uint8), labels


def release(images: Tensor, labels: Tensor, u: Tensor, multiplier: float = 0.0, seed: int = 0, **how: float) -> Moments:
    rng = torch.Generator().manual_seed(seed)
    return noisy_moments(images, labels, CLASSES, u, multiplier, rng, **how)  # type: ignore[arg-type]


def isometric(moments: Moments) -> Tensor:
    """Return the release in coordinates with equal noise in all directions: (a first, b second).

    Both halves of a symmetric matrix are included, so that off-diagonal entries count twice.
    """
    parts = (math.sqrt(moments.weight) * moments.first, math.sqrt(1 - moments.weight) * moments.second)
    return torch.cat([part.double().flatten() for part in parts])


def distance(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], u: Tensor, weight: float, pooled: bool) -> float:
    how = {"weight": weight, "pooled": pooled}
    return float((isometric(release(*one, u, **how)) - isometric(release(*other, u, **how))).norm())


def with_first(data: tuple[Tensor, Tensor], image: Tensor, label: int) -> tuple[Tensor, Tensor]:
    images, labels = data[0].clone(), data[1].clone()
    images[0], labels[0] = image, label
    return images, labels


def pixel(at: int) -> Tensor:
    image = torch.zeros(PIXELS, dtype=torch.uint8)
    image[at] = 200
    return image.view(SHAPE)


@BOTH
def test_sums_equal_a_loop_over_records(weight: float, pooled: bool) -> None:
    (images, labels), u = records(50), basis(5)
    images[7] = 0
    first, second = np.zeros((CLASSES, 5)), np.zeros((1 if pooled else CLASSES, 5, 5))
    for image, label in zip(images.double().flatten(1).numpy(), labels.tolist(), strict=True):
        length = math.sqrt(sum(value * value for value in image))
        row = u.double().numpy().T @ (image / length if length else image)
        first[label] += row
        second[0 if pooled else label] += np.outer(row, row)
    got = release(images, labels, u, weight=weight, pooled=pooled)
    np.testing.assert_allclose(got.first.numpy(), first, atol=1e-4)
    np.testing.assert_allclose(got.second.numpy(), second, atol=1e-4)
    assert got.noise == 0 and got.records == 50


def test_sums_count_records_of_all_chunks_once() -> None:
    images, labels = records(9000)
    u = basis(4)
    parts = [release(images[i : i + 1000], labels[i : i + 1000], u) for i in range(0, 9000, 1000)]
    whole = release(images, labels, u)
    assert torch.allclose(whole.first, torch.stack([p.first for p in parts]).sum(0), rtol=1e-4)
    assert torch.allclose(whole.second, torch.stack([p.second for p in parts]).sum(0), rtol=1e-4, atol=1e-2)


@BOTH
def test_added_record_changes_the_release_by_sensitivity(weight: float, pooled: bool) -> None:
    images, labels = records(20)
    more = torch.cat([images, pixel(3)[None]]), torch.cat([labels, torch.tensor([1])])
    assert distance((images, labels), more, torch.eye(PIXELS), weight, pooled) == pytest.approx(SENSITIVITY, abs=1e-5)
    assert distance((images, labels), more, basis(5), weight, pooled) <= SENSITIVITY + 1e-5


T = 1 / math.sqrt(2)
"""Inner product of an image of one bright pixel with one of two."""


@pytest.mark.parametrize(
    ("other", "label", "weight", "pooled", "squared"),
    [
        (pixel(0), 2, 0.5, False, 2),  # the same image in another class
        (pixel(0), 2, 0.7, True, 2 * 0.7),
        # Pixels are not negative: images without a common bright pixel, of inner product 0, are the worst replacement
        *((pixel(5), label, w, pooled, 2) for label in (0, 1) for w, pooled in ((0.5, False), (0.7, True))),
        # Same class, a^2 = w and inner product t: w (2 - 2 t) + (1 - w) (2 - 2 t^2)
        *((pixel(0) + pixel(1), 0, w, False, w * (2 - 2 * T) + (1 - w) * (2 - 2 * T * T)) for w in (0.3, 0.5, 0.9)),
    ],
)
def test_replaced_record_changes_the_release_by_hand(
    other: Tensor, label: int, weight: float, pooled: bool, squared: float
) -> None:
    data = records(20)
    one, replaced = with_first(data, pixel(0), 0), with_first(data, other, label)
    assert distance(one, replaced, torch.eye(PIXELS), weight, pooled) == pytest.approx(math.sqrt(squared), abs=1e-5)


@BOTH
def test_replacements_change_at_most_root_two(weight: float, pooled: bool) -> None:
    rng = torch.Generator().manual_seed(1)
    data, furthest = records(6), 0.0
    for trial in range(150):
        sparse = torch.rand(2, *SHAPE, generator=rng) < 0.3
        one, other = (torch.randint(0, 256, (2, *SHAPE), generator=rng) * sparse).to(torch.uint8)
        if trial % 10 == 0:
            other = torch.zeros_like(one)
        u = torch.eye(PIXELS) if trial % 2 else basis(1 + trial % PIXELS, seed=trial)
        furthest = max(
            furthest, distance(with_first(data, one, 0), with_first(data, other, trial % CLASSES), u, weight, pooled)
        )
    assert 1.2 < furthest <= math.sqrt(2) + 1e-5


def noise(count: int, multiplier: float, weight: float, pooled: bool, d: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Return the noise of `count` releases on first moments, and on second moments on and above the diagonal."""
    data, u = records(9), basis(d)
    silent = release(*data, u, weight=weight, pooled=pooled)
    above = torch.ones(d, d).triu(1) > 0
    firsts, diagonals, others = [], [], []
    for seed in range(count):
        noisy = release(*data, u, multiplier, seed, weight=weight, pooled=pooled)
        assert torch.equal(noisy.second, noisy.second.transpose(1, 2))
        firsts.append((noisy.first - silent.first).flatten())
        second = noisy.second - silent.second
        diagonals.append(second.diagonal(dim1=1, dim2=2).flatten())
        others.append(second[:, above].flatten())
    return torch.stack(firsts), torch.stack(diagonals), torch.stack(others)


@BOTH
def test_noise_has_exactly_the_expected_scale(weight: float, pooled: bool) -> None:
    """s = multiplier * sensitivity: s / a on first moments, s / b on the diagonal, s / (b sqrt 2) elsewhere."""
    multiplier = 3.0
    first, diagonal, above = noise(150, multiplier, weight, pooled)
    s, a, b = multiplier * SENSITIVITY, math.sqrt(weight), math.sqrt(1 - weight)
    for got, std in ((first, s / a), (diagonal, s / b), (above, s / (b * math.sqrt(2)))):
        values = got.flatten().double().numpy()
        assert stats.kstest(values, stats.norm(0, std).cdf).pvalue > 0.001
        n = len(values)
        low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], n) / n
        assert low < np.mean(np.square(values)) / std**2 < high
        for wrong in (1 / math.sqrt(2), 1 / 1.25, 1.25, math.sqrt(2)):
            assert not low < np.mean(np.square(values)) / (std * wrong) ** 2 < high


def test_noise_of_coordinates_is_uncorrelated() -> None:
    drawn = torch.cat(noise(600, 1.0, 0.5, False, d=3), 1).double().numpy()
    correlations = np.corrcoef(drawn.T)[np.triu_indices(drawn.shape[1], 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(600)


def test_noise_along_the_worst_difference() -> None:
    """An attacker who knows all other records observes one Gaussian, shifted by at most the sensitivity."""
    data, u = records(9), torch.eye(PIXELS)
    one = with_first(data, pixel(0), 0)
    silent = isometric(release(*one, u))
    way = isometric(release(one[0][1:], one[1][1:], u)) - silent
    observed = torch.stack([isometric(release(*one, u, 2.0, seed)) - silent for seed in range(600)]) @ (
        way / way.norm()
    )
    ratio = float(observed.square().mean()) / (2.0 * float(way.norm())) ** 2
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], 600) / 600
    assert low < ratio < high


def test_release_depends_only_on_the_generator() -> None:
    data, u = records(9), basis(4)
    one, again, other = release(*data, u, 1.0, 3), release(*data, u, 1.0, 3), release(*data, u, 1.0, 4)
    assert torch.equal(one.first, again.first) and torch.equal(one.second, again.second)
    assert not torch.equal(one.first, other.first) and not torch.equal(one.second, other.second)


def covariances(found: Gaussians) -> Tensor:
    return found.factors @ found.factors.transpose(1, 2)


def unit(images: Tensor, u: Tensor) -> np.ndarray:
    flat = images.double().flatten(1)
    return (flat / flat.norm(dim=1, keepdim=True) @ u.double()).numpy()


def test_gaussians_without_noise_fit_the_records() -> None:
    """In a basis of the whole image; the classes are of different sizes."""
    images, labels = records(400)
    keep = (labels != 1) | (torch.arange(400) % 2 == 0)
    images, labels, u = images[keep], labels[keep], basis(PIXELS)
    found = gaussians(release(images, labels, u))
    for label in range(CLASSES):
        of = unit(images[labels == label], u)
        np.testing.assert_allclose(found.means[label].numpy(), of.mean(0), atol=2e-5)
        np.testing.assert_allclose(covariances(found)[label].numpy(), np.cov(of.T, bias=True), atol=2e-5)


@pytest.mark.parametrize("d", [6, PIXELS])
def test_pooled_gaussians_without_noise_share_a_covariance(d: int) -> None:
    images, labels = records(300)
    u = basis(d)
    found = gaussians(release(images, labels, u, weight=0.7, pooled=True))
    of = [unit(images[labels == label], u) for label in range(CLASSES)]
    within = sum(np.cov(each.T, bias=True) for each in of) / CLASSES
    for label in range(CLASSES):
        np.testing.assert_allclose(found.means[label].numpy(), of[label].mean(0), atol=2e-5)
        np.testing.assert_allclose(covariances(found)[label].numpy(), within, atol=2e-5)


@BOTH
@pytest.mark.parametrize("multiplier", [0.0, 0.3, 10.0, 1e4])
def test_draws_are_finite_for_any_noise(weight: float, pooled: bool, multiplier: float) -> None:
    images, labels = records(30)
    labels[labels == 1] = 0
    found = gaussians(release(images, labels, basis(8), multiplier, weight=weight, pooled=pooled))
    values = torch.linalg.eigvalsh(covariances(found).double())
    assert float(values.min()) > -1e-5 * float(values.max())
    drawn, classes = found.draw(50, torch.Generator().manual_seed(0), SHAPE)
    assert drawn.isfinite().all() and drawn.shape == (50, *SHAPE)
    assert torch.bincount(classes).tolist() == [17, 17, 16]


def spiked(entry: float, shared: bool, d: int = 60, size: int = 1000) -> tuple[Moments, Tensor]:
    """Second moments of covariances 0.6 v v^T + 0.4 / (d - 1) (1 - v v^T), with Wigner noise, and the covariances.

    Args:
        entry: standard deviation of the noise on an entry of a covariance.
    """
    rng = torch.Generator().manual_seed(5)
    axes = torch.linalg.qr(torch.randn(d, d, generator=rng))[0][:, [0, 0, 0] if shared else [0, 1, 2]]
    lines = torch.einsum("ik,jk->kij", axes, axes)
    true = 0.6 * lines + 0.4 / (d - 1) * (torch.eye(d) - lines)
    above = torch.randn(3, d, d, generator=rng).triu(1)
    wigner = above + above.transpose(1, 2) + math.sqrt(2) * torch.diag_embed(torch.randn(3, d, generator=rng))
    released = Moments(torch.zeros(3, d), size * (true + entry * wigner), size * entry, 0.5, 3 * size, torch.eye(d))
    return released, true


def test_denoised_factors_correct_the_eigenvalues() -> None:
    """Entries of standard deviation e lift 0.6 to 0.6 + d e^2 / 0.6 (Baik, Ben Arous, Peche); here by 0.1."""
    entry = math.sqrt(0.1 * 0.6 / 300)
    noisy = spiked(entry, shared=False, d=300)[0].second / 1000
    raw = torch.linalg.eigvalsh(noisy)
    factors = denoised_factors(noisy, torch.full((3,), 2 * math.sqrt(300) * entry))
    found = torch.linalg.eigvalsh(factors @ factors.transpose(1, 2))
    assert abs(float(raw[:, -1].mean()) - 0.7) < 0.03 and (raw[:, -2] > 0.35).all()
    assert abs(float(found[:, -1].mean()) - 0.6) < 0.03
    assert (found[:, :-1] < 0.05).float().mean() > 0.97, "eigenvalues that are only noise become 0"


def test_covariances_shrink_to_their_mean_under_noise() -> None:
    def spread(matrices: Tensor) -> float:
        return float((matrices - matrices.mean(0)).norm())

    for entry in (0.005, 0.01):
        shared, true = spiked(entry, shared=True)
        found = covariances(gaussians(shared))
        assert spread(found) < 0.2 * spread(shared.second / 1000)
        assert float((found - true).norm()) < 0.5 * float((shared.second / 1000 - true).norm())
    different, true = spiked(1e-4, shared=False)
    assert spread(covariances(gaussians(different))) == pytest.approx(spread(true), rel=0.02)


def test_pooled_class_means_shrink_under_noise() -> None:
    images, labels = records(60)

    def spread(multiplier: float) -> float:
        moments = release(images, labels, basis(8), multiplier, weight=0.7, pooled=True)
        raw = moments.first / 20
        return float((gaussians(moments).means.var(0).sum() / raw.var(0).sum()).sqrt())

    assert spread(0.0) == pytest.approx(1, abs=1e-5)
    assert spread(20.0) < 0.5


def test_draws_follow_their_class_gaussians() -> None:
    rng = np.random.default_rng(0)
    u, d, n = basis(4), 4, 60_000
    means = torch.tensor(rng.normal(size=(CLASSES, d)), dtype=torch.float32)
    factors = torch.tensor(rng.normal(size=(CLASSES, d, d)), dtype=torch.float32)
    images, classes = Gaussians(means, factors, u).draw(CLASSES * n, torch.Generator().manual_seed(0), SHAPE)
    coordinates = images.flatten(1).double() @ u.double()
    assert torch.allclose(coordinates.norm(dim=1), torch.ones(CLASSES * n, dtype=torch.double), atol=1e-5)
    for label in range(CLASSES):
        got = coordinates[classes == label].numpy()
        wanted = rng.normal(size=(n, d)) @ factors[label].numpy().T + means[label].numpy()
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        np.testing.assert_allclose(got.mean(0), wanted.mean(0), atol=6 / math.sqrt(n))
        np.testing.assert_allclose(np.cov(got.T), np.cov(wanted.T), atol=6 / math.sqrt(n))


BASES = {
    "strokes": lambda d: stroke_basis((1, 7, 7), d, 7),
    "cosines": lambda d: cosine_basis((1, 7, 7), d),
    "colour": lambda d: cosine_basis((3, 4, 5), d),
}


@pytest.mark.parametrize(("name", "d"), list(itertools.product(BASES, [1, 20, 45])))
def test_bases_are_orthonormal_and_deterministic(name: str, d: int) -> None:
    make = BASES[name]
    torch.manual_seed(1)
    once = make(d)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after), "a basis draws nothing from the global generator"
    torch.manual_seed(2)
    assert torch.equal(once, make(d))
    assert d <= once.shape[1] < d + 3
    assert torch.allclose(once.T @ once, torch.eye(once.shape[1]), atol=1e-5)


def test_stroke_basis_depends_little_on_the_seed() -> None:
    one, other = stroke_basis((1, 7, 7), 20, 0), stroke_basis((1, 7, 7), 20, 1)
    overlap = float((one.T @ other).square().sum()) / 20
    assert 0.8 < overlap < 0.9999


def test_stroke_basis_represents_strokes() -> None:
    from bench.nets.stroke_generator import StrokeGenerator

    torch.manual_seed(3)
    pen = StrokeGenerator((1, 7, 7), 6)
    with torch.no_grad():
        flat = pen(torch.randn(200, pen.latent)).flatten(1)
    kept = {name: float((flat @ u).square().sum() / flat.square().sum()) for name, u in
            {"strokes": stroke_basis((1, 7, 7), 10, 0), "random": basis(10, 49)}.items()}  # fmt: skip
    assert kept["strokes"] > 0.8 > 0.5 > kept["random"]


def test_cosine_basis_is_ordered_by_frequency() -> None:
    planes = cosine_basis((1, 8, 8), 3).T.view(3, 8, 8)
    assert torch.allclose(planes[0], torch.full((8, 8), 1 / 8.0), atol=1e-6)
    assert float(planes[1].std(0).max()) < 1e-6 or float(planes[1].std(1).max()) < 1e-6


@pytest.mark.parametrize("decode", [to_stroke_image, to_image])
def test_decoded_images_keep_range_and_order(decode: object) -> None:
    projections = torch.randn(64, 2, 7, 7, generator=torch.Generator().manual_seed(0)) * 0.1
    projections[0], projections[1] = -1.0, 0.0
    made = decode(projections)  # type: ignore[operator]
    assert made.shape == projections.shape and made.isfinite().all()
    assert float(made.min()) == 0 and float(made.max()) == 1
    assert (made[:2] == 0).all()
    order = projections[5].flatten().argsort()
    assert (made[5].flatten()[order].diff() >= 0).all()
    assert torch.allclose(decode(projections * 3)[2:], made[2:], atol=1e-5), "scale-invariant"  # type: ignore[operator]
