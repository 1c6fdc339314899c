"""Fixed features: both scatterings against a slow transform and Kymatio, and patch features by their formula."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench import nets, priors
from bench.bundle.network import write_program
from bench.errors import BenchError
from bench.nets.classifiers.patch_nets import FILTERS, PatchFeatures
from bench.nets.fine_scattering import MAPS, FineScattering
from bench.nets.scattering import ANGLES, Scattering, gaussian_window, morlets

PLACES = ((3, 1, 1), (9, 0, 1), (16, 1, 0), (17, 1, 1), (40, 0, 0), (59, 1, 0), (80, 1, 1))
KYMATIO = {
    (28, 28): (0.021169, 0.026723, 0.022722, 0.001827, 0.001202, 0.001864, 0.000944),
    (32, 32): (0.019316, 0.021940, 0.021791, 0.001649, 0.000793, 0.001847, 0.000846),
    (16, 16): (0.030543, 0.028027, 0.033241, 0.002426, 0.001317, 0.002953, 0.001181),
    (30, 30): (0.029124, 0.023246, 0.024690, 0.001650, 0.001127, 0.001764, 0.000674),
    (24, 40): (0.027519, 0.044167, 0.032890, 0.001990, 0.001183, 0.001918, 0.001265),
    (64, 64): (0.013129, 0.021354, 0.015570, 0.000945, 0.000465, 0.000982, 0.000563),
}
"""Values of Kymatio 0.3.0, Scattering2D(J=2, L=8) of `picture`, at `PLACES`: map, row, column."""
LARGEST_AND_SUM = {(28, 28): (0.582723, 45.20024), (32, 32): (0.575491, 56.89143), (24, 40): (0.614752, 60.13041)}


def slow(image: Tensor, kernel: Tensor, stride: int, before: int) -> Tensor:
    """Correlation of one (h, w) image with one kernel by loops, zeros outside, the first window `before` pixels out."""
    h, w = image.shape
    size = kernel.shape[-1]
    out = torch.zeros(math.ceil(h / stride), math.ceil(w / stride))
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for a in range(size):
                for b in range(size):
                    y, x = i * stride - before + a, j * stride - before + b
                    if 0 <= y < h and 0 <= x < w:
                        out[i, j] += image[y, x] * kernel[a, b]
    return out


def slow_modulus(image: Tensor, scale: int, angle: int, stride: int) -> Tensor:
    kernels = morlets(7 if scale == 1 else 13, scale)[:, 0]
    half = kernels.shape[-1] // 2
    real, imaginary = (slow(image, kernels[k], stride, half) for k in (angle, ANGLES + angle))
    return (real.square() + imaginary.square()).sqrt()


def test_scattering_equals_a_slow_transform() -> None:
    torch.manual_seed(0)
    image = torch.rand(12, 12)
    fast = Scattering()(image[None, None])[0]
    phi_4, phi_2 = gaussian_window(13, 2.4)[0, 0], gaussian_window(7, 1.2)[0, 0]
    torch.testing.assert_close(fast[0], slow(image, phi_4, 4, 4), rtol=1e-4, atol=1e-5)
    first = slow_modulus(image, 1, 1, 1)
    torch.testing.assert_close(fast[1 + 1], slow(first, phi_4, 4, 4), rtol=1e-4, atol=1e-5)
    coarse = slow_modulus(image, 2, 3, 2)
    torch.testing.assert_close(fast[1 + ANGLES + 3], slow(coarse, phi_2, 2, 2), rtol=1e-4, atol=1e-5)
    second = slow_modulus(first, 2, 2, 2)
    place = 1 + 2 * ANGLES + 1 * ANGLES + 2
    torch.testing.assert_close(fast[place], slow(second, phi_2, 2, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "scale"), [(7, 1), (13, 2)])
def test_morlets_have_no_mean_and_a_direction(size: int, scale: int) -> None:
    kernels = morlets(size, scale)[:, 0]
    assert kernels.sum((1, 2)).abs().max() < 1e-6
    _, x = torch.meshgrid(torch.arange(size) - size // 2, torch.arange(size) - size // 2, indexing="ij")
    wave = torch.cos(0.75 * math.pi / scale * x)
    responses = [(k * wave).sum().abs() for k in kernels[:ANGLES]]
    assert responses[0] == max(responses), "angle 0 is along x"


def test_gaussian_window_is_an_average() -> None:
    assert gaussian_window(13, 2.4).sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("shape", "features"), [((1, 16, 16), 400), ((1, 28, 28), 1225), ((3, 32, 32), 1600)])
def test_scatter_linear_trains_only_a_linear_layer(shape: tuple[int, int, int], features: int) -> None:
    torch.manual_seed(3)
    one = nets.build("scatter-linear", shape, 10).eval()
    torch.manual_seed(4)
    other = nets.build("scatter-linear", shape, 10).eval()
    assert sorted(name for name, _ in one.named_parameters()) == ["body.head.bias", "body.head.weight"]
    x = torch.rand(3, *shape)
    assert one.features(x).shape == (3, features)
    assert torch.equal(one.features(x), other.features(x)), "features do not depend on the seed"
    assert torch.allclose(one(x), one.body.head(one.features(x)))


def test_scatter_linear_weights_depend_only_on_the_seed() -> None:
    weights = []
    for _ in range(2):
        torch.manual_seed(3)
        weights.append(nets.build("scatter-linear", (1, 20, 20), 10).body.head.weight)
    assert torch.equal(*weights), "only the first build draws the reference strokes"


def picture(height: int, width: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    spot = torch.exp(-((x - width / 3) ** 2 + (y - height / 2) ** 2) / (2 * (width / 3) ** 2))
    return (0.5 + 0.5 * torch.sin(0.9 * x + 0.05 * y * y) * torch.cos(0.4 * y) * spot).float()


@pytest.mark.parametrize("size", KYMATIO)
def test_fine_scattering_has_kymatios_values(size: tuple[int, int]) -> None:
    maps = FineScattering(*size)(picture(*size)[None, None])[0]
    assert maps.shape == (MAPS, size[0] // 4, size[1] // 4)
    found = torch.stack([maps[place] for place in PLACES])
    torch.testing.assert_close(found, torch.tensor(KYMATIO[size]), rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", LARGEST_AND_SUM)
def test_fine_scattering_has_kymatios_largest_and_sum(size: tuple[int, int]) -> None:
    maps = FineScattering(*size)(picture(*size)[None, None])
    largest, total = LARGEST_AND_SUM[size]
    assert float(maps.max()) == pytest.approx(largest, abs=3e-5)
    assert float(maps.double().sum()) == pytest.approx(total, rel=2e-4)


def test_fine_scattering_transforms_channels_separately() -> None:
    torch.manual_seed(0)
    images, transform = torch.rand(9, 3, 16, 16), FineScattering(16, 16)
    together = transform(images)
    assert together.shape == (9, 3 * MAPS, 4, 4)
    one_by_one = torch.stack([torch.cat([transform(c[None, None])[0] for c in image]) for image in images])
    torch.testing.assert_close(together, one_by_one, rtol=1e-4, atol=1e-6)


def test_fine_scattering_of_black_has_a_gradient() -> None:
    image = torch.zeros(1, 1, 16, 16, requires_grad=True)
    FineScattering(16, 16)(image).sum().backward()
    assert image.grad is not None and image.grad.isfinite().all()


@pytest.mark.parametrize(("shape", "features"), [((1, 16, 16), 1296), ((1, 28, 28), 3969), ((3, 32, 32), 15_552)])
@pytest.mark.parametrize("name", ["wavelet-linear", "wavelet-linear-mirrored"])
def test_wavelet_features_have_one_norm(name: str, shape: tuple[int, int, int], features: int) -> None:
    torch.manual_seed(0)
    network, images = nets.build(name, shape, 10).eval(), torch.rand(4, *shape)
    rows = network.features(images)
    assert rows.shape == (4, features)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((4,), math.sqrt(features)), rtol=1e-6, atol=0)
    assert sorted(name for name, _ in network.named_parameters()) == ["body.head.bias", "body.head.weight"]
    assert not network.features(torch.zeros(1, *shape)).isnan().any()


def test_only_mirrored_features_ignore_mirroring() -> None:
    torch.manual_seed(0)
    images = torch.rand(3, 3, 16, 16)
    differ = []
    for name in ("wavelet-linear", "wavelet-linear-mirrored"):
        network = nets.build(name, (3, 16, 16), 4).eval()
        differ.append(float((network.features(images) - network.features(images.flip(-1))).detach().abs().max()))
    assert differ[1] < 1e-4 < differ[0]


@pytest.mark.thorough
def test_wavelet_network_is_exported_as_a_program(tmp_path: Path) -> None:
    network = nets.build("wavelet-linear-mirrored", (3, 16, 16), 4).eval().requires_grad_(False)
    assert write_program(tmp_path / "student.pt2", network, (3, 16, 16))


def test_fine_scattering_cache_keeps_each_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters are cached by image size, but not in one precision."""
    images = torch.rand(2, 1, 16, 16)
    single = FineScattering(16, 16)(images)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    double = FineScattering(16, 16)(images)
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


