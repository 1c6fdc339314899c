"""Fixed features: properties of the wavelets, and a slow transform compared with the fast one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bench import nets
from bench.errors import BenchError
from bench.nets.scattering import ANGLES, Scattering, gaussian_window, morlets


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


def test_against_a_slow_transform() -> None:
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
def test_wavelets_have_no_mean_and_see_their_own_direction(size: int, scale: int) -> None:
    kernels = morlets(size, scale)[:, 0]
    assert kernels.sum((1, 2)).abs().max() < 1e-6
    _, x = torch.meshgrid(torch.arange(size) - size // 2, torch.arange(size) - size // 2, indexing="ij")
    wave = torch.cos(0.75 * math.pi / scale * x)
    answers = [(k * wave).sum().abs() for k in kernels[:ANGLES]]
    assert answers[0] == max(answers), "waves along x answer to angle 0"


def test_window_is_an_average() -> None:
    assert gaussian_window(13, 2.4).sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("shape", "features"), [((1, 16, 16), 400), ((1, 28, 28), 1225), ((3, 32, 32), 1600)])
def test_network_has_a_linear_layer_and_nothing_else_to_train(shape: tuple[int, int, int], features: int) -> None:
    torch.manual_seed(3)
    one = nets.build("scatter-linear", shape, 10).eval()
    torch.manual_seed(4)
    other = nets.build("scatter-linear", shape, 10).eval()
    assert sorted(name for name, _ in one.named_parameters()) == ["body.head.bias", "body.head.weight"]
    x = torch.rand(3, *shape)
    assert one.features(x).shape == (3, features)
    assert torch.equal(one.features(x), other.features(x)), "features are the same whatever the seed"
    assert torch.allclose(one(x), one.body.head(one.features(x)))


def test_building_leaves_the_global_generator_to_the_weights_alone() -> None:
    weights = []
    for _ in range(2):
        torch.manual_seed(3)
        weights.append(nets.build("scatter-linear", (1, 20, 20), 10).body.head.weight)
    assert torch.equal(*weights), "the first build draws the reference strokes, the second finds them"


def test_sizes_it_cannot_take_are_refused() -> None:
    with pytest.raises(BenchError, match="8 to 64 pixels"):
        nets.build("scatter-linear", (1, 72, 72), 10)
