from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from inversion_made import tracked
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from attacks.mi_face import mi_face
from attacks.mi_face.mi_face import MiFace, cost_at, costs, gaussian, median, process, stops
from bench.api import Target
from bench.testing import context

SHAPE = (1, 8, 8)
AUX = torch.rand(12, *SHAPE, generator=torch.Generator().manual_seed(1))


class Quadrants(nn.Module):
    """Four classes: which quadrant is bright. Keeps every batch it was shown."""

    def __init__(self, slope: float = 8.0) -> None:
        super().__init__()
        self.slope = slope
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return self.slope * nn.functional.avg_pool2d(x, 4).flatten(1)


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0 * x.flatten(1)[:, :4]


def attack(model: nn.Module | None = None, seed: int = 0, **changes: Any) -> tuple[Any, Target]:
    target = Target(model or Quadrants(), "weights", SHAPE, 4)
    return MiFace(**changes).run(target, AUX, context(seed)), target


def confidence(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return model(images).softmax(1).gather(1, targets[:, None]).squeeze(1)


def test_costs_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, math.log(7.0), 0.0, 0.0]])
    labels = torch.tensor([2, 1])
    assert costs(logits, labels, "probability").tolist() == pytest.approx([0.75, 0.3])
    assert costs(logits, labels, "cross-entropy").tolist() == pytest.approx([math.log(4), -math.log(0.7)])


@pytest.mark.parametrize("loss", ["probability", "cross-entropy"])
def test_cost_at_is_the_cost_of_a_confidence(loss: Any) -> None:
    for p in (0.01, 0.5, 0.99, 1 - 1e-9):
        logits = torch.tensor([[math.log(p), math.log1p(-p)]], dtype=torch.float64)
        assert cost_at(p, loss) == pytest.approx(costs(logits, torch.tensor([0]), loss).item())


def test_stops_by_hand() -> None:
    earlier = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.7, 0.7, 0.7, math.inf]])
    cost = torch.tensor([0.69, 0.70, 0.01, 99.0])
    assert stops(cost, earlier, 0.01).tolist() == [False, True, True, False]
    assert stops(torch.tensor([0.0101]), torch.ones(1, 1), 0.01).tolist() == [False]


@pytest.mark.parametrize("loss", ["probability", "cross-entropy"])
def test_search_stops_at_the_first_confident_image(loss: Any) -> None:
    """gamma 0.9 as a threshold on the *cost* would be fulfilled by the first step, whose confidence is above 0.1."""
    model = Quadrants()
    found, _ = attack(model, gamma=0.9, lr=0.5, loss=loss)
    path = torch.stack(model.seen)
    sure = torch.stack([confidence(model, images, found.targets) for images in path])
    first = (sure >= 0.9).int().argmax(0)
    assert (first > 2).all() and (sure[1] > 0.1).all()
    at_stop = path[first, torch.arange(4)]
    assert torch.equal(found.images, at_stop)
    assert len(path) == 1 + -(-int(first.max()) // mi_face.CHECK_EVERY) * mi_face.CHECK_EVERY


def test_search_leaves_a_start_of_low_confidence() -> None:
    class Wrong(Quadrants):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) - 5 * torch.tensor([1.0, 0, 0, 0])

    model = Wrong(40.0)
    found, _ = attack(model, iterations=600, lr=20.0)
    start = confidence(model, torch.zeros(4, *SHAPE), found.targets)
    assert start[0] < 0.01
    assert (confidence(model, found.images, found.targets) >= 0.99).all()


