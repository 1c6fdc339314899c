from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from inversion_made import SHAPE, TINY_GAN, Brightness, Quadrants, SmoothGenerator, quadrant_images, target, tracked
from torch import Tensor, nn

from attacks.gmi import Gmi, diversity, mismatch, search_loss
from bench import testing
from bench.api import Context, Target
from bench.config import configure
from bench.data import corrupted


def context(shelf: testing.MemoryArtifacts | None = None, seed: int = 0, autocast: bool = False) -> Context:
    ctx = replace(testing.context(seed), autocast=autocast)
    return tracked(replace(ctx, artifacts=shelf) if shelf is not None else ctx)


@pytest.fixture
def smooth(monkeypatch: pytest.MonkeyPatch) -> SmoothGenerator:
    generator = SmoothGenerator()
    monkeypatch.setattr(Gmi, "gan", lambda *_: (generator, Brightness()))
    return generator


AUX = quadrant_images(32)
TINY = TINY_GAN | {"iterations": 4}


def test_search_loss_by_hand() -> None:
    realism, labels = torch.tensor([2.0, -0.5]), torch.tensor([1, 0])
    logits = torch.tensor([[0.0, 0.0], [1.0, 1.0 + torch.log(torch.tensor(3.0))]])
    expected = -1.5 + 10 * (torch.log(torch.tensor(2.0)) + torch.log(torch.tensor(4.0)))
    assert search_loss(realism, logits, labels, 10.0).item() == pytest.approx(expected.item())


def test_search_keeps_z_inside_the_clamp(smooth: SmoothGenerator) -> None:
    Gmi(**TINY, lr=5.0, latent_clip=0.7).run(target(), AUX, context())
    assert len(smooth.largest) == TINY["iterations"] + 1
    assert max(smooth.largest) == pytest.approx(0.7)


@pytest.mark.parametrize("offset", [0.0, -1000.0])
def test_keep_best_works_with_negative_logits(smooth: SmoothGenerator, offset: float) -> None:
    attacked = target(Quadrants(offset=offset))
    every = Gmi(**TINY).run(attacked, AUX, context())
    best = Gmi(**TINY, keep_best=True).run(attacked, AUX, context())
    assert len(best.images) == 4 * TINY["images_per_class"]
    scores = attacked.logits(every.images).gather(1, every.targets[:, None]).view(2, -1)
    assert (scores.max() < 0) == (offset < 0)
    assert torch.equal(best.draws, scores.argmax(0))
    assert 0 < best.draws.sum() < len(best.draws)
    images = every.images.view(2, -1, *SHAPE)
    assert torch.equal(best.images, torch.stack([images[d, i] for i, d in enumerate(best.draws.tolist())]))
    assert torch.equal(best.targets, every.targets[: len(best.targets)])


def test_gan_is_cached_for_all_targets_and_seeds() -> None:
    shelf = testing.MemoryArtifacts()
    Gmi(**TINY).run(target(), AUX, context(shelf, seed=0))
    Gmi(**TINY).run(target(Quadrants(offset=-5.0)), AUX, context(shelf, seed=1))
    Gmi(**TINY, lr=0.5, identity_weight=1.0).run(target(), AUX, context(shelf))
    assert len(shelf.made) == 1
    Gmi(**{**TINY, "gan_steps": 3}).run(target(), AUX, context(shelf))
    assert len(shelf.made) == 2
    Gmi(**TINY).run(target(), AUX.flip(-1), context(shelf))
    assert len(shelf.made) == 3


def test_gan_does_not_depend_on_the_runs_seed() -> None:
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        shelf = testing.MemoryArtifacts()
        Gmi(**TINY).run(target(), AUX, context(shelf, seed=seed))
        states.append(next(iter(shelf.kept.values())))
    assert states[0].keys() == states[1].keys()
    assert {name.split(".")[0] for name in states[0]} == {"generator", "critic"}
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.thorough
def test_search_reaches_the_attacked_class() -> None:
    settings = {**TINY, "gan_steps": 160, "gan_batch": 16, "n_critic": 2, "gan_lr": 1e-2, "width": 8}
    shelf = testing.MemoryArtifacts()
    before = Gmi(**{**settings, "iterations": 1, "lr": 1e-9}).run(target(), AUX, context(shelf))
    after = Gmi(**{**settings, "iterations": 60}).run(target(), AUX, context(shelf))
    start, end = (target().scores(r.images).gather(1, r.targets[:, None]).squeeze(1) for r in (before, after))
    assert start.mean() < 0.5
    assert end.min() > 0.95
    assert len(shelf.made) == 1


