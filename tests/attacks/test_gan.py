from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from bench.gan import wasserstein
from bench.gan.training import shuffled_batches

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)


def train(aux: Tensor, seed: int = 0, steps: int = 3, **changes: float) -> dict[str, Tensor]:
    generator, critic = wasserstein.build_gan(SHAPE, 5, 4, 1, CPU)
    settings = {"batch": 8, "n_critic": 2, "lr": 1e-3, "penalty": 10.0, **changes}
    rng = torch.Generator().manual_seed(seed)
    wasserstein.train_wgan_gp(
        aux, generator, critic, steps=steps, betas=(0.5, 0.999), rng=rng, advance=lambda n: None, **settings
    )
    return wasserstein.pack(generator=generator, critic=critic)


def test_losses_by_hand() -> None:
    real, fake = torch.tensor([3.0, 5.0]), torch.tensor([1.0, -2.0])
    assert wasserstein.critic_loss(real, fake) == pytest.approx(-0.5 - 4.0)
    assert wasserstein.generator_loss(fake) == pytest.approx(0.5)


def test_gradient_penalty_of_linear_critic_by_hand() -> None:
    critic = nn.Sequential(nn.Flatten(), nn.Linear(4, 1), nn.Flatten(0))
    weight = torch.tensor([[1.0, -2.0, 4.0, 2.0]])
    critic[1].weight = nn.Parameter(weight.clone())
    penalty = wasserstein.gradient_penalty(critic, torch.rand(7, 1, 2, 2), torch.rand(7, 1, 2, 2), torch.rand(7))
    assert penalty.item() == pytest.approx((5 - 1) ** 2)
    penalty.backward()
    torch.testing.assert_close(critic[1].weight.grad, 2 * (5 - 1) * weight / 5)


def test_gradient_penalty_uses_each_images_own_point() -> None:
    """D(x) = |x|^2 / 2 has gradient x, so the penalty reads the points themselves."""

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).square().sum(1) / 2

    real, fake = torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1, 2)
    real[:, 0, 0] = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    fake[:, 0, 0] = torch.tensor([[0.0, 0.0], [6.0, 8.0]])
    alpha = torch.tensor([0.8, 0.7])
    expected = ((0.8 * 5 - 1) ** 2 + (0.3 * 10 - 1) ** 2) / 2
    assert wasserstein.gradient_penalty(Square(), real, fake, alpha).item() == pytest.approx(expected)


