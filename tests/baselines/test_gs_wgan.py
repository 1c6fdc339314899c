"""GS-WGAN: the published number, the critic of a record, and that only sanitised gradients leave a critic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_runs import FREE, record_calls
from dp_accounting import GaussianDpEvent
from scipy import stats
from torch import Tensor, nn

from baselines.gs_wgan import gs_wgan
from baselines.gs_wgan.accounting import GsWganParameters, calibrate, make_schedule, published_epsilon
from baselines.gs_wgan.gs_wgan import Critic, GsWgan, bits, sanitise
from baselines.gs_wgan.networks import ProjectionCritic, ResnetGenerator, frozen
from bench.data.partition import by_hash
from bench.dp_training.synthetic_data import Synthesis
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account, check_budget
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

SMALL = GsWgan(
    mode="certified", steps=6, critics=3, critic_steps=1, batch=4, width=2, critic_width=2, warm=0, latent=4, sigma=1.0
)
PAPER = GsWganParameters(make_schedule(1000, 20_000, None), 20_000, 32, 1000, 1.07, "batch")


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang (2018): Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))


def synthesise(method: GsWgan, data: tuple[Tensor, Tensor] | None = None, budget: Budget = FREE) -> Synthesis:
    torch.manual_seed(0)
    images, labels = data or toy_private()
    return method.synthesise(images, labels, toy_teacher(), budget, context())


def accounted(plan: GsWganParameters) -> float:
    return account(plan.ledger(), Unit.EXAMPLE, 1e-5).epsilon


def test_published_epsilon_matches_the_paper() -> None:
    """The paper says 10 for T = 20,000, B = 32, K = 1000, sigma = 1.07, delta = 1e-5."""
    assert published_epsilon(1.07, 20_000, 32, 1000, 1e-5) == pytest.approx(9.99, abs=0.01)
    paper = GsWgan()
    given = (paper.sigma, paper.steps, paper.batch, paper.critics)
    assert given == (1.07, 20_000, 32, 1000)


@pytest.mark.parametrize(("sigma", "batch", "critics"), [(1.07, 32, 1000), (3.0, 4, 10), (0.8, 1, 100), (2.0, 2, 2)])
def test_published_bound_term_by_term(sigma: float, batch: int, critics: int) -> None:
    """Wang, Balle, Kasiviswanathan, Theorem 9 for a Gaussian, in plain floats over orders up to 20."""
    steps, delta, g = 50, 1e-5, 1 / critics

    def renyi(j: int) -> float:
        return j / (2 * sigma**2)

    best = math.inf
    for a in range(2, 21):
        total = 1 + g**2 * math.comb(a, 2) * min(4 * (math.exp(renyi(2)) - 1), 2 * math.exp(renyi(2)))
        total += sum(2 * g**j * math.comb(a, j) * math.exp((j - 1) * renyi(j)) for j in range(3, a + 1))
        rho = min(math.log(total) / (a - 1), renyi(a))
        best = min(best, steps * batch * rho + math.log(1 / delta) / (a - 1))
    found = published_epsilon(sigma, steps, batch, critics, delta)
    assert found <= best * (1 + 1e-9)
    if best > 1.0:
        assert found == pytest.approx(best, rel=1e-6)


def test_published_epsilon_is_monotone() -> None:
    base = published_epsilon(2.0, 1000, 8, 100, 1e-5)
    assert published_epsilon(2.1, 1000, 8, 100, 1e-5) < base < published_epsilon(1.9, 1000, 8, 100, 1e-5)
    assert base < published_epsilon(2.0, 2000, 8, 100, 1e-5)
    assert base == published_epsilon(2.0, 500, 16, 100, 1e-5)
    assert base < published_epsilon(2.0, 1000, 8, 50, 1e-5) < published_epsilon(2.0, 1000, 8, 1, 1e-5)
    assert math.isinf(published_epsilon(0.0, 1, 1, 10, 1e-5))


@pytest.mark.parametrize(
    ("clipping", "sigma", "steps", "expected"),
    [("batch", 2.24, 20_000, 9.98), ("image", 2.24 * math.sqrt(32), 20_000, 9.98), ("batch", 2.24, 20_001, 10.27)],
)
def test_cyclic_schedule_charges_the_critics_steps(clipping: Any, sigma: float, steps: int, expected: float) -> None:
    """mu^2 = ceil(T / K) over the joint multiplier squared, by the closed form; a turn more counts as a whole one."""
    plan = replace(PAPER, sigma=sigma, steps=steps, clipping=clipping)
    found = accounted(plan)
    assert found == pytest.approx(expected, abs=0.03)
    assert gaussian_delta(found, math.sqrt(math.ceil(steps / 1000)) / 2.24) == pytest.approx(1e-5, rel=1e-3)


def test_published_mode_charges_the_most_used_critic() -> None:
    rng = torch.Generator().manual_seed(0)
    plan = replace(PAPER, schedule=make_schedule(1000, 20_000, rng), clipping="image")
    (entry,) = plan.ledger().entries()
    assert entry.event == GaussianDpEvent(1.07 / math.sqrt(32))
    counts = torch.bincount(plan.schedule[:20_000], minlength=1000)
    assert entry.count == int(counts.max()) > 20
    assert stats.chisquare(counts.numpy()).pvalue > 0.01
    assert accounted(plan) > 300 > 10 * plan.claim(1e-5).epsilon


def test_cyclic_schedule_uses_critics_equally() -> None:
    assert make_schedule(3, 7, None)[:7].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert [replace(PAPER, steps=t).uses for t in (1, 1000, 1001, 20_000)] == [1, 1, 2, 20]


def rows(seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(4, 1, 5, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("clipping", ["batch", "image"])
def test_worst_critics_differ_by_the_multiplier(clipping: Any) -> None:
    """Opposite huge gradients in all images: distance over deviation = 1 / multiplier; random ones are nearer."""
    rng = torch.Generator()
    plan = GsWganParameters(make_schedule(2, 2, None), 2, 4, 2, 1.5, clipping)
    deviation = 2 * 0.3 * 1.5

    def apart(a: Tensor, b: Tensor) -> float:
        clean = [sanitise(x, 0.3, 0.0, clipping, rng) for x in (a, b)]
        return float((clean[0] - clean[1]).norm()) / deviation

    assert apart(rows(0, 1e6), -rows(0, 1e6)) == pytest.approx(1 / plan.multiplier, rel=1e-5)
    for seed in range(5):
        for scale in (1e-3, 1.0, 1e20):
            assert apart(rows(seed, scale), rows(seed + 50)) <= 1 / plan.multiplier * (1 + 1e-5)


@pytest.mark.parametrize("clipping", ["batch", "image"])
def test_clipping_keeps_small_and_drops_broken_gradients(clipping: Any) -> None:
    rng = torch.Generator()
    small = rows(0, 1e-4)
    torch.testing.assert_close(sanitise(small, 1.0, 0.0, clipping, rng), small)
    for value in (math.nan, math.inf):
        broken = rows(0, 1e-4)
        broken[0, 0, 0, 0] = value
        clean = sanitise(broken, 1.0, 0.0, clipping, rng)
        assert not clean[0].any() and (clipping == "batch") == (not clean[1].any())


@pytest.mark.parametrize("scale", [1.0, 0.5, 2.0])
def test_noise_is_two_c_sigma_in_every_pixel(scale: float) -> None:
    for clipping in ("batch", "image"):
        noise = sanitise(torch.zeros(32, 1, 12, 12), 0.3, 1.5, clipping, torch.Generator().manual_seed(1))  # type: ignore[arg-type]
        p = stats.kstest(noise.double().flatten().numpy(), stats.norm(0, scale * 2 * 0.3 * 1.5).cdf).pvalue
        assert p > 0.01 if scale == 1.0 else p < 1e-6


def constant(gradients: Tensor, *given: Any) -> Tensor:
    """Instead of `sanitise`: something that no critic had a part in."""
    return torch.linspace(-1, 1, gradients.numel()).view(gradients.shape)


def state(network: nn.Module | None) -> Tensor:
    assert network is not None
    return torch.cat([value.detach().flatten() for value in network.state_dict().values()])


@pytest.mark.thorough
@pytest.mark.parametrize("generator", ["resnet", "dcgan"])
@pytest.mark.parametrize("warm", [0, 1])
def test_release_depends_only_on_sanitised_gradients(
    monkeypatch: pytest.MonkeyPatch, generator: Any, warm: int
) -> None:
    """Without them the released generator is the same, bit by bit, for other data and for critics without records."""
    monkeypatch.setattr(gs_wgan, "sanitise", constant)
    method = replace(SMALL, generator=generator, warm=warm, critic_steps=1, steps=4)
    images, labels = toy_private()
    full = state(synthesise(method, (images, labels)).generator)
    other = state(synthesise(method, (255 - images, labels.flip(0))).generator)
    few = state(synthesise(method, (images[:3].clone().fill_(9), labels[:3])).generator)
    assert torch.equal(full, other)
    assert torch.equal(full, few), "three equal records are all with one critic; the others have none"


def gradients_seen(monkeypatch: pytest.MonkeyPatch, method: GsWgan, data: tuple[Tensor, Tensor]) -> list[Tensor]:
    seen: list[Tensor] = []

    def spy(gradients: Tensor, *given: Any) -> Tensor:
        seen.append(gradients.clone())
        return constant(gradients)

    monkeypatch.setattr(gs_wgan, "sanitise", spy)
    monkeypatch.setattr(gs_wgan, "derive", lambda seed, name: 5)
    monkeypatch.setattr(Critic, "learn", deterministic)
    synthesise(method, data)
    return seen


def deterministic(self: Critic, generator: nn.Module) -> None:
    """A critic's step that leaves the random numbers of other critics as they are."""
    if len(self.images):
        loss = -self.network(self.images, self.labels).mean()
        gs_wgan.descend(self.optimiser, loss)


