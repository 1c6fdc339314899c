from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from inversion_made import SHAPE, TINY_GAN, SmoothGenerator, quadrant_images, target
from torch import Tensor, nn

from attacks.ked_mi.class_discriminator import ClassDiscriminator, MinibatchDiscrimination
from attacks.ked_mi.ked_mi import KedMi, discriminator_loss, generator_loss, recovery_loss
from bench.api import Target
from bench.gan.training import descend
from bench.testing import context

AUX = quadrant_images(64)
TINY: dict[str, Any] = KedMi.tiers["smoke"] | TINY_GAN | {"gan_batch": 8, "n_critic": 2, "iterations": 4}


def small_discriminator(seed: int = 0) -> ClassDiscriminator:
    torch.manual_seed(seed)
    return ClassDiscriminator(SHAPE, 4, 2, 3, 2)


@pytest.fixture
def smooth(monkeypatch: pytest.MonkeyPatch) -> SmoothGenerator:
    generator = SmoothGenerator()
    monkeypatch.setattr(KedMi, "_gan", lambda *_: (generator, small_discriminator().eval().requires_grad_(False)))
    return generator


def test_discriminator_loss_by_hand() -> None:
    """Logits (0, log 3) have Z = 4, so D(x) = 4/5 and softmax (1/4, 3/4); logits (0, 0) have D(G) = 2/3."""
    real, soft = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.4, 0.6]])
    fake = torch.zeros(3, 2)
    supervised = -(0.4 * math.log(1 / 4) + 0.6 * math.log(3 / 4))
    unsupervised = -math.log(4 / 5) - math.log(1 / 3)
    assert discriminator_loss(real, soft, fake).item() == pytest.approx(supervised + unsupervised / 2)


def test_discriminator_loss_is_finite_for_large_logits() -> None:
    soft = torch.tensor([[0.0, 1.0]])
    loss = discriminator_loss(torch.tensor([[-300.0, 300.0]]), soft, torch.full((1, 2), -300.0))
    assert loss.item() == pytest.approx(0, abs=1e-6)


def test_generator_loss_by_hand() -> None:
    h_real, h_fake = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 5.0], [1.0, 6.0]])
    fake = torch.tensor([[0.0, 0.0], [0.0, math.log(3)]])
    entropies = math.log(2) - (0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    expected = (abs(2 - 1) + abs(3 - 5.5)) / 2 + 0.1 * entropies
    assert generator_loss(h_real, h_fake, fake, 0.1).item() == pytest.approx(expected)


def test_recovery_loss_by_hand() -> None:
    realism = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]])
    logits, labels = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]]), torch.tensor([1, 0])
    expected = -math.log(4 / 5) - math.log(2 / 3) + 10 * (math.log(2) - math.log(3 / 4))
    assert recovery_loss(realism, logits, labels, 10.0).item() == pytest.approx(expected)


def test_minibatch_discrimination_by_hand() -> None:
    layer = MinibatchDiscrimination(2, kernels=2, length=1)
    layer.project.weight.data = torch.eye(2)
    h = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    one, three, e = math.exp(-1), math.exp(-3), 1.0
    expected = torch.tensor([[one + e, e + three], [2 * one, e + three], [e + one, 2 * three]])
    torch.testing.assert_close(layer(h), expected)
    codes = layer.codes(torch.tensor([[1.0, 3.0]]))
    torch.testing.assert_close(layer(h, codes), torch.tensor([[one, three], [1.0, three], [one, 1.0]]))


def test_minibatch_discrimination_is_the_slow_sum() -> None:
    torch.manual_seed(0)
    layer, h = MinibatchDiscrimination(5, kernels=3, length=4), torch.randn(6, 5)
    m = (h @ layer.project.weight.T).view(6, 3, 4)
    for i in range(6):
        others = [j for j in range(6) if j != i]
        slow = sum(torch.exp(-(m[i] - m[j]).abs().sum(1)) for j in others)
        torch.testing.assert_close(layer(h)[i], slow)


