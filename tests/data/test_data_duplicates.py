"""No image is in two parts of a run: duplicates are removed, near-duplicates are counted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refuses
from PIL import Image
from torch import Tensor

from bench import data
from bench.data import ImageData, Split
from bench.data.parts import Deduplicated, count_near_duplicates, remove_duplicates
from bench.errors import BadData
from bench.pipeline.material import Wanted, load_material

PARTS = ("test", "public", "aux", "private", "no")
"""The part that has another image like the private record."""


def make(total: int = 120, tests: int = 24, name: str = "npz-x") -> ImageData:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (total + tests, 1, 8, 8), generator=rng, dtype=torch.uint8)
    labels = torch.arange(total + tests) % 3
    return ImageData(name, images[:total], labels[:total], images[total:], labels[total:], ("a", "b", "c"))


def whole_split(private: int) -> Split:
    """A split with all records private and the attacker's images from another data set."""
    return Split("cross", torch.arange(private), torch.arange(0), "other")  # type: ignore[arg-type]


def test_remove_duplicates_without_any_changes_nothing() -> None:
    given = make()
    shared = data.split(given, "iid", public=True)
    found = remove_duplicates(given, shared)
    assert found.data is given and found.split is shared and found.removed == {}


def test_duplicate_stays_in_first_part_that_has_it() -> None:
    given = make()
    shared = data.split(given, "iid", public=True)
    assert shared.public is not None
    private, aux, public = shared.private.tolist(), shared.aux.tolist(), shared.public.tolist()
    given.train_images[private[:2]] = given.test_images[:2]
    given.train_images[aux[0]] = given.train_images[private[3]]
    given.train_images[aux[1]] = given.test_images[5]
    given.train_images[aux[2]] = given.train_images[public[0]]
    given.train_images[public[1]] = given.test_images[6]
    given.train_images[private[4]] = given.train_images[public[2]]
    given.train_images[private[6]] = given.train_images[private[5]]
    found = remove_duplicates(given, shared)
    assert found.removed == {"private": 4, "aux": 2, "public": 1}
    images = found.data.train_images
    gone = {private[row] for row in (0, 1, 3, 4)}
    assert torch.equal(images[found.split.private], given.train_images[[row for row in private if row not in gone]])
    assert torch.equal(found.data.test_images, given.test_images)
    assert found.split.public is not None and len(images) == 120 - 4
    parts = [images[found.split.private], images[found.split.aux], images[found.split.public], found.data.test_images]
    distinct = {image.numpy().tobytes() for part in parts for image in part}
    assert len(distinct) == sum(map(len, parts)) - 1, "the copy within the private part stays"


def with_record(like: str, name: str = "iid") -> tuple[ImageData, Split, int]:
    """A data set one of whose private records is a copy of an image of a part, its split, and the record's row."""
    given = make(400, name="npz-mine")
    shared = data.split(given, name, public=True)
    assert shared.public is not None
    row = int(shared.private[4])
    given.train_images[row] = {
        "test": given.test_images[3],
        "public": given.train_images[shared.public[1]],
        "aux": given.train_images[shared.aux[2]],
        "private": given.train_images[shared.private[9]],
        "no": 255 - given.train_images[row],
    }[like]
    return given, shared, row


def without_record(given: ImageData, shared: Split, row: int) -> Deduplicated:
    """Remove duplicates without the record; all others keep their positions."""
    return remove_duplicates(given, replace(shared, private=shared.private[shared.private != row]))


def private_part(found: Deduplicated) -> tuple[Tensor, Tensor]:
    return data.private_part(found.data, found.split)