def test_record_is_in_gradients_of_one_critic(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = toy_private()
    (owner,) = (k for k, part in enumerate(by_hash(images, 3, 5)) if 79 in part)
    method = replace(SMALL, steps=7)
    with monkeypatch.context() as patch:
        first = gradients_seen(patch, method, (images, labels))
    with monkeypatch.context() as patch:
        without = gradients_seen(patch, method, (images[:79], labels[:79]))
    moved = [k % 3 for k, (a, b) in enumerate(zip(first, without, strict=True)) if not torch.equal(a, b)]
    plan = replace(PAPER, schedule=make_schedule(3, 7, None), steps=7, critics=3)
    assert set(moved) == {owner} and len(moved) == 7 // 3 + (owner == 0) <= plan.uses


@pytest.mark.parametrize(("mode", "clipping"), [("certified", "batch"), ("certified", "image"), ("published", "image")])
def test_added_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch, mode: Any, clipping: Any) -> None:
    sanitised = record_calls(monkeypatch, gs_wgan, "sanitise")
    critics = record_calls(monkeypatch, gs_wgan.Training, "critic")
    made = synthesise(replace(SMALL, mode=mode, clipping=clipping, clip=0.5, steps=8))
    (entry,) = made.ledger.entries()
    assert [call.arguments[1:4] for call in sanitised] == [(0.5, 1.0, clipping)] * 8
    used = [call.arguments[1] for call in critics]
    assert entry.count == max(used.count(k) for k in range(3))
    assert entry.event.noise_multiplier == (0.5 if clipping == "image" else 1.0), "sqrt(B) = 2"
    proved = account(made.ledger, Unit.EXAMPLE, 1e-5).epsilon
    claim = (made.claim.epsilon, made.claim.disputed)
    assert made.claim.unit == Unit.EXAMPLE
    if clipping == "batch":
        assert claim == (proved, "")
    else:
        assert claim == (published_epsilon(1.0, 8, 4, 3, 1e-5), "per-image-composition")


