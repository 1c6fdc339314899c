"""No image is in two parts of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench import data
from bench.data.duplicates import near_copies, without_copies, without_private
from bench.errors import BenchError


def make(total: int = 120, tests: int = 24, name: str = "npz-x") -> data.ImageData:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (total + tests, 1, 8, 8), generator=rng, dtype=torch.uint8)
    labels = torch.arange(total + tests) % 3
    return data.ImageData(name, images[:total], labels[:total], images[total:], labels[total:], ("a", "b", "c"))


def rows(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_without_copies_nothing_is_touched() -> None:
    given = make()
    shared = data.split(given, "iid", public=True)
    found = without_copies(given, shared)
    assert found.data is given and found.split is shared and found.removed == {}


def test_copies_are_removed_from_all_parts_but_the_private_one() -> None:
    given = make()
    shared = data.split(given, "iid", public=True)
    assert shared.public is not None
    private, aux, public = shared.private.tolist(), shared.aux.tolist(), shared.public.tolist()
    given.test_images[:2] = given.train_images[private[:2]]
    given.train_images[aux[0]] = given.train_images[private[3]]
    given.train_images[aux[1]] = given.test_images[5]
    given.train_images[aux[2]] = given.train_images[public[0]]
    given.train_images[public[1]] = given.test_images[6]
    found = without_copies(given, shared)
    assert found.removed == {"test": 2, "aux": 3, "public": 1}
    assert len(found.data.test_labels) == 22 and torch.equal(found.split.private, shared.private)
    images = found.data.train_images
    parts = [images[found.split.private], images[found.split.aux], images[found.split.public], found.data.test_images]
    assert len(set().union(*map(rows, parts))) == sum(map(len, parts))


def test_which_images_are_public_does_not_depend_on_a_private_record() -> None:
    """A method asks about public images: one that a private record took away would show that the record is there."""
    given = make()
    shared = data.split(given, "iid", public=True)
    assert shared.public is not None
    private, aux, public = shared.private.tolist(), shared.aux.tolist(), shared.public.tolist()
    without = without_copies(given, shared)
    given.train_images[private[4]] = given.train_images[public[1]]
    given.test_images[3] = given.train_images[aux[0]]
    with_record = without_copies(given, shared)
    assert with_record.removed == {"aux": 1}
    assert with_record.split.public is not None and without.split.public is not None
    assert torch.equal(with_record.split.public, without.split.public)


def test_a_test_set_of_copies_is_refused() -> None:
    given = make()
    shared = data.split(given, "iid")
    given.test_images[:] = given.train_images[shared.private[:24]]
    with pytest.raises(BenchError, match="every test image is a private one too"):
        without_copies(given, shared)


def test_another_data_set_brings_no_private_or_test_image() -> None:
    given = make()
    others = torch.cat([given.train_images[:2], given.test_images[:1], 255 - given.train_images[:4]])
    shared = data.Split("cross", torch.arange(120), torch.arange(0), "other")  # type: ignore[arg-type]
    assert len(without_private(others, given, shared)) == 4


def test_near_copies_are_counted_and_stay(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    for number, pixels in enumerate(coarse):
        part = "test" if number < 10 else "train"
        smooth = Image.fromarray(pixels).resize((48, 48), Image.Resampling.BICUBIC)
        for label in ("a", "b") if number in (3, 4) else ("ab"[number % 2],):
            file = tmp_path / part / label / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            smooth.save(file, quality=95)
    for number in (3, 4):  # encoded again, these test images are in the training set as well
        Image.open(tmp_path / "test" / "a" / f"{number}.jpg").save(
            tmp_path / "train" / "a" / f"again{number}.jpg", quality=80
        )
    found = data.load(f"imagefolder:{tmp_path}@48")
    everything = data.Split("full", torch.arange(len(found.train_labels)), torch.arange(0), "other")  # type: ignore[arg-type]
    assert near_copies(found, everything) == {"test": 4}
    assert near_copies(make(), data.split(make(), "iid")) is None
