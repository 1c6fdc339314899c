from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.errors import BenchError
from bench.nets.generators import DeconvGenerator, UpsampleGenerator

SIZES = [8, 12, 16, 20, 28, 32, 40, 64]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [DeconvGenerator, UpsampleGenerator])
def test_makes_images_of_the_exact_size_within_range(kind: type[nn.Module], size: int) -> None:
    torch.manual_seed(0)
    generator = kind((3, size, size), latent=7, width=2)
    images = generator(20 * torch.randn(4, 7))
    assert generator.latent == 7
    assert images.shape == (4, 3, size, size)
    assert 0 <= images.min() < images.max() <= 1


@pytest.mark.parametrize(
    ("size", "start", "channels"),
    [(8, 4, [4, 1]), (16, 4, [8, 4, 1]), (28, 7, [8, 4, 1]), (32, 4, [16, 8, 4, 1]), (64, 4, [32, 16, 8, 4, 1])],
)
def test_deconv_follows_the_card(size: int, start: int, channels: list[int]) -> None:
    generator = DeconvGenerator((1, size, size), latent=5, width=4)
    convolutions = [m for m in generator.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert generator.start(torch.randn(2, 5)).shape == (2, channels[0], start, start)
    assert [m.in_channels for m in convolutions] + [convolutions[-1].out_channels] == channels
    assert all(m.kernel_size == (5, 5) and m.stride == (2, 2) for m in convolutions)
    assert len([m for m in generator.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]) == len(convolutions)


def test_deconv_defaults_are_the_papers() -> None:
    generator = DeconvGenerator((1, 32, 32))
    assert generator.latent == 100
    assert generator.start[0].weight.shape == (4 * 4 * 4 * 64, 100)


def test_upsample_takes_oblong_images_and_has_two_stages() -> None:
    generator = UpsampleGenerator((1, 28, 16), latent=6, width=3)
    assert generator(torch.randn(2, 6)).shape == (2, 1, 28, 16)
    assert [(m.in_channels, m.out_channels) for m in generator.modules() if isinstance(m, nn.Conv2d)] == [
        (6, 6),
        (6, 3),
        (3, 1),
    ]


@pytest.mark.parametrize("kind", [DeconvGenerator, UpsampleGenerator])
def test_every_weight_gets_a_gradient(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    generator = kind((1, 16, 16), latent=5, width=3)
    (generator(torch.randn(6, 5)) * torch.randn(6, 1, 16, 16)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for name, p in generator.named_parameters())


@pytest.mark.parametrize("size", [(4, 4), (30, 30), (27, 27), (68, 68), (32, 28)])
def test_deconv_refuses_other_sizes(size: tuple[int, int]) -> None:
    with pytest.raises(BenchError, match=f"{size[0]}x{size[1]} pixels.*resize"):
        DeconvGenerator((1, *size))


@pytest.mark.parametrize("size", [(4, 8), (30, 32), (32, 27)])
def test_upsample_refuses_other_sizes(size: tuple[int, int]) -> None:
    with pytest.raises(BenchError, match=f"{size[0]}x{size[1]} pixels.*resize"):
        UpsampleGenerator((1, *size))
