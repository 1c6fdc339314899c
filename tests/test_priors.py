"""The contract tests of the priors, and the documented drawings of each."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bench import data, plugins, priors, testing
from bench.errors import UnknownName
from bench.priors.drawing import Draws, pixel_positions, power_law_field, texture
from bench.priors.kinds import faces, leaves, pen, shapes

NAMES = list(plugins.entries("prior"))
GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def drawn(name: str, count: int, shape: tuple[int, int, int] = GREY) -> Tensor:
    return priors.load(name).draw(count, shape, torch.Generator().manual_seed(0))


def draws(seed: int = 0) -> Draws:
    return Draws(torch.Generator().manual_seed(seed))


def within(found: float, share: float, count: int) -> bool:
    """Whether a share found among `count` draws is within 4 standard deviations of `share`."""
    return abs(found - share) < 4 * math.sqrt(share * (1 - share) / count)


def likeness(images: Tensor, others: Tensor) -> Tensor:
    """(n,) correlations of pixels."""
    a, b = ((x.flatten(1) - x.flatten(1).mean(1, keepdim=True)) for x in (images, others))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp_min(1e-9)


@pytest.mark.parametrize("check", [name for name in dir(testing.PriorContract) if name.startswith("test_")])
@pytest.mark.parametrize("name", NAMES)
def test_prior_contract(name: str, check: str) -> None:
    getattr(type(f"Test_{name}", (testing.PriorContract,), {"name": name})(), check)()


def test_auto_prior_is_that_of_data_set() -> None:
    found = {
        name: type(priors.for_dataset("auto", name)) for name in ("digits", "mnist", "fmnist", "cifar10-jpeg", "npz-a")
    }
    assert list(found.values()) == [pen.Pen, pen.Pen, shapes.Shapes, shapes.Shapes, shapes.Shapes]
    assert isinstance(priors.for_dataset("faces", "mnist"), faces.Faces)
    assert data.DatasetFacts().prior in NAMES


@pytest.mark.parametrize("count", [1, 2, 7])
def test_mixture_alternates_between_priors(count: int) -> None:
    def mixed(shape: tuple[int, int, int]) -> Tensor:
        return priors.load("pen+shapes+noise").draw(count, shape, torch.Generator().manual_seed(0))

    rng = torch.Generator().manual_seed(0)
    one_by_one = [priors.load(name).draw(len(range(place, count, 3)), GREY, rng)
                  for place, name in enumerate(("pen", "shapes", "noise"))]  # fmt: skip
    found = mixed(GREY)
    assert all(torch.equal(found[place::3], images) for place, images in enumerate(one_by_one))
    assert mixed(COLOUR).shape == (count, *COLOUR)


@pytest.mark.parametrize("name", ["shape", "pen+shape", "pen+", "+", "pen+auto"])
def test_unknown_prior_is_refused(name: str) -> None:
    with pytest.raises(UnknownName):
        priors.load(name)


def test_draw_limits_images_per_part() -> None:
    counts = []

    class Counting(priors.Prior):
        pixels = 100 * 64

        def draw_part(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
            counts.append(count)
            return torch.full((count, *shape), len(counts) / 10)

    images = Counting().draw(250, (1, 8, 8), torch.Generator())
    assert counts == [100, 100, 50]
    assert images[[0, 99, 100, 249], 0, 0, 0].tolist() == pytest.approx([0.1, 0.1, 0.2, 0.3])
    Counting().draw(2, (1, 100, 100), torch.Generator())
    assert counts[3:] == [1, 1]


@pytest.mark.thorough
def test_pen_draws_light_ink_in_the_middle() -> None:
    images = drawn("pen", 2000)
    ink = images.mean((1, 2, 3))
    assert 0.12 < float(ink.mean()) < 0.2
    assert float(((ink > 0.015) & (ink < 0.4)).float().mean()) > 0.99
    assert float((images.amax((1, 2, 3)) > 0.6).float().mean()) > 0.95
    border = torch.cat([images[..., 0], images[..., -1], images[:, :, 0], images[:, :, -1]], -1)
    assert float(border.mean()) < 0.02


@pytest.mark.thorough
def test_pen_mixes_paths_and_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[Any]] = {"walks": [], "looping": []}
    walks, paths = pen.draw_walks, pen.draw_paths
    monkeypatch.setattr(pen, "draw_walks", lambda count, draws: seen["walks"].append(count) or walks(count, draws))
    monkeypatch.setattr(
        pen, "draw_paths", lambda looping, draws: seen["looping"].append(looping) or paths(looping, draws)
    )
    drawn("pen", 4000)
    looping = torch.cat(seen["looping"])
    assert sum(seen["walks"]) + len(looping) == 4000
    assert within(sum(seen["walks"]) / 4000, 0.1, 4000) and within(int(looping.sum()) / 4000, 0.3, 4000)


def test_distance_to_strokes_is_to_nearest_dot() -> None:
    lines = torch.rand(50, 2, 9, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    lines[::2, 1] = lines[::2, 0]
    pixels = pixel_positions(8, 12, torch.device("cpu"))
    expected = torch.cdist(pixels.expand(50, -1, -1), lines.flatten(1, 2)).amin(2)
    assert torch.allclose(pen.distance_to_strokes(lines, pixels), expected.clamp_min(1e-3), atol=1e-3)


def test_add_dots_are_even_on_the_line() -> None:
    line = torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 6.0]]).expand(1, 2, -1, -1)
    dotted = pen.add_dots(line, 3)[0, 0]
    assert dotted.tolist() == [[0, 0], [1, 0], [2, 0], [3, 0], [3, 2], [3, 4], [3, 6]]


def test_draw_path_has_equal_steps() -> None:
    step = pen.draw_path(torch.zeros(300, dtype=torch.bool), draws()).diff(dim=1).norm(dim=-1)
    assert torch.allclose(step, torch.full_like(step, 1 / pen.POINTS), atol=1e-5)
    looping = pen.draw_path(torch.ones(2000, dtype=torch.bool), draws())
    moved = (looping.diff(dim=1).norm(dim=-1) - 1 / pen.POINTS).abs().amax(1) > 1e-4
    assert within(float(moved.float().mean()), 0.3, 2000)


def test_pen_colour_ink_contrasts_with_ground() -> None:
    images = drawn("pen", 500, COLOUR).mean(1).flatten(1)
    ground, ink = images[:, 0], images.gather(1, (images - images[:, :1]).abs().argmax(1, keepdim=True))[:, 0]
    assert float(((ink - ground).abs() > 0.2).float().mean()) > 0.9
    assert 0.4 < float((ink > ground).float().mean()) < 0.6


@pytest.mark.thorough
def test_shapes_have_declared_share_of_symmetric_images() -> None:
    for shape, share in ((GREY, 0.85 * 0.6), ((3, 32, 20), 0.85 * 0.6 * 0.5)):
        images = drawn("shapes", 2000, shape)
        symmetric = (images - images.flip(3)).abs().amax((1, 2, 3)) < 1e-3
        assert within(float(symmetric.float().mean()), share, 2000), shape


def test_fit_to_box_fills_drawn_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "HALF_WIDTH", (0.5, 0.5 + 1e-6))
    monkeypatch.setattr(shapes, "HALF_HEIGHT", (0.75, 0.75 + 1e-6))
    layers = torch.zeros(1, 2, 64, 64)
    layers[:, :, 10:20, 40:60] = 1
    fitted = shapes.fit_to_box(layers, draws())[0, 1]
    assert fitted.mean(0).gt(0.3).nonzero()[[0, -1], 0].tolist() == pytest.approx([16, 47], abs=2)
    assert fitted.mean(1).gt(0.2).nonzero()[[0, -1], 0].tolist() == pytest.approx([8, 55], abs=4)


def test_draw_shapes_keeps_something_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "HOLE", 0.9)
    assert (shapes.draw_shapes(2000, GREY, draws()).amax((1, 2, 3)) > 0.01).float().mean() > 0.99


@pytest.mark.thorough
def test_faces_are_more_symmetric_than_noise() -> None:
    for shape in (GREY, (3, 64, 64)):
        images = drawn("faces", 300, shape)
        assert float(likeness(images, images.flip(3)).median()) > 0.35
        noise = drawn("noise", 300, shape)
        assert float(likeness(noise, noise.flip(3)).median()) < 0.2


def test_texture_is_smoother_with_larger_exponent() -> None:
    rough, smooth = (texture(100, GREY, draws(), (exponent, exponent)) for exponent in (0.0, 3.0))
    near = [float(likeness(field[..., 1:], field[..., :-1]).mean()) for field in (rough, smooth)]
    assert abs(near[0]) < 0.1 and near[1] > 0.9


def test_power_law_field_has_the_slope_of_its_exponent() -> None:
    """The amplitude of a frequency falls with its exponent: the ratio at 2 and 8 cycles is 4^exponent."""
    for exponent in (0.0, 1.0, 2.0):
        field = power_law_field(400, (3, 64, 64), draws(), (exponent, exponent))
        amplitude = torch.fft.rfft2(field).abs().square().mean((0, 1)).sqrt()
        assert math.log(float(amplitude[0, 2] / amplitude[0, 8]), 4) == pytest.approx(exponent, abs=0.1)
        assert torch.allclose(field.mean((2, 3)), torch.zeros(400, 3), atol=1e-4)
        assert torch.allclose(field.std((2, 3)), torch.ones(400, 3), atol=1e-3)


def test_leaves_have_sizes_of_the_power_law() -> None:
    sizes = leaves.draw_sizes(40_000, draws())
    assert float(sizes.min()) >= leaves.SMALLEST_LEAF and float(sizes.max()) <= leaves.LARGEST_LEAF
    for size in (0.15, 0.3, 0.8):  # 1 - F(s) of the density proportional to s^-2
        low, high = 1 / leaves.SMALLEST_LEAF, 1 / leaves.LARGEST_LEAF
        assert within(float((sizes > size).float().mean()), (1 / size - high) / (low - high), 40_000)


def test_leaves_vary_more_in_lightness_than_in_colour() -> None:
    palette = leaves.draw_palette(2000, 3, draws())
    light = palette.mean(2)
    assert float((palette - light[..., None]).square().mean()) < 0.5 * float(light.var())
    grey = leaves.draw_palette(2000, 1, draws())
    assert grey.shape == (2000, leaves.PALETTE, 1) and float(grey.min()) >= 0 and float(grey.max()) <= 1


def test_later_leaf_hides_earlier_surface(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one leaf that covers everything, the image is that leaf's surface."""
    monkeypatch.setattr(leaves, "draw_outlines", lambda centre, size, pixels, draws: torch.ones(len(size), len(pixels)))
    painted: list[Tensor] = []
    scenes = leaves.Scenes(50, GREY, draws())
    paint = scenes.paint

    def paint_and_store(rows: Tensor) -> Tensor:
        painted.append(paint(rows))
        return painted[-1]

    monkeypatch.setattr(scenes, "paint", paint_and_store)
    monkeypatch.setattr(leaves, "MOST", 1)
    image = leaves.draw_background(scenes, draws(1))
    assert len(painted) == 2 and 0 < len(painted[1]) < 50
    covered = torch.tensor([any(torch.equal(one, leaf) for leaf in painted[1]) for one in image])
    assert int(covered.sum()) == len(painted[1])
    assert all(torch.equal(image[row], painted[0][row]) for row in (~covered).nonzero()[:, 0])


def test_share_of_leaves_has_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = leaves.Scenes(4000, (1, 8, 8), draws())
    black = torch.full((4000, 1, 64), -1.0)
    monkeypatch.setattr(leaves, "draw_outlines", lambda centre, size, pixels, draws: torch.ones(len(size), len(pixels)))
    drawn_on = (leaves.draw_object(black.clone(), scenes, draws()) != black).flatten(1).any(1)
    assert within(float(drawn_on.float().mean()), leaves.OBJECT, 4000)
