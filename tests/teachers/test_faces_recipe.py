"""The recipe for faces: its changes to an image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.teachers.recipes.faces import Faces, erased, lightened

NONE = {"flip": False, "turn": 0.0, "scale": 0.0, "move": 0.0, "light": 0.0, "erase": 0.0}


def pictures(n: int = 64) -> Tensor:
    return torch.randint(0, 256, (n, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def augment(images: Tensor, **given: float | bool) -> Tensor:
    return Faces(**{**NONE, **given}).augment(images, torch.Generator().manual_seed(1))  # type: ignore[arg-type]


def test_augment_draws_for_each_image() -> None:
    one = pictures(1).expand(40, -1, -1, -1)
    found = Faces().augment(one, torch.Generator().manual_seed(1))
    assert found.dtype == torch.uint8 and found.shape == one.shape
    assert len(found.flatten(1).unique(dim=0)) == 40


def test_augment_without_options_only_desaturates() -> None:
    images = pictures()
    found = augment(images).float()
    spread = [float(each.float().std(1).mean()) for each in (found, images)]
    assert 0.6 * spread[1] < spread[0] < 0.9 * spread[1]
    assert float((found.mean(1) - images.float().mean(1)).abs().max()) <= 1


@pytest.mark.parametrize(
    "given", [{"flip": True}, {"turn": 10.0}, {"scale": 0.2}, {"move": 0.2}, {"light": 0.3}, {"erase": 1.0}]
)
def test_augment_options_have_an_effect(given: dict[str, float]) -> None:
    assert not torch.equal(augment(pictures(), **given), augment(pictures()))


def test_augment_moves_at_most_as_declared() -> None:
    dot = torch.zeros(400, 1, 41, 41, dtype=torch.uint8)
    dot[:, :, 20, 20] = 255
    places = torch.arange(41.0) - 20
    found = augment(dot, move=0.1).float()
    along = (found.sum((1, 2)) * places).sum(1) / found.sum((1, 2, 3))
    assert 3.6 < float(along.abs().max()) < 4.6, "a tenth of 41 pixels"
    assert abs(float(along.mean())) < 0.5


def test_lightened_changes_brightness_and_contrast() -> None:
    image = torch.tensor([0.2, 0.4]).view(1, 1, 1, 2)
    brighter = lightened(image, torch.tensor([[0.5], [0.0]]), torch.zeros(1))
    stronger = lightened(image, torch.tensor([[0.0], [0.5]]), torch.zeros(1))
    assert torch.allclose(brighter.flatten(), torch.tensor([0.3, 0.6]))
    assert torch.allclose(stronger.flatten(), torch.tensor([0.15, 0.45]))
    colour = torch.tensor([0.0, 0.3, 0.6]).view(1, 3, 1, 1)
    assert torch.allclose(lightened(colour, torch.zeros(2, 1), torch.ones(1)), torch.full((1, 3, 1, 1), 0.3))


def test_erased_removes_rectangle_with_chance() -> None:
    images = torch.rand(2000, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    drawn = torch.rand(3, 2000, generator=torch.Generator().manual_seed(1))
    found = erased(images, drawn, 0.5)
    changed = (found != images).any(1)
    assert 0.45 < float(changed.flatten(1).any(1).float().mean()) < 0.55
    inside = changed[0 if bool(changed[0].any()) else int(changed.flatten(1).any(1).nonzero()[0])]
    rows, columns = inside.any(1).nonzero(), inside.any(0).nonzero()
    assert int(inside.sum()) == len(rows) * len(columns), "a rectangle"
    assert torch.equal(erased(images, drawn, 0.0), images)
