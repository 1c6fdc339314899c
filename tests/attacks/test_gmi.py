from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.gmi import Gmi, _images_and_scores, best_draws, diversity, mismatch, search_loss
from bench import config, registry, testing
from bench.api import AccessDenied, Advance, Attack, Context, Target, Tensors
from bench.config import configure
from bench.data import corrupted
from bench.errors import BenchError

SHAPE = (1, 8, 8)
TINY = {"gan_steps": 2, "gan_batch": 4, "latent": 6, "width": 2, "iterations": 4, "draws": 2, "images_per_class": 3}


class Shelf:
    """Artifacts in memory; `made` lists the keys that had to be made."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.kept: dict[str, Tensors] = {}

    def get(self, kind: str, key: dict[str, Any], make: Callable[[], Tensors]) -> Tensors:
        place = f"{kind} {sorted(key.items())}"
        if place not in self.kept:
            self.made.append(key)
            self.kept[place] = {name: tensor.clone() for name, tensor in make().items()}
        return self.kept[place]


class Quadrants(nn.Module):
    """Four classes: which quadrant is bright. `offset` shifts all logits."""

    def __init__(self, offset: float = 0.0) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return 8 * nn.functional.avg_pool2d(x, 4).flatten(1) + self.offset


class Linear(nn.Module):
    """A smooth generator that remembers the largest |z| it was given."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(latent, 64).requires_grad_(False)
        self.seen: list[float] = []

    def forward(self, z: Tensor) -> Tensor:
        self.seen.append(float(z.detach().abs().max()))
        return self.body(z).sigmoid().view(-1, *SHAPE)


class Brightness(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).mean(1)


def context(shelf: Shelf | None = None, seed: int = 0, autocast: bool = False) -> Context:
    @contextmanager
    def track(stage: str, total: int) -> Iterator[Advance]:
        count = [0]

        def advance(n: int) -> None:
            count[0] += n

        yield advance
        assert count[0] == total, stage

    return Context(torch.device("cpu"), seed, track, shelf or Shelf(), autocast=autocast)


def target(offset: float = 0.0) -> Target:
    return Target(Quadrants(offset).eval(), "weights", SHAPE, 4)


def quadrant_images(n: int = 32) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    corners = nn.functional.one_hot(torch.arange(n) % 4, 4).float().view(n, 1, 2, 2)
    return (
        nn.functional.interpolate(corners, scale_factor=4) * 0.8 + 0.2 * torch.rand(n, *SHAPE, generator=rng)
    ).clamp(0, 1)


@pytest.fixture
def smooth(monkeypatch: pytest.MonkeyPatch) -> Linear:
    generator = Linear(6)
    monkeypatch.setattr(Gmi, "gan", lambda *_: (generator, Brightness()))
    return generator


AUX = quadrant_images()


def test_is_an_attack_that_the_harness_finds() -> None:
    assert registry.load("attack", "gmi") is Gmi
    assert isinstance(Gmi(), Attack)
    assert registry.find("attack", "gmi").summary.startswith("GMI")
    assert all(option.help for option in config.options(Gmi))


@pytest.mark.parametrize("tier", config.TIERS)
def test_every_tier_is_valid_and_applies_to_small_digits(tier: str) -> None:
    attack = config.configure(Gmi, tier, {}, "attack")
    assert attack.skip_reason((1, 16, 16), 10, 239) is None


def test_defaults_are_the_papers() -> None:
    paper = Gmi()
    assert (paper.iterations, paper.lr, paper.momentum, paper.identity_weight, paper.ref_batch) == (
        1500,
        0.01,
        0.9,
        100,
        5,
    )
    assert (paper.gan_lr, paper.gan_batch, paper.n_critic, paper.penalty, paper.latent) == (2e-4, 64, 5, 10, 100)


