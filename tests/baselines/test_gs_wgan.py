"""GS-WGAN: the published number, the critic of a record, sanitised gradients, and each step by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import epsilon_of, gaussian_delta, is_normal, record_calls, refused, rng, synthesise
from dp_accounting import GaussianDpEvent
from scipy import stats
from torch import Tensor, nn

from baselines.gs_wgan import gs_wgan
from baselines.gs_wgan.accounting import GsWganParameters, calibrate, make_schedule, published_epsilon
from baselines.gs_wgan.gs_wgan import Critic, GsWgan, bits, sanitise
from baselines.gs_wgan.networks import Block, ProjectionCritic, ResnetGenerator, frozen, pixel_norm
from bench.data.partition import by_hash
from bench.privacy import Budget, Unit
from bench.privacy.accountant import check_budget
from bench.testing import CLASSES, SHAPE, context, toy_private
from bench.testing.toys import same_tensors

SMALL = GsWgan(
    mode="certified", steps=6, critics=3, critic_steps=1, batch=4, width=2, critic_width=2, warm=0, latent=4, sigma=1.0
)
PAPER = GsWganParameters(make_schedule(1000, 20_000, None), 20_000, 32, 1000, 1.07, "batch")


@pytest.mark.parametrize(("sigma", "batch", "critics"), [(1.07, 32, 1000), (3.0, 4, 10), (0.8, 1, 100), (2.0, 2, 2)])
def test_published_bound_term_by_term(sigma: float, batch: int, critics: int) -> None:
    """Wang, Balle, Kasiviswanathan, Theorem 9 for a Gaussian, in plain floats over orders up to 20."""
    steps, delta, g, unit = 50, 1e-5, 1 / critics, 1 / (2 * sigma**2)
    best = math.inf
    for a in range(2, 21):
        total = 1 + g**2 * math.comb(a, 2) * min(4 * (math.exp(2 * unit) - 1), 2 * math.exp(2 * unit))
        total += sum(2 * g**j * math.comb(a, j) * math.exp((j - 1) * j * unit) for j in range(3, a + 1))
        rho = min(math.log(total) / (a - 1), a * unit)
        best = min(best, steps * batch * rho + math.log(1 / delta) / (a - 1))
    found = published_epsilon(sigma, steps, batch, critics, delta)
    assert found <= best * (1 + 1e-9)
    if best > 1.0:
        assert found == pytest.approx(best, rel=1e-6)


def test_published_epsilon_matches_the_paper_and_is_monotone() -> None:
    """The paper says 10 for T = 20,000, B = 32, K = 1000, sigma = 1.07, delta = 1e-5."""
    assert published_epsilon(1.07, 20_000, 32, 1000, 1e-5) == pytest.approx(9.99, abs=0.01)
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
    found = epsilon_of(plan.ledger())
    assert found == pytest.approx(expected, abs=0.03)
    assert gaussian_delta(found, math.sqrt(math.ceil(steps / 1000)) / 2.24) == pytest.approx(1e-5, rel=1e-3)


def test_published_mode_charges_the_most_used_critic() -> None:
    plan = replace(PAPER, schedule=make_schedule(1000, 20_000, rng()), clipping="image")
    (entry,) = plan.ledger().entries()
    assert entry.event == GaussianDpEvent(1.07 / math.sqrt(32))
    counts = torch.bincount(plan.schedule[:20_000], minlength=1000)
    assert entry.count == int(counts.max()) > 20
    assert stats.chisquare(counts.numpy()).pvalue > 0.01
    assert epsilon_of(plan.ledger()) > 300 > 10 * plan.claim(1e-5).epsilon


def test_cyclic_schedule_uses_critics_equally() -> None:
    assert make_schedule(3, 7, None)[:7].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert [replace(PAPER, steps=t).uses for t in (1, 1000, 1001, 20_000)] == [1, 1, 2, 20]


def rows(seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(4, 1, 5, 5, generator=rng(seed))


@pytest.mark.parametrize("clipping", ["batch", "image"])
def test_worst_critics_differ_by_the_multiplier(clipping: Any) -> None:
    """Opposite huge gradients in all images: distance over deviation = 1 / multiplier; random ones are nearer."""
    plan = GsWganParameters(make_schedule(2, 2, None), 2, 4, 2, 1.5, clipping)
    deviation = 2 * 0.3 * 1.5

    def apart(a: Tensor, b: Tensor) -> float:
        clean = [sanitise(x, 0.3, 0.0, clipping, rng()) for x in (a, b)]
        return float((clean[0] - clean[1]).norm()) / deviation

    assert apart(rows(0, 1e6), -rows(0, 1e6)) == pytest.approx(1 / plan.multiplier, rel=1e-5)
    for seed in range(5):
        for scale in (1e-3, 1.0, 1e20):
            assert apart(rows(seed, scale), rows(seed + 50)) <= 1 / plan.multiplier * (1 + 1e-5)


@pytest.mark.parametrize("clipping", ["batch", "image"])
def test_clipping_keeps_small_and_drops_broken_gradients(clipping: Any) -> None:
    torch.testing.assert_close(sanitise(rows(0, 1e-4), 1.0, 0.0, clipping, rng()), rows(0, 1e-4))
    for value in (math.nan, math.inf):
        broken = rows(0, 1e-4)
        broken[0, 0, 0, 0] = value
        clean = sanitise(broken, 1.0, 0.0, clipping, rng())
        assert not clean[0].any() and (clipping == "batch") == (not clean[1].any())


@pytest.mark.parametrize("clipping", ["batch", "image"])
def test_noise_is_two_c_sigma_in_every_pixel(clipping: Any) -> None:
    assert is_normal(sanitise(torch.zeros(32, 1, 12, 12), 0.3, 1.5, clipping, rng(1)), 2 * 0.3 * 1.5)


def constant(gradients: Tensor, *given: Any) -> Tensor:
    return torch.linspace(-1, 1, gradients.numel()).view(gradients.shape)


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
    few = images[:3].clone().fill_(9), labels[:3]  # equal records are all with one critic; the others have none
    made = [synthesise(method, private=of) for of in ((images, labels), (255 - images, labels.flip(0)), few)]
    full, other, little = (list(one.generator.state_dict().values()) for one in made)  # type: ignore[union-attr]
    assert same_tensors(full, other) and same_tensors(full, little)


def gradients_seen(monkeypatch: pytest.MonkeyPatch, method: GsWgan, data: tuple[Tensor, Tensor]) -> list[Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(gs_wgan, "sanitise", constant)
        calls = record_calls(patch, gs_wgan, "sanitise")
        patch.setattr(gs_wgan, "derive", lambda seed, name: 5)
        patch.setattr(Critic, "learn", deterministic)
        synthesise(method, private=data)
    return [call.arguments[0] for call in calls]


def deterministic(self: Critic, generator: nn.Module) -> None:
    """A critic's step that leaves the random numbers of other critics as they are."""
    if len(self.images):
        loss = -self.network(self.images, self.labels).mean()
        gs_wgan.descend(self.optimiser, loss)