def test_schedule_is_independent_of_the_data() -> None:
    """Also in the paper's mode it is drawn from a separate generator."""
    first, again = (replace(SMALL, mode="published").parameters(context()).schedule for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, replace(SMALL, mode="published").parameters(context(1)).schedule)


@pytest.mark.parametrize(("mode", "clipping"), [("certified", "batch"), ("certified", "image"), ("published", "image")])
@pytest.mark.parametrize("account", ["claimed", "accounted"])
def test_budget_determines_the_noise_by_its_account(mode: Any, clipping: Any, account: Any) -> None:
    budget = Budget(3.0, account=account)
    plan = calibrate(replace(SMALL, mode=mode, clipping=clipping, steps=30).parameters(context()), budget)
    spent = {"claimed": plan.claim(1e-5).epsilon, "accounted": accounted(plan)}
    assert 0.97 * 3 < spent[account] <= 3
    assert (abs(spent["claimed"] / spent["accounted"] - 1) > 0.1) == (clipping == "image")
    check_budget(plan.ledger(), plan.claim(1e-5), budget)


@pytest.mark.parametrize("mode", ["certified", "published"])
def test_budget_determines_the_steps(mode: Any) -> None:
    for against in ("claimed", "accounted"):
        budget = Budget(6.0, solve="steps", account=against)  # type: ignore[arg-type]
        plan = calibrate(replace(SMALL, mode=mode, sigma=6.0).parameters(context()), budget)
        assert plan.cost(budget) <= 6.0 < replace(plan, steps=plan.steps + 1).cost(budget)


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (3, 32, 32), (1, 10, 14)])
def test_networks_fit_all_sizes_without_mixing_images(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    generator, critic = ResnetGenerator(shape, 3, 4, 2).eval(), ProjectionCritic(shape, 3, 2).eval()
    z, y = bits(3, 4, torch.Generator()), torch.tensor([0, 1, 2])
    images = generator(z, y).detach()
    assert images.shape == (3, *shape) and 0 <= float(images.min()) <= float(images.max()) <= 1
    scores = critic(images, y)
    torch.testing.assert_close(scores[1:2], critic(images[1:2], y[1:2]))
    assert not torch.allclose(scores, critic(images, y.roll(1)))
    assert not torch.allclose(images, generator(z, y.roll(1)))


def test_released_generator_has_plain_weights() -> None:
    generator = ResnetGenerator(SHAPE, CLASSES, 4, 2).eval()
    z, y = bits(3, 4, torch.Generator()), torch.tensor([0, 1, 2])
    before = generator(z, y)
    torch.testing.assert_close(frozen(generator)(z, y), before)
    assert not any("parametrizations" in name for name in generator.state_dict())


def critic_of(images: Tensor, labels: Tensor, **given: Any) -> Critic:
    torch.manual_seed(0)
    network = ProjectionCritic(SHAPE, CLASSES, 4)
    by = replace(SMALL, batch=16, rate=1e-3, **given)
    return Critic(by, network, (images.float() / 255, labels), torch.Generator().manual_seed(0))


def test_critic_learns_to_separate_real_from_generated() -> None:
    critic = critic_of(*toy_private())
    generator = ResnetGenerator(SHAPE, CLASSES, 4, 2).eval()

    def advantage() -> float:
        rng = torch.Generator().manual_seed(0)
        with torch.no_grad():
            fake = generator(bits(80, 4, rng), critic.labels)
            return float((critic.network(critic.images, critic.labels) - critic.network(fake, critic.labels)).mean())

    first = advantage()
    for _ in range(15):
        critic.learn(generator)
    assert advantage() > first + 0.05


def test_critic_takes_n_dis_steps_before_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[int] = []
    monkeypatch.setattr(Critic, "learn", lambda critic, generator: learnt.append(len(critic.images)))
    synthesise(replace(SMALL, critic_steps=3, steps=6))
    assert len(learnt) == 18 and learnt[:3] == [learnt[0]] * 3 and learnt[:9] == learnt[9:], "three critics in turn"


@pytest.mark.thorough
def test_warm_up_generator_raises_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return 20 steps of the generator with a constant critic."""
    critic = critic_of(*toy_private(), warm=20, critic_steps=2)
    calls: list[int] = []
    monkeypatch.setattr(critic, "learn", lambda generator: calls.append(1))
    generator = ResnetGenerator(SHAPE, CLASSES, 4, 2)

    def score() -> float:
        rng, labels = torch.Generator().manual_seed(0), torch.arange(60) % CLASSES
        with torch.no_grad():
            return float(critic.network(generator(bits(60, 4, rng), labels), labels).mean())

    first = score()
    critic.warm(generator, CLASSES)
    assert len(calls) == 40
    assert score() > first + 1e-3


def test_image_gradients_are_of_minus_the_score() -> None:
    critic = critic_of(*toy_private())
    critic.network.eval()
    made, labels = torch.rand(2, *SHAPE), torch.tensor([1, 2])
    found = critic.gradients(made, labels)
    nudged = made.clone()
    nudged[1, 0, 8, 8] += 1e-2
    with torch.no_grad():
        change = critic.network(made, labels) - critic.network(nudged, labels)
    assert float(change[0]) == pytest.approx(0, abs=1e-7)
    assert float(change[1]) == pytest.approx(float(found[1, 0, 8, 8]) * 1e-2, rel=0.05, abs=1e-7)


@pytest.mark.parametrize(
    ("method", "budget", "named"),
    [
        (replace(SMALL, critics=81), FREE, "81"),
        (replace(SMALL, sigma=0.01), Budget(1.0, solve="steps"), "--solve steps"),
    ],
)
def test_too_many_critics_or_steps_are_refused(method: GsWgan, budget: Budget, named: str) -> None:
    with pytest.raises(BenchError, match=named) as caught:
        synthesise(method, budget=budget)
    assert "\n" not in str(caught.value)
