"""DP-GAN: the critic's use of the records, and that the ledger accounts for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import FREE, record_calls
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import stats
from torch import Tensor, nn

from baselines.dp_gan import dp_gan
from baselines.dp_gan.dp_gan import DpGan, Training, ghost_gradient
from bench.api import Teacher
from bench.config import configure
from bench.dp_training import clipping, dp_sgd, private_gradient
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.private_gradient import PrivateGradient
from bench.dp_training.synthetic_data import Synthesis
from bench.errors import BenchError
from bench.nets.conditional_gan import DcganCritic, DcganGenerator, MlpCritic, MlpGenerator, build
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

SMALL = DpGan(steps=2, batch=80, critic_steps=1, latent=4, width=4, critic_width=4)


def synthesise(
    method: DpGan, n: int = 80, budget: Budget = FREE, data: tuple[Tensor, Tensor] | None = None
) -> Synthesis:
    torch.manual_seed(0)
    images, labels = data or toy_private(n=n)
    return method.synthesise(images, labels, toy_teacher(), budget, context())


def game(method: DpGan, q: float, z: float, steps: int = 1) -> Training:
    torch.manual_seed(0)
    networks = build(method.network, SHAPE, CLASSES, method.latent, method.width, method.critic_width)
    return Training(method, *networks, CLASSES, DpSgdParameters(q, steps, z), context())


def weights(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.state_dict().values()])


def steps_taken(
    monkeypatch: pytest.MonkeyPatch, played: Training, data: tuple[Tensor, Tensor]
) -> list[dict[str, Tensor]]:
    """The gradients that the critic steps along."""
    taken: list[dict[str, Tensor]] = []
    assign = dp_gan.assign

    def spy(network: nn.Module, gradients: dict[str, Tensor]) -> None:
        taken.append({name: g.clone() for name, g in gradients.items()})
        assign(network, gradients)

    monkeypatch.setattr(dp_gan, "assign", spy)
    played.run(data[0], F.one_hot(data[1], CLASSES).float())
    return taken


def test_ledger_has_only_the_critic_steps() -> None:
    made = synthesise(replace(SMALL, multiplier=4.0, steps=3, batch=16))
    (entry,) = made.ledger.entries()
    assert entry.unit == Unit.EXAMPLE and entry.count == 3
    assert entry.event == PoissonSampledDpEvent(16 / 80, GaussianDpEvent(4.0))


@pytest.mark.parametrize("network", ["dcgan", "mlp"])
def test_steps_sample_and_add_noise_as_the_ledger(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    samples = record_calls(monkeypatch, private_gradient, "poisson_sample")
    noises = record_calls(monkeypatch, clipping, "add_noise")
    made = synthesise(replace(SMALL, network=network, multiplier=1.5, steps=2, batch=16))
    (entry,) = made.ledger.entries()
    assert [call.arguments[1] for call in samples] == [entry.event.sampling_probability] * entry.count
    multipliers = [call.arguments[2] for call in noises]
    assert multipliers == [entry.event.event.noise_multiplier, 0.0] * entry.count, "records, then generated images"


def test_paper_settings_have_the_papers_renyi_epsilon() -> None:
    """60,000 records, B = 128, sigma = 1, 450,000 steps: epsilon 10 by Renyi moments."""
    paper = DpGan()
    accountant = RdpAccountant()
    event = PoissonSampledDpEvent(paper.batch / 60_000, GaussianDpEvent(paper.multiplier))
    accountant.compose(SelfComposedDpEvent(event, paper.steps))
    renyi = accountant.get_epsilon(1e-5)
    assert renyi == pytest.approx(10.0, abs=0.1)
    found = account(
        DpSgdParameters(paper.batch / 60_000, paper.steps, paper.multiplier).ledger(), Unit.EXAMPLE, 1e-5
    ).epsilon
    assert 0.85 * renyi < found <= renyi


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
        slow = mechanism(dict(critic.named_parameters()), one, rows, 20, torch.Generator().manual_seed(1))
        rng = torch.Generator().manual_seed(1)
        fast = ghost_gradient(mechanism, critic, lambda logits: F.softplus(-logits), rows, 20, rng)
        assert list(fast) == list(slow)
        for name in slow:
            torch.testing.assert_close(fast[name], slow[name], rtol=1e-4, atol=1e-5)


def test_sum_is_divided_by_expected_batch_size_below_one() -> None:
    total = {"w": torch.ones(1, dtype=torch.float64)}
    mechanism = PrivateGradient(sampling=0.01, multiplier=0.0, clip=1.0)
    assert mechanism.released(total, {"w": torch.zeros(1)}, 20, Noise("cpu", 0))["w"].item() == pytest.approx(5.0)


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.5])
def test_step_noise_has_the_multiplier(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    """What noise does to the first step: N(0, (z C / (2 B))^2) in every weight, B = q n."""
    data, found = toy_private(n=40), []
    for z in (0.0, 3.0):
        with monkeypatch.context() as patch:
            found.append(steps_taken(patch, game(replace(SMALL, clip=0.7), q=0.25, z=z), data)[0])
    noise = torch.cat([(found[1][name] - found[0][name]).flatten() for name in found[0]]).double().numpy()
    p = stats.kstest(noise, stats.norm(0, scale * 3.0 * 0.7 / (2 * 10)).cdf).pvalue
    assert p > 0.01 if scale == 1.0 else p < 1e-6


@pytest.mark.parametrize("network", ["dcgan", "mlp"])
def test_one_record_moves_a_step_by_at_most_the_bound(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    """C / (2 B) with the batch's expected size; all records sampled, n taken as public."""
    images, labels = toy_private(n=8)
    ends = []
    for count in (8, 7):
        monkeypatch.setattr(private_gradient, "poisson_sample", lambda n, q, rng, count=count: torch.arange(count))
        with monkeypatch.context() as patch:
            played = game(replace(SMALL, network=network, clip=0.03), q=0.5, z=0.0)
            taken = steps_taken(patch, played, (images, labels))[0]
        ends.append(torch.cat([g.flatten() for g in taken.values()]))
    assert 0 < float((ends[0] - ends[1]).norm()) <= 0.03 / (2 * 4) * (1 + 1e-4)