NAMES = ["patch-linear", "patch-linear-mirrored", "patch-wavelet-linear", "patch-wavelet-linear-mirrored"]


def drawings(shape: tuple[int, int, int], count: int = 1000) -> Tensor:
    return priors.load("shapes").draw(count, shape, torch.Generator().manual_seed(0))


def fitted(shape: tuple[int, int, int], mirrored: bool = False) -> PatchFeatures:
    features = PatchFeatures(shape, mirrored)
    features.fit(drawings(shape), torch.Generator().manual_seed(0))
    return features


@pytest.mark.parametrize("shape", [(1, 12, 10), (3, 9, 9)])
def test_features_follow_the_formula(shape: tuple[int, int, int]) -> None:
    features, image = fitted(shape), drawings(shape, 1)[0]
    rows, columns = shape[1] - 5, shape[2] - 5
    responses = torch.empty(2 * FILTERS, rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            patch = image[:, i : i + 6, j : j + 6].flatten().double()
            patch = (patch - patch.mean()) / (patch.var() + 10 / 255**2).sqrt()
            y = features.filters.double() @ patch + features.offsets
            responses[:, i, j] = torch.cat([(y - 0.25).clamp_min(0), (-y - 0.25).clamp_min(0)])
    expected = torch.nn.functional.adaptive_avg_pool2d(responses, 3).flatten().sqrt()
    found = features(image[None] * 2 - 1)[0]
    assert torch.allclose(found, (expected / expected.norm()).float(), atol=1e-4)


def test_filters_are_whitened_patches_of_norm_one() -> None:
    features = fitted((1, 16, 16))
    patches = torch.nn.functional.unfold(drawings((1, 16, 16)), 6, stride=5).transpose(1, 2).flatten(0, 1)
    patches = patches[patches.var(1) > 1e-4]
    patches = (patches - patches.mean(1, keepdim=True)) / (patches.var(1, keepdim=True) + 10 / 255**2).sqrt()
    values, vectors = torch.linalg.eigh(torch.cov(patches.T, correction=0))
    unwhiten = vectors * (values + 0.1).sqrt() @ vectors.T
    dictionary = features.filters @ unwhiten
    assert torch.allclose(dictionary.norm(dim=1), torch.ones(FILTERS), atol=1e-3)
    assert torch.allclose(features.offsets, -features.filters @ patches.mean(0), atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_rows_depend_on_their_image_only(name: str) -> None:
    network = nets.build(name, (1, 12, 12), 3).eval()
    network.body.trunk[0].patches.fit(drawings((1, 12, 12)), torch.Generator())
    images = drawings((1, 12, 12), 70)
    with torch.no_grad():
        together, separate = network.features(images), torch.cat([network.features(x[None]) for x in images[::23]])
    assert torch.allclose(together[::23], separate, atol=2e-5)
    assert torch.allclose(together.norm(dim=1), torch.full((70,), math.sqrt(together.shape[1])), rtol=1e-4)


def test_mirrored_features_ignore_mirroring() -> None:
    features, images = fitted((3, 12, 12), mirrored=True), drawings((3, 12, 12), 3) * 2 - 1
    assert torch.allclose(features(images), features(images.flip(-1)), atol=1e-5)
    assert not torch.allclose(fitted((3, 12, 12))(images), fitted((3, 12, 12))(images.flip(-1)), atol=1e-3)


def test_gradients_are_finite_for_black_images() -> None:
    features = fitted((1, 12, 12))
    images = torch.stack([-torch.ones(1, 12, 12), drawings((1, 12, 12), 1)[0] * 2 - 1]).requires_grad_()
    features(images)[:, ::7].sum().backward()
    assert images.grad is not None and images.grad.isfinite().all() and images.grad[1].abs().max() > 0


def test_filters_are_saved_with_the_network() -> None:
    network, again = (nets.build("patch-linear", (1, 12, 12), 3).eval() for _ in range(2))
    network.body.trunk[0].patches.fit(drawings((1, 12, 12)), torch.Generator())
    again.load_state_dict(network.state_dict())
    images = drawings((1, 12, 12), 4)
    assert torch.equal(network(images), again(images))


@pytest.mark.parametrize(("shape", "named"), [((1, 7, 12), "7x12"), ((2, 12, 12), "2"), ((1, 65, 65), "65x65")])
def test_image_shapes_are_limited(shape: tuple[int, int, int], named: str) -> None:
    with pytest.raises(BenchError, match=named):
        nets.build("patch-linear", shape, 3)


def test_flat_drawings_are_refused() -> None:
    with pytest.raises(BenchError, match=str(FILTERS)):
        PatchFeatures((1, 12, 12)).fit(torch.zeros(500, 1, 12, 12), torch.Generator())
