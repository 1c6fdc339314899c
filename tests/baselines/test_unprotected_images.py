"""The students of DGD's Fig. 4: losses of their generators by hand, their inputs, the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import NO_NOISE, record_calls, rng, smoke, teacher_for
from torch import Tensor, nn

from baselines import acgan, wgan
from baselines.acgan import AcGan, LabelledGenerator, class_loss
from baselines.infogan import InfoGan
from baselines.raw_images import RawImages
from baselines.wgan import Wgan, clip_weights
from bench.api import Release, Sampler, gaussian_latents
from bench.distillation.unprotected_images import draw_images
from bench.distillation.votes.noisy_votes import votes_epsilon
from bench.gan.training import minimax_loss, non_saturating_loss, source_loss
from bench.nets.generators import Critic
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_private

GENERATORS: list[type[Any]] = [AcGan, Wgan, InfoGan]


def convert(cls: type[Any], budget: Budget = NO_NOISE, **given: Any) -> Release:
    return baseline_runs.convert(cls, budget, **given)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_vote_noise_is_that_of_dgd(law: str) -> None:
    method = smoke(RawImages, aggregation=law, query_count="1300")
    plan = method.plan(Budget(10.0), "mnist")
    assert votes_epsilon(plan, 1e-5) == pytest.approx(10, rel=1e-3)
    if law == "laplace":
        e0 = 2 / plan.aggregation.scale
        assert 1300 * e0**2 + e0 * math.sqrt(-2 * 1300 * math.log(1e-5)) == pytest.approx(10, rel=1e-3)
    assert method.plan(NO_NOISE, "mnist").aggregation.scale == 0
    assert method.plan(Budget(None, solve="none"), "mnist").aggregation.scale == 40


def test_raw_images_uses_but_does_not_release_records() -> None:
    release = convert(RawImages)
    assert release.synthetic is None and release.generator is None
    method = smoke(RawImages)
    of = teacher_for(method)
    images, shown, _ = method._images(of, method.plan(NO_NOISE, "toy"), context())
    private = {tuple(image.flatten().tolist()) for image in of.private[0]}  # type: ignore[index]
    found = [tuple((image * 255).round().to(torch.uint8).flatten().tolist()) for image in images]
    assert len(set(found)) == len(found) == 22 and set(found) <= private and not shown


@pytest.mark.parametrize("cls", GENERATORS)
def test_released_generator_redraws_the_shown_images(cls: type[Any]) -> None:
    release = convert(cls)
    sampler: Sampler = smoke(cls).sampler(SHAPE, CLASSES, "toy")
    assert release.generator is not None and release.synthetic is not None
    sampler.generator.load_state_dict(release.generator.state_dict())
    again = draw_images(replace(sampler, generator=sampler.generator.eval()), 22, context().generator("images"))
    assert torch.equal(again, release.synthetic)


@pytest.mark.thorough
@pytest.mark.parametrize("cls", GENERATORS)
def test_generator_learns_from_private_images(cls: type[Any]) -> None:
    """Dark ones and bright ones: generated images follow."""
    method = smoke(cls, gan_steps="20")
    method = replace(method, **{name: 5e-3 for name in ("rate", "rate_generator") if hasattr(method, name)})
    images, labels = toy_private()
    levels = []
    for level in (0, 255):
        torch.manual_seed(0)
        sampler = method.sampler(SHAPE, CLASSES, "toy")
        method.train(sampler, SHAPE, torch.full_like(images, level), labels, context())
        sampler.generator.eval()
        levels.append(float(draw_images(sampler, 40, context().generator("images")).mean()))
    assert levels[1] - levels[0] > 0.1, levels


def test_source_losses_by_hand() -> None:
    real, fake = torch.tensor([math.log(3.0), 0.0]), torch.tensor([-math.log(3.0), 0.0])  # D = 3/4, 1/2; 1/4, 1/2
    assert float(source_loss(real, fake)) == pytest.approx(-math.log(3 / 8) / 2 - math.log(3 / 8) / 2)
    assert float(minimax_loss(fake)) == pytest.approx((math.log(3 / 4) + math.log(1 / 2)) / 2)
    assert float(non_saturating_loss(fake)) == pytest.approx(-(math.log(1 / 4) + math.log(1 / 2)) / 2)


def test_acgan_class_loss_ignores_the_source() -> None:
    outputs = torch.tensor([[9.0, math.log(3.0), 0.0], [-9.0, 0.0, 0.0]])  # P(C) = (3/4, 1/4), (1/2, 1/2)
    assert float(class_loss(outputs, torch.tensor([0, 1]))) == pytest.approx(-(math.log(3 / 4) + math.log(1 / 2)) / 2)


def test_acgan_losses_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """D: -(L_S + L_C); G: -(L_C - L_S), whose terms without G are left out."""
    seen: list[Tensor] = []
    monkeypatch.setattr(acgan, "descend", lambda _, loss: seen.append(loss.detach()))
    queried, drawn_labels = (
        record_calls(monkeypatch, Critic, "forward"),
        record_calls(monkeypatch, LabelledGenerator, "forward"),
    )
    method = smoke(AcGan, gan_steps="1")
    torch.manual_seed(0)
    images, _ = toy_private()
    labels = torch.zeros(len(images), dtype=torch.int64)
    method.train(method.sampler(SHAPE, CLASSES, "toy"), SHAPE, images, labels, context())
    real, fake, again = (call.result.detach().double() for call in queried)
    c, c2 = (call.arguments[2] for call in drawn_labels)

    def log(outputs: Tensor, column: Tensor) -> Tensor:
        return outputs[:, 1:].log_softmax(1).gather(1, column[:, None]).mean()

    l_s = real[:, 0].sigmoid().log().mean() + (1 - fake[:, 0].sigmoid()).log().mean()
    l_c = log(real, torch.zeros_like(c)) + log(fake, c)
    assert float(seen[0]) == pytest.approx(float(-(l_s + l_c)), rel=1e-5)
    of_g = (1 - again[:, 0].sigmoid()).log().mean() - log(again, c2)
    assert float(seen[1]) == pytest.approx(float(of_g), rel=1e-5)


def test_infogan_information_by_hand() -> None:
    """log Q of the code that was drawn, and the code's own entropy: log 2 for two values, log 2 for a number."""
    method = InfoGan(categories=2, numbers=1)
    q = torch.tensor([[math.log(3.0), 0.0, 0.5], [0.0, 0.0, -1.0]])
    code = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]])
    gaussian = -0.5 * math.log(2 * math.pi)
    first, second = math.log(3 / 4) + gaussian, math.log(1 / 2) + gaussian - 2
    assert float(method.information_bound(q, code)) == pytest.approx((first + second) / 2 + 2 * math.log(2))
    method, code = InfoGan(categories=5, numbers=0), torch.eye(5)
    assert float(method.information_bound(1e3 * code, code)) == pytest.approx(math.log(5)), "at most the entropy"
    assert float(method.information_bound(torch.zeros(5, 5), code)) == pytest.approx(0, abs=1e-6)


