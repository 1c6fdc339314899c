"""Finer scattering against values of Kymatio, and the features that train heads."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench import nets
from bench.bundle.network import write_program
from bench.errors import BenchError
from bench.nets.fine_scattering import MAPS, FineScattering

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


def picture(height: int, width: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    spot = torch.exp(-((x - width / 3) ** 2 + (y - height / 2) ** 2) / (2 * (width / 3) ** 2))
    return (0.5 + 0.5 * torch.sin(0.9 * x + 0.05 * y * y) * torch.cos(0.4 * y) * spot).float()


@pytest.mark.parametrize("size", KYMATIO)
def test_values_are_kymatios(size: tuple[int, int]) -> None:
    maps = FineScattering(*size)(picture(*size)[None, None])[0]
    assert maps.shape == (MAPS, size[0] // 4, size[1] // 4)
    found = torch.stack([maps[place] for place in PLACES])
    torch.testing.assert_close(found, torch.tensor(KYMATIO[size]), rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", LARGEST_AND_SUM)
def test_all_maps_together_are_kymatios(size: tuple[int, int]) -> None:
    maps = FineScattering(*size)(picture(*size)[None, None])
    largest, total = LARGEST_AND_SUM[size]
    assert float(maps.max()) == pytest.approx(largest, abs=3e-5)
    assert float(maps.double().sum()) == pytest.approx(total, rel=2e-4)


def test_colour_is_kept_and_images_do_not_mix() -> None:
    torch.manual_seed(0)
    images, transform = torch.rand(9, 3, 16, 16), FineScattering(16, 16)
    together = transform(images)
    assert together.shape == (9, 3 * MAPS, 4, 4)
    alone = torch.stack([torch.cat([transform(c[None, None])[0] for c in image]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


def test_a_black_image_has_a_gradient() -> None:
    image = torch.zeros(1, 1, 16, 16, requires_grad=True)
    FineScattering(16, 16)(image).sum().backward()
    assert image.grad is not None and image.grad.isfinite().all()


@pytest.mark.parametrize(("shape", "features"), [((1, 16, 16), 1296), ((1, 28, 28), 3969), ((3, 32, 32), 15_552)])
@pytest.mark.parametrize("name", ["wavelet-linear", "wavelet-linear-mirrored"])
def test_rows_have_one_norm_and_only_the_head_is_trained(name: str, shape: tuple[int, int, int], features: int) -> None:
    torch.manual_seed(0)
    network, images = nets.build(name, shape, 10).eval(), torch.rand(4, *shape)
    rows = network.features(images)
    assert rows.shape == (4, features)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((4,), math.sqrt(features)), rtol=1e-6, atol=0)
    assert sorted(name for name, _ in network.named_parameters()) == ["body.head.bias", "body.head.weight"]
    assert not network.features(torch.zeros(1, *shape)).isnan().any()


def test_a_mirror_image_has_the_same_mirrored_features_alone() -> None:
    torch.manual_seed(0)
    images = torch.rand(3, 3, 16, 16)
    differ = []
    for name in ("wavelet-linear", "wavelet-linear-mirrored"):
        network = nets.build(name, (3, 16, 16), 4).eval()
        differ.append(float((network.features(images) - network.features(images.flip(-1))).detach().abs().max()))
    assert differ[1] < 1e-4 < differ[0]


@pytest.mark.thorough
def test_a_release_of_it_is_written_as_a_program(tmp_path: Path) -> None:
    network = nets.build("wavelet-linear-mirrored", (3, 16, 16), 4).eval().requires_grad_(False)
    assert write_program(tmp_path / "student.pt2", network, (3, 16, 16))


def test_sizes_it_cannot_take_are_refused() -> None:
    with pytest.raises(BenchError, match="8 to 64 pixels"):
        nets.build("wavelet-linear", (1, 72, 72), 10)


def test_a_network_has_the_precision_it_is_built_in_whatever_was_built_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its filters are kept for the next network of that size."""
    images = torch.rand(2, 1, 16, 16)
    single = FineScattering(16, 16)(images)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    double = FineScattering(16, 16)(images)
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)
