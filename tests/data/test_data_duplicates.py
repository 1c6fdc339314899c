"""No image is in two parts of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench import data
from bench.data.parts import Deduplicated, count_near_duplicates, remove_duplicates
from bench.errors import BenchError
from bench.pipeline.material import Wanted, load_material


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
    found = remove_duplicates(given, shared)
    assert found.data is given and found.split is shared and found.removed == {}


def test_every_copy_stays_in_the_first_part_that_has_it() -> None:
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
    assert len(set().union(*map(rows, parts))) == sum(map(len, parts)) - 1  # the copy within the private part stays


PARTS = ("test", "public", "aux", "private", "no")
"""The part that has another image like the private record."""


def with_record(of: str, name: str) -> tuple[data.ImageData, data.Split, int]:
    """A data set one of whose private records is a copy of an image of a part, its split, and the record's row."""
    given = make(400, name="npz-mine")
    shared = data.split(given, name, public=True)
    assert shared.public is not None
    row = int(shared.private[4])
    alike = {
        "test": given.test_images[3],
        "public": given.train_images[shared.public[1]],
        "aux": given.train_images[shared.aux[2]],
        "private": given.train_images[shared.private[9]],
        "no": 255 - given.train_images[row],
    }
    given.train_images[row] = alike[of]
    return given, shared, row


def without_record(given: data.ImageData, shared: data.Split, row: int) -> Deduplicated:
    """Return the remaining duplicates without the record; all others keep their positions."""
    return remove_duplicates(given, replace(shared, private=shared.private[shared.private != row]))


@pytest.mark.parametrize("of", PARTS)
def test_one_private_record_moves_no_other_part(of: str) -> None:
    given, shared, row = with_record(of, "iid")
    one, other = remove_duplicates(given, shared), without_record(given, shared, row)
    assert torch.equal(one.data.test_images, other.data.test_images)
    assert torch.equal(one.data.test_labels, other.data.test_labels)
    for part in ("aux", "public"):
        found = [each.data.train_images[getattr(each.split, part)] for each in (one, other)]
        assert torch.equal(*found)
    assert {**one.removed, "private": 0} == {**other.removed, "private": 0}


@pytest.mark.parametrize("of", PARTS)
def test_private_parts_of_neighbours_differ_in_one_record(of: str) -> None:
    given, shared, row = with_record(of, "iid")
    images, labels = data.private_part(*_of(remove_duplicates(given, shared)))
    left, left_labels = data.private_part(*_of(without_record(given, shared, row)))
    if of in ("private", "no"):
        rest = torch.arange(len(images)) != 4
        assert torch.equal(images[4], given.train_images[row])
        images, labels = images[rest], labels[rest]
    assert torch.equal(images, left) and torch.equal(labels, left_labels)


def _of(found: Deduplicated) -> tuple[data.ImageData, data.Split]:
    return found.data, found.split


def test_wrong_labels_do_not_depend_on_removed_copies() -> None:
    """Which labels are wrong under split canaries is decided before copies are removed."""
    given, shared, row = with_record("test", "canaries")
    as_other = make(400, name="npz-mine")
    as_other.train_images[row] = 255 - as_other.train_images[row]  # no copy: it stays
    whole, whole_labels = data.private_part(*_of(remove_duplicates(as_other, shared)))
    found = remove_duplicates(given, shared)
    images, labels = data.private_part(*_of(found))
    rest = torch.arange(len(whole)) != 4
    assert torch.equal(images, whole[rest]) and torch.equal(labels, whole_labels[rest])
    wrong = data.mislabelled(*_of(found))
    assert wrong is not None and bool((labels[wrong] != found.data.train_labels[found.split.private][wrong]).all())


def test_split_of_copies_alone_is_refused() -> None:
    given = make()
    shared = data.split(given, "iid")
    given.train_images[shared.private] = given.test_images[0]
    with pytest.raises(BenchError, match="every private image"):
        remove_duplicates(given, shared)
    given.train_images[shared.aux] = given.test_images[0]
    with pytest.raises(BenchError, match="every image of the attacker"):
        remove_duplicates(given, shared)


def test_copies_in_another_data_set_leave_the_private_part() -> None:
    given = make()
    others = torch.cat([given.train_images[:2], given.test_images[:1], 255 - given.train_images[:4]])
    shared = data.Split("cross", torch.arange(120), torch.arange(0), "other")  # type: ignore[arg-type]
    found = remove_duplicates(given, shared, other=others)
    assert found.other is not None and len(found.other) == 6 and found.removed == {"private": 2, "aux": 1}
    assert torch.equal(found.data.train_images[found.split.private], given.train_images[2:])
    with pytest.raises(BenchError, match="every image of 'other'"):
        remove_duplicates(given, shared, other=given.test_images[:1])


def test_material_test_set_is_fixed_and_spec_differs(tmp_path: Path) -> None:
    """Counts and measurements of the test set are the same for every private record that is a duplicate."""
    found = {}
    for of in ("test", "no"):
        given, _, _ = with_record(of, "iid")
        file = tmp_path / of / "mine.npz"
        file.parent.mkdir()
        arrays = {
            "train_images": given.train_images[:, 0],
            "train_labels": given.train_labels,
            "test_images": given.test_images[:, 0],
            "test_labels": given.test_labels,
        }
        np.savez(file, **{key: array.numpy() for key, array in arrays.items()})
        found[of] = load_material(Wanted(f"npz:{file}", "iid"))
    one, other = found["test"], found["no"]
    assert torch.equal(one.data.test_images, other.data.test_images)
    assert torch.equal(one.aux, other.aux) and one.aux_fingerprint == other.aux_fingerprint
    assert one.data.fingerprint != other.data.fingerprint
    counts = [{part: each.counts[part] for part in ("test", "aux")} for each in (one, other)]
    assert counts[0] == counts[1]
    assert (len(other.private[0]) - len(one.private[0])) == one.counts["copies_removed"]["private"] == 1


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
    assert count_near_duplicates(found, everything) == {"test": 4}
    assert count_near_duplicates(make(), data.split(make(), "iid")) is None
