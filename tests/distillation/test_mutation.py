"""Mutated copies of images."""

from __future__ import annotations

import pytest
import torch

from bench.distillation.transcription.mutation import CROSSED, REINKED, bend, children, crossover, reink

SHAPES = [(1, 16, 16), (3, 32, 32), (1, 20, 28)]


def disc(n: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """A white disc in the middle of each image."""
    rows, columns = torch.linspace(-1, 1, shape[1]), torch.linspace(-1, 1, shape[2])
    inside = rows[:, None].square() + columns[None].square() < 0.25
    return inside.float().expand(n, *shape).clone()


@pytest.mark.parametrize("shape", SHAPES)
def test_children_are_images_that_resemble_their_parents_and_not_each_other(shape: tuple[int, int, int]) -> None:
    rng = torch.Generator().manual_seed(0)
    born = children(disc(40, shape), rng)
    assert born.shape == (40, *shape) and born.min() >= 0 and born.max() <= 1
    ink = born.flatten(1).mean(1) / disc(1, shape).mean()
    assert (ink > 0.2).all() and (ink < 3).all()
    assert len({tuple(image.flatten().tolist()) for image in born}) == 40


def test_the_same_draws_make_the_same_children() -> None:
    parents = torch.rand(5, 1, 16, 16)
    one, two = (children(parents, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, children(parents, torch.Generator().manual_seed(4)))


def test_bending_moves_the_middle_little() -> None:
    """The centre of mass of a disc moves by the shift, at most 0.12 half widths on an axis, and by the knots' field."""
    shape = (1, 32, 32)
    bent = bend(disc(400, shape), torch.Generator().manual_seed(1))[:, 0]
    place = torch.linspace(-1, 1, 32)
    x = (bent.sum(1) * place).sum(1) / bent.sum((1, 2))
    assert 0.05 < float(x.std()) < 0.15 and abs(float(x.mean())) < 0.02


def test_strokes_of_a_share_become_thinner_or_thicker_and_black_stays_black() -> None:
    rng, parents = torch.Generator().manual_seed(2), disc(1000, (1, 16, 16))
    inked = reink(parents, rng)
    changed = (inked != parents).flatten(1).any(1)
    assert abs(float(changed.float().mean()) - REINKED) < 0.06
    ink = inked.flatten(1).mean(1)[changed] - parents[0].mean()
    assert (ink > 0).any() and (ink < 0).any()
    assert torch.allclose(reink(torch.zeros(100, 1, 8, 8), rng), torch.zeros(1), atol=1e-6)


def test_crossing_puts_over_halves_or_averages() -> None:
    """White and black parents: an overlay stays white or black, a mean is grey, halves are both."""
    parents = torch.cat([torch.ones(500, 1, 16, 16), torch.zeros(500, 1, 16, 16)])
    crossed = crossover(parents, torch.Generator().manual_seed(5))
    grey = (crossed == 0.5).flatten(1).all(1)
    half = (crossed[:, 0, 0, 0] - crossed[:, 0, -1, 0]).abs() > 0.9
    assert abs(float(grey.float().mean()) - 0.2 * 0.5) < 0.05 and abs(float(half.float().mean()) - 0.5 * 0.5) < 0.05


def test_a_share_of_children_has_two_parents() -> None:
    """One white parent among black ones, without other mutations."""
    parents = torch.zeros(2000, 1, 8, 8)
    parents[::2] = 1
    born = children(parents, torch.Generator().manual_seed(6))
    mixed = born[1::2].flatten(1).amax(1) > 0.2
    assert 0.3 * CROSSED < float(mixed.float().mean()) < 0.8 * CROSSED