def test_autocast_changes_images_little(smooth: SmoothGenerator) -> None:
    plain = Gmi(**TINY).run(target(), AUX, context())
    result = Gmi(**TINY).run(target(), AUX, context(autocast=True))
    assert result.images.dtype == torch.float32
    assert 0 < (result.images - plain.images).abs().mean() < 0.05


def test_diversity_by_hand() -> None:
    z, other = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[3.0, 4.0], [1.0, 3.0]])
    features, others = torch.tensor([[1.0], [2.0]]), torch.tensor([[11.0], [8.0]])
    assert float(diversity(z, other, features, others)) == pytest.approx((10 / 5 + 6 / 2) / 2)


def test_reward_is_the_weighted_feature_diversity(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rewards = testing.toy_teacher().model, []
    monkeypatch.setattr(Gmi, "gan", lambda self, aux, ctx, reward, key: rewards.append(reward))
    Gmi(**TINY, diversity=0.5)._stage_1(Target(model, "weights", testing.SHAPE, 4), AUX, context())
    z, other = (torch.randn(3, 6, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    images, others = (testing.toy_images(3, seed) for seed in (0, 1))
    expected = 0.5 * diversity(z, other, model.features(images), model.features(others))
    torch.testing.assert_close(rewards[0](z, other, images, others), expected)
    assert expected > 0


def test_diversity_trains_one_gan_per_target() -> None:
    first, second = (testing.toy_teacher(seed).model for seed in (0, 1))
    ctx, aux = testing.context(), testing.toy_aux()
    plain = configure(Gmi, "smoke", {}, "attack")
    rewarded = configure(Gmi, "smoke", {"diversity": "0.5"}, "attack")

    def weights(attack: Gmi, model: nn.Module) -> Tensor:
        target = Target(model, "weights", testing.SHAPE, testing.CLASSES)
        return next(attack._stage_1(target, aux, ctx)[0].parameters())

    found = [weights(plain, first), weights(plain, second), weights(rewarded, first), weights(rewarded, second)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2]) and not torch.equal(found[2], found[3])
    assert not any(layer._forward_pre_hooks for layer in first.modules())


def test_diversity_counts_queries_of_a_cached_gan() -> None:
    model, ctx = testing.toy_teacher(0).model, testing.context()
    rewarded = configure(Gmi, "smoke", {"diversity": "0.5"}, "attack")
    for _ in range(2):
        target = Target(model, "weights", testing.SHAPE, testing.CLASSES)
        rewarded._stage_1(target, testing.toy_aux(), ctx)
        assert target.queries == 2 * rewarded.gan_batch * (rewarded.gan_steps // rewarded.n_critic) > 0


class Pixels(nn.Module):
    latent = 256

    def forward(self, z: Tensor) -> Tensor:
        return (3 * z).sigmoid().view(-1, *testing.SHAPE)


@pytest.mark.parametrize("how", ["blur", "mask"])
def test_auxiliary_images_reduce_the_mismatch(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gmi, "gan", lambda *_: (Pixels(), lambda x: 0 * x.flatten(1).sum(1)))
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


def test_corrupted_blurs_or_masks_the_middle() -> None:
    images = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    masked = corrupted(images, "mask")
    assert torch.equal(masked[..., :4, :], images[..., :4, :]) and masked[..., 4:12, 4:12].abs().sum() == 0
    blurred = corrupted(images, "blur")
    assert float(blurred[0, 0, 8, 8]) == pytest.approx(float(images[0, 0, 6:11, 6:11].mean()), abs=1e-6)
    assert blurred.shape == images.shape and torch.allclose(corrupted(torch.ones_like(images), "blur"), images * 0 + 1)
    with pytest.raises(ValueError, match="squint"):
        corrupted(images, "squint")
