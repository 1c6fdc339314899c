"""GAN generators and critic, pen strokes, and the variational autoencoder."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from bench.errors import BenchError
from bench.nets.generators import Critic, DeconvGenerator, UpsampleGenerator
from bench.nets.stroke_generator import StrokeGenerator, catmull_rom
from bench.nets.vae import VAE, elbo, sample

GENERATORS = (DeconvGenerator, UpsampleGenerator)


@pytest.mark.parametrize("size", [8, 12, 16, 20, 28, 32, 40, 64])
@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_make_images_of_the_size_and_range(kind: type[nn.Module], size: int) -> None:
    torch.manual_seed(0)
    generator = kind((3, size, size), latent=7, width=2)
    images = generator(20 * torch.randn(4, 7))
    assert generator.latent == 7
    assert images.shape == (4, 3, size, size)
    assert 0 <= images.min() < images.max() <= 1


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_give_every_weight_a_gradient(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    generator = kind((1, 16, 16), latent=5, width=3)
    (generator(torch.randn(6, 5)) * torch.randn(6, 1, 16, 16)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in generator.parameters())


@pytest.mark.parametrize(
    ("size", "start", "channels"),
    [(8, 4, [4, 1]), (16, 4, [8, 4, 1]), (28, 7, [8, 4, 1]), (32, 4, [16, 8, 4, 1]), (64, 4, [32, 16, 8, 4, 1])],
)
def test_deconv_generator_has_the_layers_of_its_table(size: int, start: int, channels: list[int]) -> None:
    generator = DeconvGenerator((1, size, size), latent=5, width=4)
    convolutions = [m for m in generator.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert generator.start(torch.randn(2, 5)).shape == (2, channels[0], start, start)
    assert [m.in_channels for m in convolutions] + [convolutions[-1].out_channels] == channels
    assert all(m.kernel_size == (5, 5) and m.stride == (2, 2) for m in convolutions)
    assert len([m for m in generator.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]) == len(convolutions)


def test_deconv_generator_defaults_are_the_papers() -> None:
    generator = DeconvGenerator((1, 32, 32))
    assert generator.latent == 100
    assert generator.start[0].weight.shape == (4 * 4 * 4 * 64, 100)


def test_upsample_generator_takes_oblong_images() -> None:
    generator = UpsampleGenerator((1, 28, 16), latent=6, width=3)
    assert generator(torch.randn(2, 6)).shape == (2, 1, 28, 16)
    channels = [(m.in_channels, m.out_channels) for m in generator.modules() if isinstance(m, nn.Conv2d)]
    assert channels == [(6, 6), (6, 3), (3, 1)]


@pytest.mark.parametrize(
    ("size", "channels"),
    [
        (8, [3]),
        (12, [3, 6]),
        (16, [3, 6]),
        (28, [3, 6, 12]),
        (32, [3, 6, 12]),
        (40, [3, 6, 12, 24]),
        (64, [3, 6, 12, 24]),
    ],
)
def test_critic_has_the_papers_layers(size: int, channels: list[int]) -> None:
    critic = Critic((2, size, size), width=3)
    convolutions = [m for m in critic.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [*channels, 1]
    assert all(m.kernel_size == (5, 5) and m.stride == (2, 2) for m in convolutions[:-1])
    norms = [m for m in critic.modules() if isinstance(m, nn.InstanceNorm2d)]
    assert [m.num_features for m in norms] == channels[1:] and all(m.affine for m in norms)
    assert critic(torch.rand(5, 2, size, size)).shape == (5,)


def test_critic_scores_images_separately_and_unbounded() -> None:
    torch.manual_seed(0)
    critic, images = Critic((1, 16, 16), width=4), 50 * torch.randn(6, 1, 16, 16)
    scores = critic(images)
    assert scores.min() < 0 < scores.max() or scores.abs().max() > 1
    one_by_one = torch.cat([critic(image[None]) for image in images])
    torch.testing.assert_close(one_by_one, scores, rtol=1e-4, atol=1e-5)


def test_critic_depends_on_every_pixel() -> None:
    torch.manual_seed(0)
    image = torch.rand(1, 1, 28, 28, requires_grad=True)
    (gradient,) = torch.autograd.grad(Critic((1, 28, 28), width=2)(image).sum(), image)
    assert (gradient != 0).all()


REFUSED: list[tuple[Callable[[tuple[int, int, int]], nn.Module], list[tuple[int, int]]]] = [
    (Critic, [(4, 4), (30, 30), (32, 28), (128, 128)]),
    (DeconvGenerator, [(4, 4), (30, 30), (27, 27), (68, 68), (32, 28)]),
    (UpsampleGenerator, [(4, 8), (30, 32), (32, 27)]),
    (StrokeGenerator, [(16, 20)]),
    (VAE, [(6, 8), (4, 4), (30, 30)]),
]


@pytest.mark.parametrize(("kind", "size"), [(kind, size) for kind, sizes in REFUSED for size in sizes])
def test_networks_refuse_other_image_sizes(kind: type[nn.Module], size: tuple[int, int]) -> None:
    with pytest.raises(BenchError) as caught:
        kind((1, *size))
    assert caught.value.code == "incompatible" and f"{size[0]}x{size[1]}" in str(caught.value)


def test_catmull_rom_interpolates_points_and_keeps_lines() -> None:
    weights = catmull_rom(5, 401)
    assert torch.allclose(weights.sum(1), torch.ones(401), atol=1e-5)
    assert torch.allclose(weights[::100].round(decimals=2), torch.eye(5), atol=0.02)
    inner = weights[100:300] @ torch.arange(5.0)
    assert torch.allclose(inner, torch.linspace(0, 4 - 1e-4, 401)[100:300], atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 32, 32)])
def test_strokes_are_light_curves_on_a_dark_ground(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    generator = StrokeGenerator(shape)
    images = generator(torch.randn(64, generator.latent)).detach()
    assert images.shape == (64, *shape)
    assert float(images.min()) >= 0 and float(images.max()) <= 1
    assert 0.05 < float(images.mean()) < 0.5
    assert float(images[:, :, 0].mean()) < 0.1, "the border is dark"
    assert float(images.flatten(1).amax(1).min()) > 0.5, "every image has ink"
    assert float((images[0] - images[1]).abs().mean()) > 0.02


def test_strokes_are_differentiable_in_latents_and_weights() -> None:
    generator = StrokeGenerator((1, 16, 16))
    z = torch.randn(4, generator.latent, requires_grad=True)
    generator(z).square().sum().backward()
    assert z.grad is not None and torch.isfinite(z.grad).all() and z.grad.abs().sum() > 0
    assert generator.move[-1].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 16, 16), (1, 28, 28), (3, 32, 32), (2, 8, 12)])
def test_vae_encodes_and_decodes_images(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    vae, x = VAE(shape, code=5, width=4), torch.rand(3, *shape)
    mean, log_variance = vae.encode(x)
    assert mean.shape == log_variance.shape == (3, 5)
    decoded = vae.decode(mean).detach()
    assert decoded.shape == x.shape and float(decoded.min()) >= 0 and float(decoded.max()) <= 1


def test_elbo_of_one_pixel_by_hand() -> None:
    """x = 1, logit 0: log p = -log 2. mean 1, variance 4: KL = (1 + 4 - 1 - log 4) / 2."""
    x, logits = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    value = elbo(x, logits, torch.ones(1, 1), torch.full((1, 1), math.log(4)))
    assert float(value) == pytest.approx(-math.log(2) - (4 - math.log(4)) / 2, abs=1e-6)


def test_elbo_sums_over_pixels_and_averages_over_images() -> None:
    """Four pixels at log 1/2 each; codes (0, 1) with mean 0: image one has KL 0, image two mean 3 in one code: 9/2."""
    x, logits = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    mean = torch.tensor([[0.0, 0.0], [0.0, 3.0]])
    assert float(elbo(x, logits, mean, torch.zeros(2, 2))) == pytest.approx(-4 * math.log(2) - 9 / 4, abs=1e-6)


def test_vae_codes_have_the_encoders_mean_and_variance() -> None:
    mean, log_variance = torch.tensor([[2.0, -1.0]]), torch.tensor([[math.log(9.0), math.log(0.25)]])
    codes = sample(mean.expand(40_000, -1), log_variance.expand(40_000, -1), torch.Generator().manual_seed(0))
    assert torch.allclose(codes.mean(0), mean[0], atol=0.06)
    assert torch.allclose(codes.std(0), torch.tensor([3.0, 0.5]), rtol=0.02)


def test_vae_decodes_rows_separately() -> None:
    torch.manual_seed(1)
    vae, codes = VAE((1, 8, 8), code=4, width=4), torch.randn(6, 4)
    one_by_one = torch.cat([vae.decode(row[None]) for row in codes])
    assert torch.allclose(vae.decode(codes), one_by_one, atol=1e-6)


@pytest.mark.thorough
def test_vae_training_lowers_the_loss_and_reconstructs() -> None:
    """Images of one bright column each: after a few steps the decoded mean is nearer to its image than to any other."""
    torch.manual_seed(2)
    x = torch.zeros(8, 1, 8, 8)
    for column in range(8):
        x[column, 0, :, column] = 1
    vae, rng = VAE((1, 8, 8), code=4, width=8), torch.Generator().manual_seed(3)
    optimizer, losses = torch.optim.Adam(vae.parameters(), lr=5e-3), []
    for _ in range(400):
        loss = vae.loss(x, rng)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-20:]) / 20 < losses[0] / 3
    with torch.no_grad():
        decoded = vae.decode(vae.encode(x)[0])
    assert torch.equal(torch.cdist(decoded.flatten(1), x.flatten(1)).argmin(1), torch.arange(8))