@pytest.mark.parametrize("like", PARTS)
def test_private_record_changes_no_other_part(like: str) -> None:
    """The private parts with and without the record differ at most in the record."""
    given, shared, row = with_record(like)
    one, other = remove_duplicates(given, shared), without_record(given, shared, row)
    assert torch.equal(one.data.test_images, other.data.test_images)
    assert torch.equal(one.data.test_labels, other.data.test_labels)
    for part in ("aux", "public"):
        assert torch.equal(*(each.data.train_images[getattr(each.split, part)] for each in (one, other)))
    assert {**one.removed, "private": 0} == {**other.removed, "private": 0}
    (images, labels), (left, left_labels) = private_part(one), private_part(other)
    if like in ("private", "no"):
        rest = torch.arange(len(images)) != 4
        assert torch.equal(images[4], given.train_images[row])
        images, labels = images[rest], labels[rest]
    assert torch.equal(images, left) and torch.equal(labels, left_labels)


def test_wrong_labels_do_not_depend_on_removed_duplicates() -> None:
    """Which labels are wrong under split canaries is decided before duplicates are removed."""
    given, shared, row = with_record("test", "canaries")
    unique = make(400, name="npz-mine")
    unique.train_images[row] = 255 - unique.train_images[row]  # no copy: it stays
    whole, whole_labels = private_part(remove_duplicates(unique, shared))
    found = remove_duplicates(given, shared)
    images, labels = private_part(found)
    rest = torch.arange(len(whole)) != 4
    assert torch.equal(images, whole[rest]) and torch.equal(labels, whole_labels[rest])
    wrong = data.mislabelled(found.data, found.split)
    assert wrong is not None and bool((labels[wrong] != found.data.train_labels[found.split.private][wrong]).all())


def test_part_of_duplicates_only_is_refused() -> None:
    given = make()
    shared = data.split(given, "iid")
    for part in (shared.private, shared.aux):
        given.train_images[part] = given.test_images[0]
        with refuses(BadData, "npz-x", "'iid'"):
            remove_duplicates(given, shared)
    with refuses(BadData, "'other'"):
        remove_duplicates(given, whole_split(120), other=given.test_images[:1])


def test_duplicates_in_another_data_set_are_removed() -> None:
    given = make()
    others = torch.cat([given.train_images[:2], given.test_images[:1], 255 - given.train_images[:4]])
    found = remove_duplicates(given, whole_split(120), other=others)
    assert found.other is not None and len(found.other) == 6 and found.removed == {"private": 2, "aux": 1}
    assert torch.equal(found.data.train_images[found.split.private], given.train_images[2:])


def test_material_with_duplicate_keeps_other_parts(tmp_path: Path) -> None:
    """Counts and measurements of the test set are the same for every private record that is a duplicate."""
    found = {}
    for like in ("test", "no"):
        given, _, _ = with_record(like)
        file = tmp_path / like / "mine.npz"
        file.parent.mkdir()
        keys = ("train_images", "train_labels", "test_images", "test_labels")
        np.savez(file, **{key: getattr(given, key).squeeze().numpy() for key in keys})
        found[like] = load_material(Wanted(f"npz:{file}", "iid"))
    one, other = found["test"], found["no"]
    assert torch.equal(one.data.test_images, other.data.test_images)
    assert torch.equal(one.aux, other.aux) and one.aux_fingerprint == other.aux_fingerprint
    assert one.data.fingerprint != other.data.fingerprint
    assert all(one.counts[part] == other.counts[part] for part in ("test", "aux"))
    assert len(other.private[0]) - len(one.private[0]) == one.counts["copies_removed"]["private"] == 1


def test_near_duplicates_are_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, pixels in enumerate(rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)):
        smooth = Image.fromarray(pixels).resize((48, 48), Image.Resampling.BICUBIC)
        for label in ("a", "b") if number in (3, 4) else ("ab"[number % 2],):
            file = tmp_path / ("test" if number < 10 else "train") / label / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            smooth.save(file, quality=95)
    for number in (3, 4):  # encoded again, these test images are in the training set as well
        with Image.open(tmp_path / "test" / "a" / f"{number}.jpg") as image:
            image.save(tmp_path / "train" / "a" / f"again{number}.jpg", quality=80)
    found = data.load(f"imagefolder:{tmp_path}@48")
    assert count_near_duplicates(found, whole_split(len(found.train_labels))) == {"test": 4}
    assert count_near_duplicates(make(), data.split(make(), "iid")) is None, "arrays have no difference hashes"
