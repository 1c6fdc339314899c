"""The autoencoder: shapes, the evidence lower bound against a case worked by hand, and that training lowers it."""

from __future__ import annotations

import math

import pytest
import torch

from bench.errors import BenchError
from bench.nets.vae import VAE, elbo, sample


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 16, 16), (1, 28, 28), (3, 32, 32), (2, 8, 12)])
def test_images_to_codes_and_back(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    vae, x = VAE(shape, code=5, width=4), torch.rand(3, *shape)
    mean, log_variance = vae.encode(x)
    assert mean.shape == log_variance.shape == (3, 5)
    back = vae.decode(mean).detach()
    assert back.shape == x.shape and float(back.min()) >= 0 and float(back.max()) <= 1


@pytest.mark.parametrize("shape", [(1, 6, 8), (1, 4, 4), (1, 30, 30)])
def test_sizes_it_cannot_make_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(BenchError, match="multiples of 4"):
        VAE(shape)


def test_elbo_of_one_pixel_by_hand() -> None:
    """x = 1, logit 0: log p = -log 2. mean 1, variance 4: KL = (1 + 4 - 1 - log 4) / 2."""
    x, logits = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    value = elbo(x, logits, torch.ones(1, 1), torch.full((1, 1), math.log(4)))
    assert float(value) == pytest.approx(-math.log(2) - (4 - math.log(4)) / 2, abs=1e-6)


def test_elbo_sums_over_pixels_and_codes_and_averages_over_images() -> None:
    """Four pixels at log 1/2 each; codes (0, 1) with mean 0: image one has KL 0, image two mean 3 in one code: 9/2."""
    x, logits = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    mean = torch.tensor([[0.0, 0.0], [0.0, 3.0]])
    assert float(elbo(x, logits, mean, torch.zeros(2, 2))) == pytest.approx(-4 * math.log(2) - 9 / 4, abs=1e-6)


def test_codes_have_the_encoders_mean_and_variance() -> None:
    mean, log_variance = torch.tensor([[2.0, -1.0]]), torch.tensor([[math.log(9.0), math.log(0.25)]])
    codes = sample(mean.expand(40_000, -1), log_variance.expand(40_000, -1), torch.Generator().manual_seed(0))
    assert torch.allclose(codes.mean(0), mean[0], atol=0.06)
    assert torch.allclose(codes.std(0), torch.tensor([3.0, 0.5]), rtol=0.02)


def test_rows_do_not_depend_on_each_other() -> None:
    torch.manual_seed(1)
    vae, codes = VAE((1, 8, 8), code=4, width=4), torch.randn(6, 4)
    alone = torch.cat([vae.decode(row[None]) for row in codes])
    assert torch.allclose(vae.decode(codes), alone, atol=1e-6)


@pytest.mark.thorough
def test_training_lowers_the_loss_and_reconstructs() -> None:
    """Images of one bright column each: after a few steps the decoded mean is nearer to its image than to any other."""
    torch.manual_seed(2)
    x = torch.zeros(8, 1, 8, 8)
    for column in range(8):
        x[column, 0, :, column] = 1
    vae, rng = VAE((1, 8, 8), code=4, width=8), torch.Generator().manual_seed(3)
    optimizer = torch.optim.Adam(vae.parameters(), lr=5e-3)
    losses = []
    for _ in range(400):
        loss = vae.loss(x, rng)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-20:]) / 20 < losses[0] / 3
    with torch.no_grad():
        back = vae.decode(vae.encode(x)[0])
    assert torch.equal(torch.cdist(back.flatten(1), x.flatten(1)).argmin(1), torch.arange(8))