@pytest.mark.parametrize(
    ("shape", "aux", "reason"),
    [((1, 30, 30), 1000, "30x30 pixels"), ((3, 224, 224), 1000, "224x224"), ((1, 28, 28), 127, "at least 128")],
)
def test_says_why_it_does_not_apply(shape: tuple[int, int, int], aux: int, reason: str) -> None:
    assert reason in (Gmi().skip_reason(shape, 10, aux) or "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("draws", "0"),
        ("lr", "0"),
        ("latent_clip", "-1"),
        ("momentum", "1"),
        ("penalty", "-1"),
        ("ref_batch", "0"),
        ("gan_batch", "1"),
    ],
)
def test_refuses_impossible_options(name: str, text: str) -> None:
    with pytest.raises(BenchError, match=name):
        config.configure(Gmi, "paper", {name: text}, "attack", "printed")


def test_search_loss_by_hand() -> None:
    realism, labels = torch.tensor([2.0, -0.5]), torch.tensor([1, 0])
    logits = torch.tensor([[0.0, 0.0], [1.0, 1.0 + torch.log(torch.tensor(3.0))]])
    expected = -1.5 + 10 * (torch.log(torch.tensor(2.0)) + torch.log(torch.tensor(4.0)))
    assert search_loss(realism, logits, labels, 10.0).item() == pytest.approx(expected.item())


def test_z_is_inside_the_clamp_whenever_the_generator_is_evaluated(smooth: Linear) -> None:
    Gmi(**TINY, lr=5.0, latent_clip=0.7).run(target(), AUX, context())
    assert len(smooth.seen) == TINY["iterations"] + 1
    assert max(smooth.seen) == pytest.approx(0.7)


def test_score_is_the_logit_of_the_images_own_class() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.arange(12.0).view(3, 4) - 100

    _, scores = _images_and_scores(
        torch.zeros(3, 6), torch.tensor([2, 0, 3]), Linear(6), Target(Fixed(), "weights", SHAPE, 4)
    )
    assert scores.tolist() == [2 - 100, 4 - 100, 11 - 100]


def test_best_draws_by_hand() -> None:
    scores = torch.tensor([[-5.0, -1.0, 3.0], [-2.0, -9.0, 4.0]])
    assert best_draws(scores).tolist() == [3, 1, 5]


@pytest.mark.parametrize("offset", [0.0, -1000.0])
def test_the_best_draw_is_kept_even_if_all_logits_are_negative(smooth: Linear, offset: float) -> None:
    every = Gmi(**TINY).run(target(offset), AUX, context())
    best = Gmi(**TINY, keep_best=True).run(target(offset), AUX, context())
    assert len(best.images) == 4 * TINY["images_per_class"]
    scores = target(offset).logits(every.images).gather(1, every.targets[:, None]).view(2, -1)
    assert (scores.max() < 0) == (offset < 0)
    assert torch.equal(best.draws, scores.argmax(0))
    assert 0 < best.draws.sum() < len(best.draws)
    images = every.images.view(2, -1, *SHAPE)
    assert torch.equal(best.images, torch.stack([images[d, i] for i, d in enumerate(best.draws.tolist())]))
    assert torch.equal(best.targets, every.targets[: len(best.targets)])


@pytest.mark.parametrize("batch", [1, 5, 7])
def test_result_does_not_depend_on_the_attack_batch(smooth: Linear, batch: int) -> None:
    whole = Gmi(**TINY).run(target(), AUX, context())
    chunked = Gmi(**TINY, batch=batch).run(target(), AUX, context())
    torch.testing.assert_close(chunked.images, whole.images, rtol=0, atol=1e-5)
    assert torch.equal(chunked.targets, whole.targets)
    other_step = Gmi(**TINY, ref_batch=24).run(target(), AUX, context())
    assert (other_step.images - whole.images).abs().max() > 1e-2


def test_result_does_not_depend_on_the_attack_batch_with_the_real_networks() -> None:
    shelf, settings = Shelf(), {**TINY, "iterations": 2}
    whole = Gmi(**settings).run(target(), AUX, context(shelf))
    chunked = Gmi(**settings, batch=1).run(target(), AUX, context(shelf))
    torch.testing.assert_close(chunked.images, whole.images, rtol=0, atol=1e-3)