@pytest.mark.parametrize("network", ["dcgan", "mlp"])
def test_unsampled_records_have_no_effect(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    """Only the mechanism sees records: with empty batches any data give the same generator, to the last bit."""
    monkeypatch.setattr(private_gradient, "poisson_sample", lambda n, q, rng: torch.zeros(0, dtype=torch.long))
    method = replace(SMALL, network=network, steps=3, average=0.5)
    ends = [synthesise(method, data=(toy_private(seed)[0], toy_private()[1].flip(seed))).generator for seed in (0, 0)]
    other = synthesise(method, data=(255 - toy_private(3)[0], toy_private()[1].flip(0))).generator
    assert all(network is not None for network in (*ends, other))
    assert torch.equal(weights(ends[0]), weights(other))  # type: ignore[arg-type]


def test_samples_and_noise_use_privacy_noise() -> None:
    """With the system's generator two runs differ, both with noise and by their samples only."""
    images, labels = toy_private()
    for z in (0.0, 1.0):
        ends = []
        for _ in range(2):
            played = game(SMALL, q=0.5, z=z, steps=2)
            played.ctx = replace(context(), noise="os")
            played.run(images, F.one_hot(labels, CLASSES).float())
            ends.append(weights(played.generator))
        assert not torch.equal(*ends)


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
    before = weights(played.critic)

    def loss() -> float:
        played.public.manual_seed(3)
        with torch.no_grad():
            return float(F.softplus(-played.critic(*played.make(64))).mean())

    first = loss()
    for _ in range(10):
        played.generator_step(64)
    assert loss() < first
    assert torch.equal(before, weights(played.critic))


def test_generator_step_by_hand() -> None:
    """Adam's first step is the full rate against the sign of the gradient of mean -log sigmoid(D(G(z, y), y))."""
    played = game(replace(SMALL, network="mlp", rate_generator=1e-2), q=1.0, z=0.0)
    with torch.no_grad():
        for p in played.critic.parameters():
            p.mul_(3)
    before = [p.detach().clone() for p in played.generator.parameters()]
    played.public.manual_seed(3)
    loss = -played.critic(*played.make(16)).sigmoid().log().mean()
    wanted = torch.autograd.grad(loss, list(played.generator.parameters()))
    played.public.manual_seed(3)
    saturating = (1 - played.critic(*played.make(16)).sigmoid()).log().mean()
    other = torch.autograd.grad(saturating, list(played.generator.parameters()))
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


@pytest.mark.parametrize("critic", [DcganCritic(SHAPE, CLASSES, 4), MlpCritic(SHAPE, CLASSES, 4)])
def test_critic_does_not_mix_records_and_uses_labels(critic: nn.Module) -> None:
    images, labels = torch.rand(5, *SHAPE), torch.eye(CLASSES)[[0, 1, 2, 3, 0]]
    together = critic(images, labels)
    alone = torch.cat([critic(x[None], y[None]) for x, y in zip(images, labels, strict=True)])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together, critic(images, labels.roll(1, 0)))


def test_generator_uses_the_label() -> None:
    for generator in (DcganGenerator(SHAPE, CLASSES, 4, 4), MlpGenerator(SHAPE, CLASSES, 4, 4)):
        z = torch.randn(1, 4)
        assert not torch.allclose(generator(z, torch.tensor([0])), generator(z, torch.tensor([1])))


def test_unsupported_image_size_is_refused() -> None:
    with pytest.raises(BenchError, match="30x30") as caught:
        build("dcgan", (1, 30, 30), 10, 4, 4, 4)
    assert "\n" not in str(caught.value)
    assert build("mlp", (1, 30, 30), 10, 4, 4, 4)[0](torch.randn(1, 4), torch.tensor([0])).shape == (1, 1, 30, 30)


@pytest.mark.thorough
def test_generator_learns_classes_only_without_noise() -> None:
    """Each toy class is bright in its own corner; counts how often that corner is the brightest."""

    def right(z: float, steps: int) -> float:
        method = replace(
            SMALL, network="mlp", steps=steps, critic_steps=2, batch=80, rate=4e-3, rate_generator=4e-3, width=16,
            critic_width=16, multiplier=z, beta1=0.0,
        )  # fmt: skip
        made = synthesise(method)
        assert made.draw is not None
        with torch.no_grad():
            images, labels = made.draw(80, torch.Generator().manual_seed(0))
        corners = F.avg_pool2d(images, 8).flatten(1)
        return float((corners.argmax(1) == labels).float().mean())

    assert right(0.0, 300) > 0.8
    assert right(300.0, 100) < 0.6


def test_smoke_run_is_reproducible_and_rebuildable() -> None:
    method = configure(DpGan, "smoke", {}, "method")
    toy = Teacher(toy_teacher().model, "datalens", SHAPE, CLASSES, "toy", toy_private())
    ends = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        ends.append(weights(method.convert(toy, "datalens", Budget(10.0), context(seed)).student))
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


def test_private_sample_is_the_shared_function() -> None:
    assert private_gradient.poisson_sample is dp_sgd.poisson_sample