def test_training_steps_are_critic_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    original = wasserstein.descend

    def spy(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        seen.append(optimiser.param_groups[0]["params"][0].numel())
        original(optimiser, loss)

    monkeypatch.setattr(wasserstein, "descend", spy)
    ticks: list[int] = []
    generator, critic = wasserstein.build_gan(SHAPE, 5, 4, 1, CPU)
    g, d = next(generator.parameters()).numel(), next(critic.parameters()).numel()
    wasserstein.train_wgan_gp(
        torch.rand(20, *SHAPE), generator, critic, steps=7, batch=8, n_critic=3, lr=1e-3, betas=(0.5, 0.999),
        penalty=10.0, rng=torch.Generator().manual_seed(0), advance=ticks.append,
    )  # fmt: skip
    assert g != d
    assert seen == [d, d, d, g, d, d, d, g, d]
    assert ticks == [1] * 7
    assert not generator.training and not critic.training


def test_training_depends_only_on_its_random_generator() -> None:
    aux = torch.rand(20, *SHAPE)
    torch.manual_seed(1)
    one = train(aux)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    same, other = train(aux), train(aux, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not torch.equal(one["generator.start.0.weight"], other["generator.start.0.weight"])


def test_training_with_few_images_uses_all() -> None:
    assert all(value.isfinite().all() for value in train(torch.rand(3, *SHAPE), batch=64).values())


@pytest.mark.thorough
def test_training_learns_the_image_distribution() -> None:
    aux = torch.zeros(32, *SHAPE)
    aux[..., :4] = 0.9
    generator, critic = wasserstein.build_gan(SHAPE, 5, 4, 1, CPU)
    wasserstein.unpack(train(aux, steps=160, n_critic=2, lr=5e-3), generator=generator, critic=critic)
    images = generator(torch.randn(64, 5, generator=torch.Generator().manual_seed(3)))
    assert images[..., :4].mean() > 0.7
    assert images[..., 4:].mean() < 0.3


class Scaled(nn.Module):
    """A generator of 2 x 2 pixels, a half and the latent times its one weight."""

    latent = 4

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, z: Tensor) -> Tensor:
        return 0.5 + self.scale * z.view(-1, 1, 2, 2)


class Indifferent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.base + 0 * x.flatten(1).sum(1)


@pytest.mark.parametrize(("weight", "moved"), [(1.0, 0.01), (-1.0, -0.01), (None, 0.0)])
def test_training_with_diversity_reward_by_hand(weight: float | None, moved: float) -> None:
    def distance(z: Tensor, other: Tensor, images: Tensor, others: Tensor) -> Tensor:
        assert weight is not None and not torch.equal(z, other)
        torch.testing.assert_close(images - others, 0.1 * (z - other).view(-1, 1, 2, 2))
        return weight * (images - others).flatten(1).norm(dim=1).mean()

    generator, reward = Scaled(), None if weight is None else distance
    wasserstein.train_wgan_gp(
        torch.rand(8, 1, 2, 2), generator, Indifferent(), steps=1, batch=8, n_critic=1, lr=0.01, betas=(0.5, 0.999),
        penalty=0.0, rng=torch.Generator().manual_seed(0), advance=lambda n: None, diversity=reward,
    )  # type: ignore[arg-type]  # fmt: skip
    assert generator.scale.item() - 0.1 == pytest.approx(moved, abs=1e-5)


def test_shuffled_batches_are_passes_over_the_rows() -> None:
    batches = shuffled_batches(10, 3, torch.Generator().manual_seed(0))
    first, second = (torch.cat([next(batches) for _ in range(3)]) for _ in range(2))
    assert len(set(first.tolist())) == len(set(second.tolist())) == 9
    assert first.tolist() != second.tolist()


def test_build_gan_depends_only_on_the_seed() -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, same, other = (wasserstein.pack(g=wasserstein.build_gan(SHAPE, 5, 4, seed, CPU)[0]) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one["g.start.0.weight"], same["g.start.0.weight"])
    assert not torch.equal(one["g.start.0.weight"], other["g.start.0.weight"])


def test_pack_and_unpack() -> None:
    generator, critic = wasserstein.build_gan(SHAPE, 5, 4, 1, CPU)
    generator(torch.randn(6, 5))
    state = {k: v.clone() for k, v in wasserstein.pack(generator=generator, critic=critic).items()}
    again, critic_again = wasserstein.build_gan(SHAPE, 5, 4, 2, CPU)
    wasserstein.unpack(state, generator=again, critic=critic_again)
    z, x = torch.randn(3, 5), torch.rand(3, *SHAPE)
    assert torch.equal(again(z), generator.eval()(z))
    assert torch.equal(critic_again(x), critic(x))
    assert not again.training and not any(p.requires_grad for p in again.parameters())
    del state["generator.grow.0.bias"]
    with pytest.raises(RuntimeError, match=r"grow\.0\.bias"):
        wasserstein.unpack(state, generator=again)


def test_fingerprint_depends_on_pixels_and_shape() -> None:
    pixels = torch.randint(256, (5, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = pixels.float() / 255
    assert wasserstein.fingerprint(images) == wasserstein.fingerprint(pixels.float() * (1 / 255))
    assert wasserstein.fingerprint(images) != wasserstein.fingerprint(images.flip(0))
    assert wasserstein.fingerprint(images) != wasserstein.fingerprint(images.view(5, 1, 4, 16))
    assert len(wasserstein.fingerprint(images)) * math.log2(16) == 256
