"""DP-GAN: the critic's use of the records, and that the ledger accounts for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import class_share, epsilon_of, is_normal, record_calls, refused, renyi_epsilon, rng, synthesise
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from torch import Tensor

from baselines.dp_gan import dp_gan
from baselines.dp_gan.dp_gan import DpGan, Training, ghost_gradient
from bench.dp_training import clipping, private_gradient
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.private_gradient import PrivateGradient
from bench.nets.conditional_gan import DcganCritic, DcganGenerator, MlpCritic, MlpGenerator, build
from bench.privacy import Unit
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, context, toy_private, weights
from bench.testing.toys import same_tensors

SMALL = DpGan(steps=2, batch=80, critic_steps=1, latent=4, width=4, critic_width=4)


def game(method: DpGan, q: float, z: float, steps: int = 1) -> Training:
    torch.manual_seed(0)
    networks = build(method.network, SHAPE, CLASSES, method.latent, method.width, method.critic_width)
    return Training(method, *networks, CLASSES, DpSgdParameters(q, steps, z), context())


def steps_taken(monkeypatch: pytest.MonkeyPatch, played: Training, data: tuple[Tensor, Tensor]) -> list[Any]:
    """The gradients that the critic steps along."""
    taken: list[dict[str, Tensor]] = []
    assign = dp_gan.assign

    def spy(network: Any, gradients: dict[str, Tensor]) -> None:
        taken.append({name: g.clone() for name, g in gradients.items()})
        assign(network, gradients)

    with monkeypatch.context() as patch:
        patch.setattr(dp_gan, "assign", spy)
        played.run(data[0], F.one_hot(data[1], CLASSES).float())
    return taken


@pytest.mark.parametrize("network", ["dcgan", "mlp"])
def test_steps_sample_and_add_noise_as_the_ledger(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    samples = record_calls(monkeypatch, private_gradient, "poisson_sample")
    noises = record_calls(monkeypatch, clipping, "add_noise")
    (entry,) = synthesise(replace(SMALL, network=network, multiplier=1.5, steps=2, batch=16)).ledger.entries()
    assert entry.unit == Unit.EXAMPLE and entry.count == 2
    assert entry.event == PoissonSampledDpEvent(16 / 80, GaussianDpEvent(1.5))
    assert [call.arguments[1] for call in samples] == [16 / 80] * 2
    assert [call.arguments[2] for call in noises] == [1.5, 0.0] * 2, "records, then generated images"


def test_paper_settings_have_the_papers_renyi_epsilon() -> None:
    """60,000 records, B = 128, sigma = 1, 450,000 steps: epsilon 10 by Renyi moments."""
    paper = DpGan()
    rate = paper.batch / 60_000
    renyi = renyi_epsilon(PoissonSampledDpEvent(rate, GaussianDpEvent(paper.multiplier)), paper.steps)
    assert renyi == pytest.approx(10.0, abs=0.1)
    assert 0.85 * renyi < epsilon_of(DpSgdParameters(rate, paper.steps, paper.multiplier).ledger()) <= renyi


@pytest.mark.parametrize("network", ["dcgan", "mlp"])
def test_critic_step_by_hand(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    """q = 1, no noise: ((1/n) sum clip(grad softplus(-D(x, y))) + the same of softplus(D(G(z), y'))) / 2.

    Clipping is to 127/128 of the setting, the rest of which rounding errors are left.
    """
    bound = 0.02 * 127 / 128
    played = game(replace(SMALL, network=network, clip=0.02), q=1.0, z=0.0)
    images, labels = toy_private(n=6)
    critic, names = played.critic, [name for name, _ in played.critic.named_parameters()]

    def one(loss: Tensor) -> Tensor:
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss.sum(), list(critic.parameters()))])
        return flat * min(1.0, bound / float(flat.norm()))

    rows = zip(images.float() / 255, F.one_hot(labels, CLASSES).float(), strict=True)
    real = [one(F.softplus(-critic(x[None], y[None]))) for x, y in rows]
    played.public.manual_seed(7)
    made, given = played.make(6)
    rows = zip(made.detach(), given, strict=True)
    fake = [one(F.softplus(critic(x[None], y[None]))) for x, y in rows]
    expected = (torch.stack(real).mean(0) + torch.stack(fake).mean(0)) / 2
    assert torch.stack(real).norm(dim=1).max() == pytest.approx(bound, rel=1e-4), "the bound must bind"
    played.public.manual_seed(7)
    (taken,) = steps_taken(monkeypatch, played, (images, labels))
    torch.testing.assert_close(torch.cat([taken[name].flatten() for name in names]), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_ghost_gradient_equals_per_sample_mechanism(clip: float) -> None:
    """Sums, noise and scale against gradients of records one by one, with an empty batch and a broken record too."""
    torch.manual_seed(0)
    critic = MlpCritic(SHAPE, CLASSES, 6)
    images, labels = toy_private(n=9)
    x, y = images.float() / 255, F.one_hot(labels, CLASSES).float()
    x[3] = math.inf

    def one(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.softplus(-torch.func.functional_call(critic, weights, (image[None], label[None]))).sum()

    mechanism = PrivateGradient(0.5, 2.0, clip, 4)
    for count in (9, 1, 0):
        rows = (x[:count], y[:count])
        slow = mechanism(dict(critic.named_parameters()), one, rows, 20, rng(1))
        fast = ghost_gradient(mechanism, critic, lambda logits: F.softplus(-logits), rows, 20, rng(1))
        assert list(fast) == list(slow)
        for name in slow:
            torch.testing.assert_close(fast[name], slow[name], rtol=1e-4, atol=1e-5)


def test_sum_is_divided_by_expected_batch_size_below_one() -> None:
    total = {"w": torch.ones(1, dtype=torch.float64)}
    mechanism = PrivateGradient(sampling=0.01, multiplier=0.0, clip=1.0)
    assert mechanism.released(total, {"w": torch.zeros(1)}, 20, Noise("cpu", 0))["w"].item() == pytest.approx(5.0)


def test_step_noise_has_the_multiplier(monkeypatch: pytest.MonkeyPatch) -> None:
    """What noise does to the first step: N(0, (z C / (2 B))^2) in every weight, B = q n."""
    plain, noisy = (
        steps_taken(monkeypatch, game(replace(SMALL, clip=0.7), q=0.25, z=z), toy_private(n=40))[0] for z in (0.0, 3.0)
    )
    assert is_normal(torch.cat([(noisy[name] - plain[name]).flatten() for name in plain]), 3.0 * 0.7 / (2 * 10))


@pytest.mark.parametrize("network", ["dcgan", "mlp"])
def test_one_record_moves_a_step_by_at_most_the_bound(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    """C / (2 B) with the batch's expected size; all records sampled, n taken as public."""
    ends = []
    for count in (8, 7):
        monkeypatch.setattr(private_gradient, "poisson_sample", lambda n, q, rng, count=count: torch.arange(count))
        played = game(replace(SMALL, network=network, clip=0.03), q=0.5, z=0.0)
        taken = steps_taken(monkeypatch, played, toy_private(n=8))[0]
        ends.append(torch.cat([g.flatten() for g in taken.values()]))
    assert 0 < float((ends[0] - ends[1]).norm()) <= 0.03 / (2 * 4) * (1 + 1e-4)


@pytest.mark.parametrize("network", ["dcgan", "mlp"])
def test_unsampled_records_have_no_effect(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    """Only the mechanism sees records: with empty batches any data give the same generator, to the last bit."""
    monkeypatch.setattr(private_gradient, "poisson_sample", lambda n, q, rng: torch.zeros(0, dtype=torch.long))
    (images, labels), method = toy_private(), replace(SMALL, network=network, steps=3, average=0.5)
    made = [synthesise(method, private=data).generator for data in ((images, labels), (255 - images, labels.flip(0)))]
    assert same_tensors(*(weights(generator) for generator in made))  # type: ignore[arg-type]


@pytest.mark.parametrize("z", [0.0, 1.0])
def test_samples_and_noise_use_privacy_noise(z: float) -> None:
    """With the system's generator two runs differ, both with noise and by their samples only."""
    images, labels = toy_private()
    ends = []
    for _ in range(2):
        played = game(SMALL, q=0.5, z=z, steps=2)
        played.ctx = replace(context(), noise="os")
        played.run(images, F.one_hot(labels, CLASSES).float())
        ends.append(weights(played.generator))
    assert not same_tensors(*ends)


@pytest.mark.parametrize(("steps", "each", "expected"), [(7, 3, 2), (6, 3, 2), (2, 5, 0), (4, 1, 4)])
def test_generator_steps_after_n_d_critic_steps(
    monkeypatch: pytest.MonkeyPatch, steps: int, each: int, expected: int
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(Training, "generator_step", lambda self, batch: seen.append(batch))
    synthesise(replace(SMALL, steps=steps, critic_steps=each, average=0.5))
    assert seen == [80] * expected


def test_generator_step_raises_score_of_fixed_critic() -> None:
    played = game(replace(SMALL, rate_generator=1e-2), q=1.0, z=0.0)
    before = [weight.clone() for weight in weights(played.critic)]

    def loss() -> float:
        played.public.manual_seed(3)
        with torch.no_grad():
            return float(F.softplus(-played.critic(*played.make(64))).mean())

    first = loss()
    for _ in range(10):
        played.generator_step(64)
    assert loss() < first and same_tensors(before, weights(played.critic))


def test_generator_step_by_hand() -> None:
    """Adam's first step is the full rate against the sign of the gradient of mean -log sigmoid(D(G(z, y), y))."""
    played = game(replace(SMALL, network="mlp", rate_generator=1e-2), q=1.0, z=0.0)
    with torch.no_grad():
        for p in played.critic.parameters():
            p.mul_(3)
    before = [p.detach().clone() for p in played.generator.parameters()]
    played.public.manual_seed(3)
    real = played.critic(*played.make(16)).sigmoid()
    weights = list(played.generator.parameters())
    wanted = torch.autograd.grad(-real.log().mean(), weights, retain_graph=True)
    other = torch.autograd.grad((1 - real).log().mean(), weights)
    played.public.manual_seed(3)
    played.generator_step(16)
    differ = 0
    for was, now, slope, wrong in zip(before, played.generator.parameters(), wanted, other, strict=True):
        clear = (slope.abs() > 1e-6) & (wrong.abs() > 1e-9)
        assert torch.allclose((now - was)[clear], -0.01 * slope[clear].sign(), rtol=0.05)
        differ += int((slope[clear].sign() != wrong[clear].sign()).sum())
    assert differ > 10, "by log(1 - sigmoid) it would go another way"


def test_generated_images_have_the_returned_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, MlpGenerator, "forward")
    _, labels = game(replace(SMALL, network="mlp"), q=1.0, z=0.0).make(12)
    _, _, y = calls[0].arguments
    assert len(y.unique()) == CLASSES and torch.equal(labels.argmax(1), y)


@pytest.mark.parametrize("size", [8, 12, 16, 28, 32, 64])
def test_networks_fit_all_sizes(size: int) -> None:
    generator, critic = DcganGenerator((3, size, size), 5, 6, 4), DcganCritic((3, size, size), 5, 4)
    images = generator(torch.randn(2, 6), torch.tensor([0, 4])).detach()
    assert images.shape == (2, 3, size, size) and 0 <= float(images.min()) <= float(images.max()) <= 1
    assert critic(images, torch.eye(5)[:2]).shape == (2,)


def test_networks_have_the_papers_size_at_28_pixels() -> None:
    """Bie et al.: kernels 4, 4, 3, 4 with channels d, 2d, 4d, 1; the generator 4d, 2d, d, 1 from a 4x4 map."""
    critic, generator = DcganCritic((1, 28, 28), 10, 128), DcganGenerator((1, 28, 28), 10, 128, 128)
    assert [tuple(p.shape) for p in critic.parameters() if p.dim() > 1] == [
        (64, 1, 4, 4), (64, 10, 4, 4), (256, 128, 4, 4), (512, 256, 3, 3), (1, 512, 4, 4),
    ]  # fmt: skip
    assert [tuple(p.shape) for p in generator.parameters() if p.dim() > 1] == [
        (128, 256, 4, 4), (10, 256, 4, 4), (512, 256, 3, 3), (256, 128, 4, 4), (128, 1, 4, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["dcgan", "mlp"])
def test_networks_do_not_mix_records_and_use_labels(kind: Any) -> None:
    generator, critic = build(kind, SHAPE, CLASSES, 4, 4, 4)
    images, labels = torch.rand(5, *SHAPE), torch.eye(CLASSES)[[0, 1, 2, 3, 0]]
    together = critic(images, labels)
    single = torch.cat([critic(x[None], y[None]) for x, y in zip(images, labels, strict=True)])
    torch.testing.assert_close(together, single)
    assert not torch.allclose(together, critic(images, labels.roll(1, 0)))
    z = torch.randn(1, 4)
    assert not torch.allclose(generator(z, torch.tensor([0])), generator(z, torch.tensor([1])))


def test_unsupported_image_size_is_refused() -> None:
    with refused("30x30"):
        build("dcgan", (1, 30, 30), 10, 4, 4, 4)
    assert build("mlp", (1, 30, 30), 10, 4, 4, 4)[0](torch.randn(1, 4), torch.tensor([0])).shape == (1, 1, 30, 30)


@pytest.mark.thorough
@pytest.mark.parametrize(("z", "steps", "learns"), [(0.0, 300, True), (300.0, 100, False)])
def test_generator_learns_classes_only_without_noise(z: float, steps: int, learns: bool) -> None:
    method = replace(SMALL, network="mlp", steps=steps, critic_steps=2, rate=4e-3, rate_generator=4e-3, width=16,
                     critic_width=16, multiplier=z, beta1=0.0)  # fmt: skip
    share = class_share(synthesise(method))
    assert share > 0.8 if learns else share < 0.6