def test_infogan_codes_are_one_hot_and_uniform() -> None:
    z = smoke(InfoGan, latent="6")._latents(4000, rng())
    noise, category, numbers = z.split([6, 10, 2], 1)
    assert torch.equal(category.sum(1), torch.ones(4000)) and set(category.unique().tolist()) == {0.0, 1.0}
    assert category.mean(0).sub(0.1).abs().max() < 0.03
    for part in (noise, numbers):
        assert part.abs().max() <= 1 and part.mean().abs() < 0.03 and abs(float(part.var()) - 1 / 3) < 0.02


def test_wgan_weights_are_clipped() -> None:
    network = nn.Linear(2, 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.005, -3.0]]))
        network.bias.fill_(0.02)
    clip_weights(network, 0.01)
    torch.testing.assert_close(network.weight.detach(), torch.tensor([[0.005, -0.01]]))
    torch.testing.assert_close(network.bias.detach(), torch.tensor([0.01]))


def test_wgan_critic_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A critic w . x, by hand: g_w = mean x - mean g(z), one RMSProp step up it, weights clipped to 0.01."""

    class Line(nn.Module):
        def __init__(self, shape: tuple[int, int, int], width: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((math.prod(shape),), 0.0099))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.w

    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level = nn.Parameter(torch.tensor(0.5))

        def forward(self, z: Tensor) -> Tensor:
            return self.level * torch.ones(len(z), 1, 2, 2)

    critics: list[Line] = []
    monkeypatch.setattr(wgan, "Critic", lambda *given: critics.append(Line(*given)) or critics[0])
    rate, method = 5e-5, Wgan(gan_steps=1, gan_batch=4, critic_steps=1)
    images = torch.tensor([255, 255, 0, 0], dtype=torch.uint8).view(1, 1, 2, 2).expand(4, -1, -1, -1)
    g = Pixels()
    method.train(Sampler(g, gaussian_latents(3)), (1, 2, 2), images, torch.zeros(4), context())
    # RMSProp from rest moves by rate * g / sqrt(0.01 g^2) = 10 rate: g_w = 1 - 0.5 > 0 for the bright pixels, < 0 else
    expected = torch.tensor([0.0099 + 10 * rate] * 2 + [0.0099 - 10 * rate] * 2).clamp(-0.01, 0.01)
    torch.testing.assert_close(critics[0].w.detach(), expected, rtol=0, atol=1e-7)
    # theta climbs mean f_w(g(z)) = level * sum w, whose derivative is positive
    assert float(g.level.detach()) == pytest.approx(0.5 + 10 * rate, abs=1e-6)


def test_wgan_takes_n_critic_steps_per_generator_step(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []
    monkeypatch.setattr(wgan, "descend", lambda optimiser, _: kinds.append(type(optimiser).__name__))
    clipped: list[float] = []
    monkeypatch.setattr(wgan, "clip_weights", lambda _, bound: clipped.append(bound))
    method, (images, labels) = smoke(Wgan), toy_private()
    method.train(method.sampler(SHAPE, CLASSES, "toy"), SHAPE, images, labels, context())
    assert kinds == ["RMSprop"] * 12 and clipped == [0.01] * 10
