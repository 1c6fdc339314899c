from __future__ import annotations

import pytest
import torch

from bench.errors import BenchError
from bench.nets.stroke_generator import StrokeGenerator, catmull_rom


def test_the_curve_passes_through_its_points_and_keeps_straight_lines() -> None:
    weights = catmull_rom(5, 401)
    assert torch.allclose(weights.sum(1), torch.ones(401), atol=1e-5)
    assert torch.allclose(weights[::100].round(decimals=2), torch.eye(5), atol=0.02)
    inner = weights[100:300] @ torch.arange(5.0)
    assert torch.allclose(inner, torch.linspace(0, 4 - 1e-4, 401)[100:300], atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 32, 32)])
def test_images_are_light_curves_on_a_dark_ground(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    generator = StrokeGenerator(shape)
    images = generator(torch.randn(64, generator.latent)).detach()
    assert images.shape == (64, *shape)
    assert float(images.min()) >= 0 and float(images.max()) <= 1
    assert 0.05 < float(images.mean()) < 0.5
    assert float(images[:, :, 0].mean()) < 0.1, "the border is dark"
    assert float(images.flatten(1).amax(1).min()) > 0.5, "every image has ink"
    assert float((images[0] - images[1]).abs().mean()) > 0.02


def test_gradients_reach_the_vectors_and_the_trainable_part() -> None:
    generator = StrokeGenerator((1, 16, 16))
    z = torch.randn(4, generator.latent, requires_grad=True)
    generator(z).square().sum().backward()
    assert z.grad is not None and torch.isfinite(z.grad).all() and z.grad.abs().sum() > 0
    assert generator.move[-1].weight.grad.abs().sum() > 0


def test_oblong_images_are_refused() -> None:
    with pytest.raises(BenchError, match="square"):
        StrokeGenerator((1, 16, 20))