@pytest.mark.parametrize("patience", [1, 7, 30])
def test_search_without_progress_stops_after_patience(patience: int) -> None:
    """Costs never change, so the first step with `patience` costs before it stops; the look comes at a round number."""
    _, target = attack(Flat(), patience=patience, iterations=200)
    looked = -(-patience // mi_face.CHECK_EVERY) * mi_face.CHECK_EVERY
    assert target.queries == 4 * (looked + 1)


def test_search_with_slow_progress_continues() -> None:
    _, target = attack(Quadrants(1e-2), iterations=90, patience=5, lr=1e-2, loss="cross-entropy", process="identity")
    assert target.queries == 4 * 91


def test_search_returns_the_best_image() -> None:
    """A step far too long overshoots: the costs on the path are not monotone."""
    model = Quadrants(60.0)
    found, _ = attack(model, start="noise", iterations=19, patience=50, gamma=1.0, lr=40.0, process="identity", seed=3)
    path = torch.stack(model.seen)
    cost = torch.stack([1 - confidence(model, images, found.targets) for images in path])[1:]
    best = cost.argmin(0)
    assert (best < len(cost) - 1).any()
    expected = path[1:][best, torch.arange(4)].clamp(0, 1)
    torch.testing.assert_close(found.images, expected)


def test_search_stores_a_copy_of_the_best_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that change the image in place do not change the stored one."""
    store = torch.zeros(4, *SHAPE)

    def in_place(x: Tensor, how: str) -> Tensor:
        store.copy_(x.clamp(0, 1))
        return store

    expected = attack(gamma=1.0, lr=0.5, iterations=15)[0].images
    monkeypatch.setattr(mi_face, "process", in_place)
    kept: list[Tensor] = []
    look = MiFace._cost_and_gradient

    def worse_later(self: MiFace, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        cost, gradient = look(self, x, *rest)
        kept.append(x.clone())
        return cost + (5.0 if len(kept) > 8 else 0.0), gradient

    monkeypatch.setattr(MiFace, "_cost_and_gradient", worse_later)
    found = attack(gamma=1.0, lr=0.5, iterations=15)[0].images
    assert torch.equal(found, kept[7])
    assert not torch.equal(found, expected)


def test_search_first_step_by_hand() -> None:
    """x_1 = -lambda grad c(0): for y = 0, p = 1/4 each and t = 8 mean of a quadrant."""
    model = Quadrants()
    attack(model, iterations=1, process="identity")
    slope = torch.zeros(2, 2)
    slope[0, 0] = 0.25 * 0.75
    slope[0, 1] = slope[1, 0] = slope[1, 1] = -0.25 * 0.25
    expected = 0.1 * 8 / 16 * slope.repeat_interleave(4, 0).repeat_interleave(4, 1)
    torch.testing.assert_close(model.seen[1][0, 0], expected)
    clipped = Quadrants()
    attack(clipped, iterations=1)
    torch.testing.assert_close(clipped.seen[1][0, 0], expected.clamp(min=0))


def test_filters_equal_plain_implementations() -> None:
    x = torch.rand(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    line = torch.tensor([math.exp(-2), 1.0, math.exp(-2)])
    kernel = torch.outer(line, line) / line.sum() ** 2
    padded = pad(x, (1, 1, 1, 1), mode="replicate")
    expected = conv2d(padded.flatten(0, 1).unsqueeze(1), kernel.view(1, 1, 3, 3)).view_as(x)
    torch.testing.assert_close(gaussian(x), expected)
    windows = padded.unfold(2, 3, 1).unfold(3, 3, 1).flatten(4)
    assert torch.equal(median(x), windows.sort(-1).values[..., 4])


def test_process_by_hand() -> None:
    x = torch.full((1, 1, 3, 3), 0.5)
    x[..., 1, 1], x[..., 0, 0] = 3.0, -2.0
    assert torch.equal(process(x, "identity"), x)
    assert torch.equal(process(x, "clip"), x.clamp(0, 1))
    assert torch.equal(process(x, "median"), torch.full_like(x, 0.5))
    assert torch.equal(process(x, "median-sharpen"), torch.full_like(x, 0.5))
    torch.testing.assert_close(process(x, "gaussian"), gaussian(x.clamp(0, 1)))
    edge = torch.zeros(1, 1, 4, 6)
    edge[..., 3:] = 0.5
    sharp = process(edge, "median-sharpen")
    assert sharp[0, 0, 1, 3] > 0.5 and sharp[0, 0, 1, 2] == 0 and sharp.min() >= 0 and sharp.max() <= 1


@pytest.mark.parametrize("how", ["clip", "gaussian", "median", "median-sharpen"])
def test_filters_keep_queries_in_range(how: Any) -> None:
    model = Quadrants()
    found, _ = attack(model, start="noise", lr=30.0, iterations=25, process=how)
    assert all(images.min() >= 0 and images.max() <= 1 for images in model.seen)
    assert found.images.min() >= 0 and found.images.max() <= 1


def test_identity_clips_only_the_result() -> None:
    model = Quadrants()
    found, _ = attack(model, lr=30.0, iterations=25, process="identity")
    assert min(float(images.min()) for images in model.seen) < 0
    assert found.images.min() >= 0 and found.images.max() <= 1


def test_start_option_sets_x_0() -> None:
    for start, expected in (("zero", torch.zeros(4, *SHAPE)), ("aux-mean", AUX.mean(0).expand(4, -1, -1, -1))):
        model = Quadrants()
        attack(model, start=start, iterations=1)
        assert torch.equal(model.seen[0], expected)
    model = Quadrants()
    attack(model, start="aux", iterations=1, images_per_class=5)
    assert all((image == AUX).flatten(1).all(1).any() for image in model.seen[0])
    assert len(model.seen[0].flatten(1).unique(dim=0)) > 4


@pytest.mark.parametrize("batch", [1, 5])
def test_result_does_not_depend_on_the_batch(batch: int) -> None:
    settings: dict[str, Any] = {"start": "noise", "lr": 0.5, "iterations": 120, "images_per_class": 3, "gamma": 0.7}
    whole, asked = attack(**settings)
    parts, asked_apart = attack(**settings, batch=batch)
    torch.testing.assert_close(parts.images, whole.images, rtol=0, atol=1e-5)
    assert torch.equal(parts.targets, whole.targets)
    assert asked.queries == asked_apart.queries < 12 * 121


def test_progress_is_complete_after_an_early_stop() -> None:
    stages: list[str] = []
    attacked = Target(Quadrants(), "weights", SHAPE, 4)
    MiFace(iterations=333, gamma=0.3, lr=0.5).run(attacked, AUX, tracked(context(), stages))
    assert len(stages) == 1 and attacked.queries < 4 * 333
