"""The denoiser's preconditioning, its loss and its sampler, against the published formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from bench.nets.denoiser import (
    DEVIATION,
    Denoiser,
    DiffusionGenerator,
    UNet,
    denoising_losses,
    noise_levels,
)


class Recorded(nn.Module):
    """A network that returns its input times 3 and keeps its inputs."""

    def forward(self, x: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        self.x, self.level = x, level
        return 3 * x


class PosteriorMean(nn.Module):
    """The exact denoiser of images N(0, v)."""

    def __init__(self, v: float) -> None:
        super().__init__()
        self.v = v

    def forward(self, x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        return x * self.v / (self.v + sigma[:, None, None, None] ** 2)


@pytest.mark.parametrize("s", [0.01, 0.5, 3.0, 80.0])
def test_preconditioning_by_hand(s: float) -> None:
    """sd^2 = 1/3: c_skip = sd^2 / (s^2 + sd^2), c_out = s sd / sqrt(s^2 + sd^2), c_in = 1 / sqrt(s^2 + sd^2)."""
    network = Recorded()
    x = torch.full((1, 1, 2, 2), 0.7)
    found = Denoiser(network)(x, torch.tensor([s]), torch.tensor([0]))
    total = s * s + 1 / 3
    skip, out, into = (1 / 3) / total, s * math.sqrt(1 / 3) / math.sqrt(total), 1 / math.sqrt(total)
    torch.testing.assert_close(network.x, into * x)
    torch.testing.assert_close(network.level, torch.tensor([math.log(s) / 4]))
    torch.testing.assert_close(found, skip * x + out * 3 * into * x)


def test_denoiser_without_noise_returns_the_image() -> None:
    torch.manual_seed(0)
    network = UNet((1, 8, 8), 4, 8, 2, 1)
    nn.init.normal_(network.last.weight)
    x, labels = torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 4])
    torch.testing.assert_close(Denoiser(network)(x, torch.full((3,), 1e-7), labels), x, atol=1e-5, rtol=0)
    assert not torch.allclose(Denoiser(network)(x, torch.full((3,), 0.5), labels), x, atol=1e-2)


def test_loss_is_that_of_the_network_with_unit_weight() -> None:
    """w(s) c_out(s)^2 = 1: the loss is |F - target|^2 at every noise level."""
    torch.manual_seed(0)
    x, e, sigma = torch.rand(5, 1, 3, 3), torch.randn(5, 1, 3, 3), torch.tensor([0.01, 0.1, 1.0, 5.0, 50.0])
    network = Recorded()
    noisy = x + sigma[:, None, None, None] * e
    losses = denoising_losses(Denoiser(network)(noisy, sigma, torch.zeros(5)), x, sigma)
    total = (sigma**2 + 1 / 3)[:, None, None, None]
    out = sigma[:, None, None, None] * DEVIATION / total.sqrt()
    target = (x - noisy / 3 / total) / out
    expected = (3 * network.x - target).square().flatten(1).mean(1)
    torch.testing.assert_close(losses, expected, rtol=2e-3, atol=1e-4)


def test_noise_levels_fall_from_80_to_0() -> None:
    levels = noise_levels(18)
    assert levels[0] == pytest.approx(80) and levels[-2] == pytest.approx(0.002) and levels[-1] == 0
    assert bool((levels.diff() < 0).all())
    assert levels[1] == pytest.approx((80 ** (1 / 7) + (0.002 ** (1 / 7) - 80 ** (1 / 7)) / 17) ** 7, rel=1e-5)
    assert noise_levels(1).tolist() == pytest.approx([80.0, 0.0])


def test_sampler_with_the_exact_denoiser_has_the_images_distribution() -> None:
    """Images N(0, 0.04) in [-1, 1] are N(0.5, 0.01) in [0, 1]; the map from noise to images is linear."""
    generator = DiffusionGenerator(PosteriorMean(0.04), (1, 4, 4), (1, 4, 4), 200)
    z = torch.randn(2000, 16, generator=torch.Generator().manual_seed(0))
    images = generator(z, torch.zeros(2000, dtype=torch.int64))
    assert float(images.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(images.std()) == pytest.approx(0.1, rel=0.05)
    expected = 0.5 + z.view_as(images) * float(images.std())
    torch.testing.assert_close(images, expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("size", [7, 8, 14, 28])
def test_network_fits_all_sizes_and_uses_labels(size: int) -> None:
    torch.manual_seed(0)
    network = UNet((3, size, size), 5, 8, 3, 2)
    x, level = torch.randn(2, 3, size, size), torch.zeros(2)
    assert torch.equal(network(x, level, torch.tensor([0, 5])), torch.zeros_like(x)), "starts at 0"
    nn.init.normal_(network.last.weight)
    one, other = (network(x, level, torch.tensor(labels)) for labels in ([0, 1], [0, 2]))
    torch.testing.assert_close(one[0], other[0])
    assert not torch.allclose(one[1], other[1])
    torch.testing.assert_close(network(x[1:], level[1:], torch.tensor([1])), one[1:], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(network(x, level + 0.3, torch.tensor([0, 1]))[0], one[0])


def test_generator_enlarges_small_images() -> None:
    generator = DiffusionGenerator(PosteriorMean(0.04), (3, 7, 9), (3, 4, 5), 3)
    images = generator(torch.randn(2, 60), torch.zeros(2, dtype=torch.int64))
    assert images.shape == (2, 3, 7, 9) and float(images.min()) >= 0 and float(images.max()) <= 1