def test_minibatch_discrimination_starts_with_a_gradient() -> None:
    torch.manual_seed(0)
    layer = MinibatchDiscrimination(4096, 64, 50)
    out = layer(torch.randn(16, 4096)) / 15
    assert 0.1 < out.mean() < 0.9
    layer.project.weight.data = torch.randn_like(layer.project.weight)
    assert layer(torch.randn(16, 4096)).max() < 1e-3, "weights of order 1 leave the layer dead"


def test_discriminator_with_codes_is_independent_per_image() -> None:
    discriminator, images = small_discriminator().eval(), quadrant_images(12)
    codes = discriminator.codes(images[:5])
    together = discriminator(images, codes)
    apart = torch.cat([discriminator(image[None], codes) for image in images])
    torch.testing.assert_close(together, apart)
    assert not torch.allclose(
        discriminator(images), torch.cat([discriminator(part) for part in images.split(2)]), atol=1e-3
    )


def test_discriminator_with_batch_codes_equals_the_batch() -> None:
    discriminator, images = small_discriminator().eval(), quadrant_images(6)
    codes = discriminator.codes(images[1:])
    torch.testing.assert_close(discriminator(images)[:1], discriminator(images[:1], codes))


def test_descend_changes_only_its_own_parameters() -> None:
    a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    descend(torch.optim.SGD([a], lr=0.1), (a * a * b).sum())
    assert a.item() == pytest.approx(0.8) and b.item() == 1 and b.grad is None


@pytest.mark.parametrize("clip", [0.5, 1.0])
def test_recovery_keeps_z_inside_the_clamp(smooth: SmoothGenerator, clip: float) -> None:
    KedMi(**TINY, latent_clip=clip, lr=3.0).run(target(), AUX, context())
    assert len(smooth.largest) == TINY["iterations"] + 1
    assert max(smooth.largest) == pytest.approx(clip)


def test_recovery_without_clamp_is_unbounded(smooth: SmoothGenerator) -> None:
    KedMi(**TINY).run(target(), AUX, context())
    assert max(smooth.largest) > 2


def test_recovery_starts_with_the_initial_variance(smooth: SmoothGenerator) -> None:
    attack = KedMi(**{**TINY, "iterations": 1, "lr": 1e-9, "draws": 300, "images_per_class": 2, "batch": 10_000})
    taken: list[Tensor] = []
    forward = smooth.forward
    smooth.forward = lambda z: (taken.append(z.detach()), forward(z))[1]  # type: ignore[method-assign]
    attack.run(target(), AUX, context())
    for z in taken:
        assert z.mean().item() == pytest.approx(0, abs=0.1)
        assert z.std().item() == pytest.approx(math.exp(0.5), rel=0.05)


def test_gan_learns_the_targets_labels() -> None:
    """With a target that calls everything class 2, D must come to say so of real images."""

    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([0.0, 0.0, 9.0, 0.0]).expand(len(x), 4)

    attack = KedMi(**{**TINY, "gan_steps": 60, "gan_lr": 1e-2, "width": 4})
    _, discriminator = attack._gan(Target(Two(), "weights", SHAPE, 4), AUX, context())
    codes = discriminator.codes(AUX[:7])
    p = discriminator(AUX, codes).softmax(1)[:, 2]
    assert p.mean() > 0.9
    _, other = attack._gan(target(), AUX, context())
    assert other(AUX, other.codes(AUX[:7])).softmax(1)[:, 2].mean() < 0.5
    assert all(not w.requires_grad for w in discriminator.parameters()) and not discriminator.training


@pytest.mark.thorough
def test_recovery_reaches_the_attacked_class() -> None:
    settings = {**TINY, "gan_steps": 120, "gan_batch": 16, "gan_lr": 1e-2, "width": 8, "lr": 0.1}
    before = KedMi(**{**settings, "iterations": 1, "lr": 1e-9}).run(target(), AUX, context())
    after = KedMi(**{**settings, "iterations": 80}).run(target(), AUX, context())
    start, end = (target().scores(r.images).gather(1, r.targets[:, None]).mean() for r in (before, after))
    assert start < 0.45 and end > 0.7, (start, end)


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_discriminator_supports_all_sizes(shape: tuple[int, int, int]) -> None:
    assert ClassDiscriminator(shape, 7, 2, 3, 2)(torch.rand(2, *shape)).shape == (2, 7)