def test_record_is_in_gradients_of_one_critic(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = toy_private()
    (owner,) = (k for k, part in enumerate(by_hash(images, 3, 5)) if 79 in part)
    first, without = (gradients_seen(monkeypatch, replace(SMALL, steps=7), (images[:n], labels[:n])) for n in (80, 79))
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
    published = (published_epsilon(1.0, 8, 4, 3, 1e-5), "per-image-composition")
    expected = (epsilon_of(made.ledger), "") if clipping == "batch" else published
    assert (made.claim.epsilon, made.claim.disputed, made.claim.unit) == (*expected, Unit.EXAMPLE)


def test_schedule_is_independent_of_the_data() -> None:
    """Also in the paper's mode it is drawn from a separate generator."""
    method = replace(SMALL, mode="published")
    first, again, other = (method.parameters(context(seed)).schedule for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(("mode", "clipping"), [("certified", "batch"), ("certified", "image"), ("published", "image")])
@pytest.mark.parametrize("account", ["claimed", "accounted"])
def test_budget_determines_the_noise_by_its_account(mode: Any, clipping: Any, account: Any) -> None:
    budget = Budget(3.0, account=account)
    plan = calibrate(replace(SMALL, mode=mode, clipping=clipping, steps=30).parameters(context()), budget)
    spent = {"claimed": plan.claim(1e-5).epsilon, "accounted": epsilon_of(plan.ledger())}
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
    z, y = bits(3, 4, rng()), torch.tensor([0, 1, 2])
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
    by = replace(SMALL, batch=16, rate=1e-3, **given)
    return Critic(by, ProjectionCritic(SHAPE, CLASSES, 4), (images.float() / 255, labels), rng())


def test_critic_learns_to_separate_real_from_generated() -> None:
    critic = critic_of(*toy_private())
    generator = ResnetGenerator(SHAPE, CLASSES, 4, 2).eval()

    def advantage() -> float:
        with torch.no_grad():
            fake = generator(bits(80, 4, rng()), critic.labels)
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
    """20 steps of the generator with a constant critic."""
    critic, generator = critic_of(*toy_private(), warm=20, critic_steps=2), ResnetGenerator(SHAPE, CLASSES, 4, 2)
    calls: list[int] = []
    monkeypatch.setattr(critic, "learn", lambda generator: calls.append(1))

    def score() -> float:
        labels = torch.arange(60) % CLASSES
        with torch.no_grad():
            return float(critic.network(generator(bits(60, 4, rng()), labels), labels).mean())

    first = score()
    critic.warm(generator, CLASSES)
    assert len(calls) == 40 and score() > first + 1e-3


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


def test_too_many_critics_or_steps_are_refused() -> None:
    with refused("81"):
        synthesise(replace(SMALL, critics=81))
    with refused("--solve steps"):
        synthesise(replace(SMALL, sigma=0.01), Budget(1.0, solve="steps"))


class Bright(nn.Module):
    """A critic that adds brightness and label."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.weight * (x.mean((1, 2, 3)) + y)


def shades(z: Tensor, y: Tensor) -> Tensor:
    """A generator of one shade for each label."""
    return (0.5 + 0.1 * y)[:, None, None, None].expand(-1, *SHAPE)


def learning(monkeypatch: pytest.MonkeyPatch, records: int, steps: int, batch: int) -> tuple[list[Any], list[Any]]:
    """Losses of a critic on single-shade records, number i of shade i / 100, and the batches that it distinguished."""
    monkeypatch.setattr(gs_wgan, "gradient_penalty", lambda *given: torch.tensor(0.25))
    monkeypatch.setattr(gs_wgan, "descend", lambda *given: None)
    between, losses = (
        record_calls(monkeypatch, gs_wgan, "gradient_penalty"),
        record_calls(monkeypatch, gs_wgan, "descend"),
    )
    images = (torch.arange(records) / 100)[:, None, None, None].expand(-1, *SHAPE)
    critic = Critic(replace(SMALL, batch=batch), Bright(), (images, torch.arange(records) % CLASSES), rng())
    for _ in range(steps):
        critic.learn(shades)  # type: ignore[arg-type]
    return [call.arguments[1].detach() for call in losses], [call.arguments[1:3] for call in between]


def test_critic_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """mean f(x~, y) - mean f(x, y) + lambda / 4 + 0.001 mean f(x, y)^2, lambda = 10; x~ are of the records' labels."""
    (loss,), ((real, fake),) = learning(monkeypatch, records=8, steps=1, batch=6)
    shade = real[:, 0, 0, 0]
    y = (100 * shade).round() % CLASSES
    assert len(y) == 6 and len(y.unique()) > 1
    torch.testing.assert_close(fake[:, 0, 0, 0], 0.5 + 0.1 * y)
    of_real, of_fake = shade + y, 0.5 + 0.1 * y + y
    expected = of_fake.mean() - of_real.mean() + 10 * 0.25 + 0.001 * of_real.square().mean()
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_critic_draws_from_all_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    _, between = learning(monkeypatch, records=12, steps=40, batch=4)
    assert len(torch.cat([real[:, 0, 0, 0] for real, _ in between]).unique()) == 12


def test_records_keep_labels_and_critics_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three critics is made once, for all of its turns, of records with the labels that they came with."""
    made, used = record_calls(monkeypatch, Critic, "__init__"), record_calls(monkeypatch, gs_wgan.Training, "critic")
    synthesise(SMALL)
    assert len(made) == 3 and len({(call.arguments[1], id(call.result)) for call in used}) == 3
    images, labels = toy_private()
    label_of = {image.numpy().tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    for critic in (call.arguments[0] for call in made):
        pixels = (critic.images * 255).round().to(torch.uint8)
        assert [label_of[image.numpy().tobytes()] for image in pixels] == critic.labels.tolist()


def test_generator_descends_sanitised_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss is (1 / B) sum_i <x~_i, g_i>, whose gradient in theta is (1 / B) sum_i J_i^T g_i."""
    monkeypatch.setattr(Critic, "learn", lambda critic, generator: None)
    monkeypatch.setattr(Critic, "gradients", lambda critic, images, y: torch.zeros_like(images))
    monkeypatch.setattr(gs_wgan, "sanitise", lambda found, *given: torch.full_like(found, 0.5))
    monkeypatch.setattr(gs_wgan, "descend", lambda optimiser, loss: None)
    made, losses = record_calls(monkeypatch, Critic, "gradients"), record_calls(monkeypatch, gs_wgan, "descend")
    synthesise(replace(SMALL, steps=12))
    expected = [0.5 * float(call.arguments[1].detach().sum()) / 4 for call in made]
    assert [float(call.arguments[1].detach()) for call in losses] == pytest.approx(expected, rel=1e-5)
    assert torch.cat([call.arguments[2] for call in made]).unique().tolist() == list(range(CLASSES))


def test_average_begins_after_the_first_step() -> None:
    """After one step the average is that step's weights, after two steps it differs from the last ones."""
    for steps, same in ((1, True), (2, False)):
        made = [synthesise(replace(SMALL, steps=steps, average=decay)).generator for decay in (0.5, 0.0)]
        pairs = zip(*(network.state_dict().values() for network in made), strict=True)  # type: ignore[union-attr]
        assert all(torch.allclose(averaged, last, atol=1e-6) for averaged, last in pairs) == same


def test_critic_projection_by_hand() -> None:
    """w h(x) + <embedding of y, h(x)>."""
    torch.manual_seed(0)
    critic, x, y = ProjectionCritic(SHAPE, CLASSES, 2).eval(), torch.rand(3, *SHAPE), torch.tensor([2, 0, 3])
    h = x
    for layer in critic.layers:
        h = F.relu(layer(h))
    h = h.flatten(1)
    pairs = zip(critic.plain(h)[:, 0], critic.of_label(y), h, strict=True)
    expected = torch.stack([plain + of_label @ row for plain, of_label, row in pairs])
    torch.testing.assert_close(critic(x, y), expected)


def test_block_shortcut_keeps_its_scale() -> None:
    """Ten times the map: the inner path is normalised and stays, the path around it is ten times as large."""
    torch.manual_seed(0)
    block, x = Block(4).eval(), torch.randn(2, 4, 5, 5)

    def doubled(of: Tensor) -> Tensor:
        return of.repeat_interleave(2, 2).repeat_interleave(2, 3)

    inner = block.second(F.relu(pixel_norm(block.first(doubled(pixel_norm(x))))))
    for size in (1.0, 10.0):
        torch.testing.assert_close(block(size * x), inner + block.around(doubled(size * x)), rtol=1e-4, atol=1e-5)