def test_what_it_brings_back() -> None:
    attacked = target()
    result = Gmi(**TINY).run(attacked, AUX, context())
    assert result.images.shape == (2 * 4 * 3, *SHAPE)
    assert result.images.dtype == torch.float32 and not result.images.requires_grad
    assert 0 <= result.images.min() <= result.images.max() <= 1
    cells = result.draws * 4 + result.targets
    assert cells.dtype == torch.int64 and cells.bincount().tolist() == [3] * 8
    assert attacked.queries == 24 * (TINY["iterations"] + 1)


def test_draws_differ_and_seeds_repeat(smooth: Linear) -> None:
    one, same, other = (Gmi(**TINY).run(target(), AUX, context(seed=seed)).images for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert len(torch.unique(one.flatten(1), dim=0)) == len(one)


def test_gan_is_trained_once_for_all_targets_and_seeds() -> None:
    shelf = Shelf()
    Gmi(**TINY).run(target(), AUX, context(shelf, seed=0))
    Gmi(**TINY).run(target(-5.0), AUX, context(shelf, seed=1))
    Gmi(**TINY, lr=0.5, identity_weight=1.0).run(target(), AUX, context(shelf))
    assert len(shelf.made) == 1
    Gmi(**{**TINY, "gan_steps": 3}).run(target(), AUX, context(shelf))
    assert len(shelf.made) == 2
    Gmi(**TINY).run(target(), AUX.flip(-1), context(shelf))
    assert len(shelf.made) == 3


def test_gan_does_not_depend_on_the_step_seed_or_torchs_generator() -> None:
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        shelf = Shelf()
        Gmi(**TINY).run(target(), AUX, context(shelf, seed=seed))
        states.append(next(iter(shelf.kept.values())))
    assert states[0].keys() == states[1].keys()
    assert {name.split(".")[0] for name in states[0]} == {"generator", "critic"}
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.thorough
def test_search_makes_the_target_see_its_class() -> None:
    settings = {**TINY, "gan_steps": 160, "gan_batch": 16, "n_critic": 2, "gan_lr": 1e-2, "width": 8}
    shelf = Shelf()
    before = Gmi(**{**settings, "iterations": 1, "lr": 1e-9}).run(target(), AUX, context(shelf))
    after = Gmi(**{**settings, "iterations": 60}).run(target(), AUX, context(shelf))
    start, end = (target().scores(r.images).gather(1, r.targets[:, None]).squeeze(1) for r in (before, after))
    assert start.mean() < 0.5
    assert end.min() > 0.95
    assert len(shelf.made) == 1


def test_runs_under_autocast_and_returns_float32(smooth: Linear) -> None:
    plain = Gmi(**TINY).run(target(), AUX, context())
    result = Gmi(**TINY).run(target(), AUX, context(autocast=True))
    assert result.images.dtype == torch.float32
    assert 0 < (result.images - plain.images).abs().mean() < 0.05


def test_needs_the_weights() -> None:
    scores_only = Target(Quadrants(), "scores", SHAPE, 4)
    with pytest.raises(AccessDenied):
        Gmi(**TINY).run(scores_only, AUX, context())


def test_diversity_by_hand() -> None:
    z, other = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[3.0, 4.0], [1.0, 3.0]])
    features, others = torch.tensor([[1.0], [2.0]]), torch.tensor([[11.0], [8.0]])
    assert float(diversity(z, other, features, others)) == pytest.approx((10 / 5 + 6 / 2) / 2)


