from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from inversion_made import SHAPE, Quadrants, tracked
from inversion_made import target as target_of
from torch import Tensor, nn

from attacks.deepinversion.deepinversion import DeepInversion, recorded_gaps, statistics_gap, total_variation
from bench import nets
from bench.api import AttackResult, Target
from bench.testing import context

NO_AUX = torch.zeros(0, *SHAPE)
TINY: dict[str, Any] = {"iterations": 4, "draws": 2, "images_per_class": 2, "bn_batch": 8}


class Normed(nn.Module):
    """Four classes by quadrant after a BatchNorm layer with stored statistics; notes what it is put."""

    def __init__(self, mean: float = 0.8, variance: float = 0.04) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1).requires_grad_(False)
        self.norm.running_mean = torch.tensor([mean])
        self.norm.running_var = torch.tensor([variance])
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return nn.functional.avg_pool2d(self.norm(x), 4).flatten(1)


def attack(model: nn.Module, seed: int = 0, **changes: Any) -> tuple[AttackResult, Target]:
    target = target_of(model)
    return DeepInversion(**{**TINY, **changes}).run(target, NO_AUX, context(seed)), target


def hooks(module: nn.Module) -> int:
    return sum(len(layer._forward_pre_hooks) + len(layer._forward_hooks) for layer in module.modules())


def test_total_variation_by_hand() -> None:
    x = torch.tensor([[[[1.0, 3.0], [7.0, 4.0]]], [[[0.0, 0.0], [0.0, 0.0]]]])
    right, down = math.hypot(2, -3), math.hypot(6, 1)
    assert total_variation(x).item() == pytest.approx(right + down + 3 + 4)
    one = total_variation(x[:1]).item()
    assert total_variation(torch.cat([x[:1]] * 4)).item() == pytest.approx(2 * one), "norms over the whole batch"


def test_statistics_gap_by_hand() -> None:
    inputs = torch.tensor([[[[0.0, 2.0]], [[5.0, 5.0]]], [[[4.0, 6.0]], [[5.0, 5.0]]]])
    exact = statistics_gap(inputs, torch.tensor([3.0, 5.0]), torch.tensor([5.0, 0.0]))
    assert exact.item() == pytest.approx(0)
    off = statistics_gap(inputs, torch.tensor([0.0, 1.0]), torch.tensor([0.0, 12.0]))
    assert off.item() == pytest.approx(math.hypot(3, 4) + math.hypot(5, 12))
    rows = torch.tensor([[1.0], [3.0]])
    assert statistics_gap(rows, torch.tensor([0.0]), torch.tensor([0.0])).item() == pytest.approx(2 + 1)


def test_recorded_gaps_weight_the_first_layer() -> None:
    two = nn.Sequential(nn.BatchNorm2d(1), nn.BatchNorm2d(1)).eval()
    x = torch.rand(5, *SHAPE)
    with recorded_gaps(two) as gaps:
        two(x)
        plain = gaps.total(x)
    with recorded_gaps(two, first=10.0) as gaps:
        two(x)
        weighted = gaps.total(x)
    first = statistics_gap(x, torch.zeros(1), torch.ones(1))
    assert first > 0 and plain > first
    assert (weighted - plain).item() == pytest.approx(9 * first.item(), rel=1e-5)


def test_recorded_gaps_remove_hooks_even_after_an_error() -> None:
    model = Normed()
    for _ in range(2):
        _, target = attack(model)
        assert hooks(model) == 0 and target.queries == TINY["iterations"] * 2 * 8
    with pytest.raises(ZeroDivisionError), recorded_gaps(model):
        assert hooks(model) == 1
        raise ZeroDivisionError
    assert hooks(model) == 0


