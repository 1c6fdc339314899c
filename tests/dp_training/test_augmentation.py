"""Augmented views of records: crops by hand, mirroring, and views that belong to their record."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.dp_training.augmentation import AUGMENTATIONS, AugmentationName, Crop, views
from bench.privacy.noise import Noise


def cropped(image: np.ndarray, down: int, right: int, flip: bool, furthest: int) -> np.ndarray:
    """Pad by the mirror image, cut out, and mirror: numpy's way."""
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (furthest, furthest), (furthest, furthest)), mode="symmetric")
    cut = padded[:, furthest + down : furthest + down + height, furthest + right : furthest + right + width]
    return cut[:, :, ::-1] if flip else cut


@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize(("shape", "furthest"), [((3, 32, 32), 4), ((1, 16, 16), 2), ((1, 8, 12), 1)])
def test_crops_equal_padding_by_mirror_images(flips: bool, shape: tuple[int, int, int], furthest: int) -> None:
    images, drawn = torch.rand(200, *shape), Crop(flips).draw(200, Noise(seed=0))
    found = Crop(flips).apply(images, drawn)
    shifts = np.floor(drawn[:2].numpy() * (2 * furthest + 1)).astype(int) - furthest
    assert {*shifts.flatten()} == set(range(-furthest, furthest + 1)), "every shift is drawn"
    for image, got, down, right, third in zip(images, found, *shifts, drawn[2], strict=True):
        flip = flips and float(third) < 0.5
        assert np.array_equal(got.numpy(), cropped(image.numpy(), int(down), int(right), flip, furthest))


def test_half_of_the_crops_are_mirrored() -> None:
    image = torch.arange(4.0).expand(1, 1, 4, 4)
    found = Crop(flips=True).apply(image.repeat(4000, 1, 1, 1), Crop(flips=True).draw(4000, Noise(seed=1)))
    rising = found[:, 0, 0, -1] > found[:, 0, 0, 0]
    assert 0.46 < float(rising.float().mean()) < 0.54


def test_largest_draw_stays_within_the_shifts() -> None:
    image = torch.rand(1, 1, 8, 8)
    found = Crop(flips=False).apply(image, torch.ones(3, 1))
    assert np.array_equal(found[0].numpy(), cropped(image[0].numpy(), 1, 1, False, 1))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_views_belong_to_their_record(name: AugmentationName) -> None:
    """A record has the same views in any sample, and other ones than its neighbour in the batch."""
    augmentation, images = AUGMENTATIONS[name], torch.rand(6, 1, 16, 16)
    drawn = augmentation.draw(6 * 3, Noise(seed=0))

    def seen(records: list[int]) -> Tensor:
        return views(images[records], 3, torch.tensor(records), drawn, augmentation).unflatten(0, (len(records), 3))

    whole = seen([0, 1, 2, 3, 4, 5])
    assert torch.equal(seen([1, 4]), whole[[1, 4]])
    assert len({tuple(view.flatten().tolist()) for view in whole[2]}) > 1, "the views differ"


def test_views_without_draws_are_the_images() -> None:
    images = torch.rand(3, 1, 8, 8)
    assert views(images, 1, torch.arange(3), None, AUGMENTATIONS["crop"]) is images


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_broken_image_has_only_broken_views(name: AugmentationName) -> None:
    """An absent record of a game is NaN, and none of its views may look like a record."""
    augmentation = AUGMENTATIONS[name]
    drawn = augmentation.draw(8, Noise(seed=0))
    found = views(torch.full((2, 1, 1, 2), torch.nan), 4, torch.arange(2), drawn, augmentation)
    assert found.flatten(1).sum(1).isnan().all()