def test_the_reward_is_the_weighted_diversity_of_the_targets_features(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rewards = testing.toy_teacher().model, []
    monkeypatch.setattr(Gmi, "gan", lambda self, aux, ctx, reward, key: rewards.append(reward))
    Gmi(**TINY, diversity=0.5)._stage_1(Target(model, "weights", testing.SHAPE, 4), AUX, context())
    z, other = (torch.randn(3, 6, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    images, others = (testing.toy_images(3, seed) for seed in (0, 1))
    expected = 0.5 * diversity(z, other, model.features(images), model.features(others))
    torch.testing.assert_close(rewards[0](z, other, images, others), expected)
    assert expected > 0


def test_a_gan_taught_for_diversity_is_another_one_for_each_target_and_no_hook_is_left() -> None:
    first, second = (testing.toy_teacher(seed).model for seed in (0, 1))
    ctx, aux = testing.context(), torch.rand(64, *testing.SHAPE, generator=torch.Generator().manual_seed(1))
    plain = configure(Gmi, "smoke", {}, "attack")
    rewarded = configure(Gmi, "smoke", {"diversity": "0.5"}, "attack")

    def weights(attack: Gmi, model: nn.Module) -> Tensor:
        target = Target(model, "weights", testing.SHAPE, testing.CLASSES)
        return next(attack._stage_1(target, aux, ctx)[0].parameters())

    found = [weights(plain, first), weights(plain, second), weights(rewarded, first), weights(rewarded, second)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2]) and not torch.equal(found[2], found[3])
    assert not any(layer._forward_pre_hooks for layer in first.modules())


def test_a_gan_taught_for_diversity_asks_as_often_when_it_lies_in_the_store() -> None:
    model, ctx = testing.toy_teacher(0).model, testing.context()
    aux = torch.rand(64, *testing.SHAPE, generator=torch.Generator().manual_seed(1))
    rewarded = configure(Gmi, "smoke", {"diversity": "0.5"}, "attack")
    asked = []
    for _ in range(2):
        target = Target(model, "weights", testing.SHAPE, testing.CLASSES)
        rewarded._stage_1(target, aux, ctx)
        asked.append(target.queries)
    assert asked == [2 * rewarded.gan_batch * (rewarded.gan_steps // rewarded.n_critic)] * 2 and asked[0] > 0


class Pixels(nn.Module):
    """Every image: a latent is its pixels."""

    latent = 256

    def forward(self, z: Tensor) -> Tensor:
        return (3 * z).sigmoid().view(-1, *testing.SHAPE)


class Indifferent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0 * x.flatten(1).sum(1)


@pytest.mark.parametrize("how", ["blur", "mask"])
def test_auxiliary_pictures_pull_towards_their_victims(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gmi, "gan", lambda *_: (Pixels(), Indifferent()))
    target = Target(testing.toy_teacher().model, "weights", testing.SHAPE, testing.CLASSES, testing.toy_images(6))
    base = {"iterations": "40", "lr": "0.05", "latent": "256", "draws": "2", "auxiliary": how, "identity_weight": "0"}
    distances = []
    for weight in ("0", "5"):
        attack = configure(Gmi, "smoke", base | {"auxiliary_weight": weight}, "attack")
        assert attack.observes
        found = attack.run(target, torch.rand(8, *testing.SHAPE), testing.context(2))
        assert found.victims is not None and found.victims.tolist() == [0, 1, 2, 3, 4, 5] * 2
        distances.append(float(mismatch(found.images, target.corrupted_victims(how).repeat(2, 1, 1, 1), how)))
    assert distances[1] < 0.5 * distances[0]


def test_corrupted_pictures_keep_what_they_should() -> None:
    images = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    masked = corrupted(images, "mask")
    assert torch.equal(masked[..., :4, :], images[..., :4, :]) and masked[..., 4:12, 4:12].abs().sum() == 0
    blurred = corrupted(images, "blur")
    assert float(blurred[0, 0, 8, 8]) == pytest.approx(float(images[0, 0, 6:11, 6:11].mean()), abs=1e-6)
    assert blurred.shape == images.shape and torch.allclose(corrupted(torch.ones_like(images), "blur"), images * 0 + 1)
    with pytest.raises(ValueError, match="expected blur or mask"):
        corrupted(images, "squint")