def test_recorded_gaps_skip_layers_without_statistics() -> None:
    with recorded_gaps(nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.GroupNorm(1, 1))) as gaps:
        assert gaps.layers == []
    with recorded_gaps(nets.build("resnet18", (1, 16, 16), 4)) as gaps:
        assert len(gaps.layers) == 20
    with recorded_gaps(nets.build("datalens", (1, 16, 16), 4)) as gaps:
        assert gaps.layers == []


def test_attack_matches_stored_statistics() -> None:
    def distance(images: Tensor, mean: float) -> float:
        return statistics_gap(images, torch.tensor([mean]), torch.tensor([0.04])).item()

    settings = {"iterations": 60, "lr": 0.1, "draws": 1}
    for mean in (0.3, 0.8):
        free, _ = attack(Normed(mean), **settings, bn_weight=0.0)
        matched, _ = attack(Normed(mean), **settings)
        assert distance(matched.images, mean) < 0.05
        assert distance(matched.images, mean) < 0.5 * distance(free.images, mean)


def test_attack_returns_images_of_lowest_loss() -> None:
    model = Normed()
    result, _ = attack(model, draws=1, iterations=30, lr=6.0, jitter=0, tv_weight=0.01, l2_weight=0.001)
    labels = torch.arange(4).repeat_interleave(2)
    losses = []
    for images in list(model.seen):
        x = (images - 0.5) / 0.25
        gap = statistics_gap(images, torch.tensor([0.8]), torch.tensor([0.04]))
        ce = nn.functional.cross_entropy(model(images), labels)
        losses.append((ce + 10 * gap + 0.01 * total_variation(x) + 0.001 * x.norm()).item())
    best = min(range(30), key=losses.__getitem__)
    assert 0 < best < 29
    torch.testing.assert_close(result.images, model.seen[best])


def test_jitter_rolls_the_batch_by_up_to_its_pixels() -> None:
    still, shifted = Normed(), Normed()
    settings = {"draws": 1, "iterations": 1}
    attack(still, **settings, jitter=0)
    start, offsets = still.seen[0], set()
    for seed in range(30):
        attack(shifted, **settings, jitter=2, seed=seed)
        attack(still, **settings, jitter=0, seed=seed)
        start, moved = still.seen[-1], shifted.seen[-1]
        found = [(i, j) for i in range(-4, 4) for j in range(-4, 4) if torch.equal(start.roll((i, j), (2, 3)), moved)]
        assert len(found) == 1
        offsets.update(found)
    assert {i for i, _ in offsets} == {j for _, j in offsets} == {-2, -1, 0, 1, 2}


def test_attack_without_batchnorm_uses_the_priors() -> None:
    stages: list[str] = []

    def images(model: nn.Module, **changes: Any) -> Tensor:
        attacked = target_of(model)
        return DeepInversion(**{**TINY, **changes}).run(attacked, NO_AUX, tracked(context(), stages)).images

    assert torch.equal(images(Quadrants(4.0)), images(Quadrants(4.0), bn_weight=0.0))
    assert not torch.equal(images(Quadrants(4.0)), images(Quadrants(4.0), tv_weight=1.0))
    assert not torch.equal(images(Normed()), images(Normed(), bn_weight=0.0))
    assert ["no BatchNorm" in stage for stage in stages] == [True] * 4 + [False] * 2


def test_attack_splits_images_into_balanced_batches() -> None:
    model = Normed()
    result, _ = attack(model, bn_batch=3, iterations=1, jitter=0, draws=1)
    assert [len(images) for images in model.seen] == [3, 3, 2]
    assert result.targets.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for group, images in enumerate(model.seen):
        torch.testing.assert_close(result.images[group::3], images)


def test_search_reaches_the_attacked_class() -> None:
    result, target = attack(Quadrants(4.0), iterations=80, lr=0.1)
    hit = (target.labels(result.images) == result.targets).float().mean()
    start, _ = attack(Quadrants(4.0), iterations=1)
    assert hit == 1 and (target.labels(start.images) == start.targets).float().mean() < 0.8
