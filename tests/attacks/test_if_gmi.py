"""IF-GMI: the projection to an l1 ball, the order of the layers and the choice among them."""

from __future__ import annotations

import pytest
import torch
from inversion_made import Quadrants, SmoothGenerator, target
from torch import Tensor, nn

from attacks.if_gmi import IfGmi, l1_projection
from attacks.ppa import Ppa
from bench.api import Context
from bench.gan.plug_and_play import PlugAndPlay
from bench.nets.generators import DeconvGenerator
from bench.testing import context

TINY = {"gan_batch": 4, "latent": 6, "latents": 64, "candidates_per_class": 4, "images_per_class": 3, "draws": 2,
        "steps": 5, "layer_steps": 5, "transformations": 8, "lr": 0.1}  # fmt: skip


class Blocks(SmoothGenerator):
    """A generator of three blocks: a linear layer, a slope, a sigmoid."""

    def blocks(self) -> list[nn.Module]:
        return [self.body, Slope(self.slope), nn.Sequential(nn.Sigmoid(), nn.Unflatten(1, (1, self.side, self.side)))]


class Slope(nn.Module):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * x


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Blocks:
    generator = Blocks(slope=3.0)
    monkeypatch.setattr(PlugAndPlay, "gan", lambda *_: (generator, None))
    monkeypatch.setattr(Context, "generator", lambda *_: torch.Generator().manual_seed(0))
    return generator


def found(attack: Ppa) -> Tensor:
    """Attack with the random numbers of every other attack."""
    return attack.run(target(Quadrants()), torch.rand(8, 1, 8, 8), context()).images


@pytest.mark.parametrize(
    ("v", "radius", "expected"),
    [([3, -2, 1, 0.5], 3, [2, -1, 0, 0]), ([3, -2, 1, 0.5], 6.5, [3, -2, 1, 0.5]), ([3, -2, 1, 0.5], 0, [0, 0, 0, 0]),
     ([1, 1, 1, 1], 2, [0.5, 0.5, 0.5, 0.5]), ([0, 0, 0, -4], 1, [0, 0, 0, -1])],
)  # fmt: skip
def test_projection_equals_values_by_hand(v: list[float], radius: float, expected: list[float]) -> None:
    other = torch.tensor([9.0, 0.0, 0.0, 9.0])  # each row has its own ball
    rows = l1_projection(torch.stack([torch.tensor(v), other]).float(), torch.tensor([radius, 100.0]))
    assert torch.allclose(rows, torch.stack([torch.tensor(expected).float(), other]), atol=1e-6)


def test_projection_is_the_nearest_point_of_the_ball() -> None:
    rng = torch.Generator().manual_seed(0)
    v = torch.randn(1, 6, generator=rng, dtype=torch.float64)
    nearest = l1_projection(v, torch.tensor([2.0]))
    others = torch.randn(2000, 6, generator=rng, dtype=torch.float64)
    others = 2 * others / others.abs().sum(1, keepdim=True)
    assert float(nearest.abs().sum()) == pytest.approx(2)
    assert float((nearest - v).norm()) < float((others - v).norm(dim=1).min())


def test_features_stay_in_their_own_ball(stub: Blocks) -> None:
    attack, start, y = IfGmi(**TINY, radius=0.05), torch.randn(5, 64), torch.arange(5) % 4
    start[0] *= 100
    crops = torch.rand(9, 4)
    rest, ball = nn.Sequential(*stub.blocks()[1:]), attack._ball(start)
    h = attack._optimised(start, y, rest, crops, ball, target(Quadrants()), context(), lambda _: None)
    moved, allowed = (h - start).abs().sum(1), 0.05 * start.abs().sum(1)
    assert (moved <= 1.0001 * allowed).all() and (moved[1:] > 0.9 * allowed[1:]).all()


def test_without_layers_equals_ppa(stub: Blocks) -> None:
    one = TINY | {"draws": 1}
    by_ppa = found(Ppa(**{k: v for k, v in one.items() if k != "layer_steps"}))
    assert torch.allclose(found(IfGmi(**one, layers=0)), by_ppa, atol=1e-6)


@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_radius_zero_keeps_the_images_of_the_latents(stub: Blocks, radius: float) -> None:
    attack, z, y = IfGmi(**TINY, radius=radius), torch.randn(4, 6), torch.arange(4)
    latents, *layers = attack._results(z, y, stub.blocks(), torch.rand(15, 4), target(), context(), lambda _: None)
    assert len(layers) == 2
    assert all(torch.allclose(images, latents, atol=1e-6) == (radius == 0) for images in layers)


def test_layers_after_the_latents_raise_the_probability(stub: Blocks) -> None:
    few, y = TINY | {"draws": 1, "candidates_per_class": 3}, torch.arange(4).repeat_interleave(3)
    probability = [
        float(Quadrants()(found(IfGmi(**few, layers=n, radius=0.3))).softmax(1).gather(1, y[:, None]).mean())
        for n in (0, 2)
    ]
    assert probability[1] > probability[0] + 0.02


def test_each_start_returns_its_layer_of_largest_score(stub: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers of known images and scores: the result is the image of the largest score of each start."""
    scores = iter(torch.tensor([[0.1, 0.9, 0.3, 0.2], [0.5, 0.2, 0.1, 0.3], [0.2, 0.1, 0.8, 0.3]]))
    made = [torch.full((4, 1, 8, 8), float(layer)) for layer in range(3)]
    monkeypatch.setattr(IfGmi, "_results", lambda *_: made)
    monkeypatch.setattr(IfGmi, "final_scores", lambda *_: next(scores))
    one = TINY | {"draws": 1, "candidates_per_class": 1, "images_per_class": 1}
    assert found(IfGmi(**one))[:, 0, 0, 0].tolist() == [1, 0, 2, 1]


def test_result_does_not_depend_on_the_batch_size(stub: Blocks) -> None:
    assert torch.allclose(found(IfGmi(**TINY, batch=200)), found(IfGmi(**TINY, batch=3)), atol=1e-3)


@pytest.mark.parametrize("size", [8, 12, 16, 28, 32])
def test_blocks_are_the_generator(size: int) -> None:
    generator, z = DeconvGenerator((3, size, size), 5, 2).eval(), torch.randn(4, 5)
    assert torch.equal(nn.Sequential(*generator.blocks())(z), generator(z))
    assert len(generator.blocks()) >= 2
