"""Splits: which record is in which part; golden values; and the images of the attacker."""

import dataclasses
import hashlib
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from conftest import refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import LongTensor, Tensor

from bench import data
from bench.data import ImageData, splits
from bench.errors import BadData, BenchError, UnknownName

Shape = tuple[int, int, int]


def make(name: str = "toy", total: int = 60, classes: int = 4, shape: Shape = (1, 4, 4)) -> ImageData:
    """Every training image is filled with its own index; test images with 255."""
    images = torch.arange(total, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, *shape).contiguous()
    labels = torch.arange(total) % classes
    test = torch.full((classes, *shape), 255, dtype=torch.uint8)
    return ImageData(name, images, labels, test, torch.arange(classes), tuple(map(str, range(classes))))


def by_hash(total: int, prefix: str = "toy:") -> list[int]:
    """Indices in the order of their hashes."""
    return sorted(range(total), key=lambda index: hashlib.sha256(f"{prefix}{index}".encode()).hexdigest())


def never(name: str) -> ImageData:
    raise AssertionError(f"no other data set should be loaded, not {name}")


def filled(images: Tensor) -> list[int]:
    """The indices that images of `make` are filled with."""
    return images[:, 0, 0, 0].tolist()


def digest(indices: LongTensor) -> str:
    return hashlib.sha256(",".join(map(str, indices.tolist())).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("of", "name", "public", "error", "values"),
    [
        (make(), "idd", False, UnknownName, ("'iid'",)),
        (make(total=599), "few", False, BadData, ("600", "599")),
        (make(total=5), "iid", False, BadData, ("6", "5")),
        (make(total=11), "iid", True, BadData, ("'toy'", "2")),
        (make(classes=2), "disjoint-low", False, BadData, ("'toy'", "'disjoint-low'")),
        *((make(classes=n), "disjoint-high", False, BadData, ("'toy'", "'disjoint-high'")) for n in (2, 3)),
        (make(), "identity", False, BadData, ("'toy'", "celeba-id")),
        *((make(name), "full", False, BadData, (f"'{name}'",)) for name in ("digits", "npz-mnist")),
        *((make("mnist"), name, True, BadData, (f"'{name}'",)) for name in ("full", "disjoint-low", "disjoint-high")),
    ],
)
def test_impossible_split_is_refused(
    of: ImageData, name: str, public: bool, error: type[BenchError], values: tuple[str, ...]
) -> None:
    with refuses(error, *values):
        data.split(of, name, public)


@settings(max_examples=25, deadline=None)
@given(
    total=st.integers(6, 200), classes=st.integers(4, 6), name=st.sampled_from(["iid", "disjoint-low", "disjoint-high"])
)
def test_parts_cover_training_set_once(total: int, classes: int, name: str) -> None:
    found = data.split(make(total=total, classes=classes), name)
    private, aux = found.private.tolist(), found.aux.tolist()
    assert sorted(private + aux) == list(range(total)) and private and aux
    assert private == sorted(private) and aux == sorted(aux)
    assert found.private.dtype == found.aux.dtype == torch.int64 and found.aux_dataset is None


def test_iid_takes_smallest_hashes_of_named_indices() -> None:
    found = data.split(make(total=61), "iid")
    assert found.aux.tolist() == sorted(by_hash(61)[:10]) and len(found.private) == 51
    assert data.split(make("other", 61), "iid").aux.tolist() != found.aux.tolist()


def test_iid_depends_on_no_label_or_image() -> None:
    first = make()
    others = {"train_images": 255 - first.train_images, "test_images": first.test_images * 0}
    flipped = dataclasses.replace(first, train_labels=first.train_labels.flip(0), **others)
    assert data.split(first, "iid").aux.tolist() == data.split(flipped, "iid").aux.tolist()


def test_digits_splits_are_golden() -> None:
    digits = data.load("digits")
    found, public = data.split(digits, "iid"), data.split(digits, "iid", public=True)
    assert (len(found.private), len(found.aux), digest(found.aux)) == (1199, 239, "044595373b388af8")
    assert public.public is not None and (len(public.private), len(public.aux)) == (1199, 120)
    assert (len(public.public), digest(public.public)) == (119, "70376e88871187bd")


def test_few_keeps_300_largest_hashes_private() -> None:
    of = make(total=700)
    found, public = data.split(of, "few"), data.split(of, "few", public=True)
    assert found.private.tolist() == sorted(by_hash(700)[400:]) and found.aux.tolist() == sorted(by_hash(700)[:400])
    assert set(found.private.tolist()) < set(data.split(of, "iid").private.tolist())
    assert public.public is not None and len(public.public) == len(public.aux) == 200
    assert sorted(public.aux.tolist() + public.public.tolist()) == found.aux.tolist()


def test_canaries_are_iid_records_with_wrong_labels() -> None:
    of = make(total=700)
    found, iid = data.split(of, "canaries"), data.split(of, "iid")
    assert torch.equal(found.private, iid.private) and torch.equal(found.aux, iid.aux)
    rows = data.mislabelled(of, found)
    assert rows is not None and data.mislabelled(of, iid) is None
    keys = {row: hashlib.sha256(f"toy:canary {index}".encode()).digest() for row, index in enumerate(iid.private)}
    assert rows.tolist() == sorted(sorted(keys, key=keys.__getitem__)[: len(iid.private) // 20])
    (images, labels), (clean_images, clean) = data.private_part(of, found), data.private_part(of, iid)
    assert torch.equal(images, clean_images) and (labels != clean).nonzero().flatten().tolist() == rows.tolist()
    assert labels.min() >= 0 and labels.max() < of.classes
    # The offset of a canary's label depends only on its index
    offsets = (labels - clean)[rows] % of.classes
    relabelled = dataclasses.replace(of, train_labels=of.train_labels.flip(0))
    others = data.private_part(relabelled, found)[1] - data.private_part(relabelled, iid)[1]
    assert torch.equal(others[rows] % of.classes, offsets)


def test_canaries_need_20_private_records() -> None:
    few = data.split(make(total=23), "canaries")
    with refuses(BadData, "20", "19"):
        data.mislabelled(make(total=23), dataclasses.replace(few, private=few.private[:19]))


def test_choose_canaries_takes_at_most_1000() -> None:
    rows = splits.choose_canaries("toy", torch.arange(50_000))  # type: ignore[arg-type]
    assert len(rows) == 1000 and bool((rows.diff() > 0).all())


def test_wrong_labels_are_uniform_over_other_classes() -> None:
    labels = torch.zeros(20_000, dtype=torch.int64)
    counts = data.wrong_labels("toy:test", range(20_000), labels, 5).bincount(minlength=5)
    assert int(counts[0]) == 0 and bool(((counts[1:] - 5000).abs() < 5 * (20_000 * 3 / 16) ** 0.5).all())


@pytest.mark.parametrize(
    ("classes", "low", "high"),
    [(4, {0, 1}, {2, 3}), (5, {0, 1, 2}, {3, 4}), (10, {0, 1, 2, 3, 4}, {5, 6, 7, 8, 9})],
)
def test_disjoint_splits_divide_classes(classes: int, low: set[int], high: set[int]) -> None:
    of = make(classes=classes)
    for name, private, aux in (("disjoint-low", low, high), ("disjoint-high", high, low)):
        found = data.split(of, name)
        images, labels = data.private_part(of, found)
        assert filled(images) == found.private.tolist() and {index % classes for index in filled(images)} == private
        assert [sorted(private)[label] for label in labels.tolist()] == of.train_labels[found.private].tolist()
        assert {index % classes for index in filled(data.aux_part(of, found, never))} == aux
        assert data.aux_labels(of, found) is None


@pytest.mark.parametrize("total", [12, 61, 200])
def test_public_part_is_half_of_attackers_part(total: int) -> None:
    """Private records do not change, and the attacker keeps the smaller hashes."""
    of = make(total=total)
    without, found = data.split(of, "iid"), data.split(of, "iid", public=True)
    assert without.public is None and data.public_part(of, without) is None
    assert found.private.tolist() == without.private.tolist() and found.public is not None
    attackers, public, rank = found.aux.tolist(), found.public.tolist(), by_hash(total)
    assert sorted(attackers + public) == without.aux.tolist() and public == sorted(public)
    assert len(public) == len(without.aux) // 2 and max(map(rank.index, attackers)) < min(map(rank.index, public))
    images, labels = data.public_part(of, found), data.aux_labels(of, found)
    assert images is not None and filled(images) == public
    assert filled(data.aux_part(of, found, never)) == attackers
    assert labels is not None and labels.tolist() == of.train_labels[found.aux].tolist()


@pytest.mark.parametrize(("name", "other"), [("mnist", "fmnist"), ("fmnist", "mnist")])
def test_full_takes_attackers_images_from_other_set(name: str, other: str) -> None:
    of = make(name)
    found = data.split(of, "full")
    assert found.private.tolist() == list(range(60)) and (len(found.aux), found.aux_dataset) == (0, other)
    loaded = {other: make(other, total=20)}
    assert torch.equal(data.aux_part(of, found, loaded.__getitem__), loaded[other].train_images)
    assert data.aux_labels(of, found) is None and data.split(of, "full", attacked=False).aux_dataset is None


@pytest.mark.parametrize("name", ["iid", "full"])
def test_private_part_is_a_copy(name: str) -> None:
    of = make("mnist")
    images, labels = data.private_part(of, data.split(of, name))
    assert images.dtype == torch.uint8 and labels.tolist() == [index % 4 for index in filled(images)]
    images.zero_()
    labels.zero_()
    assert of.train_images.max() > 0 and of.train_labels.max() > 0


def attackers(shape: Shape, other: ImageData) -> Tensor:
    """The attacker's images from another set, for private images of this shape."""
    of = make("mnist", shape=shape)
    return data.aux_part(of, data.split(of, "full"), lambda _: other)


@pytest.mark.parametrize(("ours", "theirs"), [((3, 8, 8), (1, 4, 4)), ((1, 4, 4), (3, 8, 8)), ((3, 4, 4), (3, 9, 9))])
def test_attackers_images_have_shape_of_private_images(ours: Shape, theirs: Shape) -> None:
    aux = attackers(ours, make(total=20, shape=theirs))
    assert aux.dtype == torch.uint8
    assert torch.equal(aux, torch.arange(20, dtype=torch.uint8).view(-1, 1, 1, 1).expand(20, *ours))


def test_attackers_colours_become_luma() -> None:
    other = make(total=20, shape=(3, 4, 4))
    other.train_images[:] = torch.tensor([100, 50, 200], dtype=torch.uint8).view(3, 1, 1)
    assert set(attackers((1, 4, 4), other).flatten().tolist()) == {round(0.299 * 100 + 0.587 * 50 + 0.114 * 200)}


def test_attackers_images_are_enlarged_bilinearly() -> None:
    other = make(total=2, classes=2, shape=(1, 2, 2))
    other.train_images[0, 0] = torch.tensor([[0, 100], [0, 100]], dtype=torch.uint8)
    assert attackers((1, 2, 4), other)[0, 0].tolist() == [[0, 25, 75, 100]] * 2


def test_attackers_images_are_shrunk_with_triangle_filter() -> None:
    other = make(total=2, classes=2, shape=(1, 16, 16))
    other.train_images[0, 0] = 0
    other.train_images[0, 0, :, ::8] = 240
    inside = sum(1 - abs(column + 0.5 - 4) / 8 for column in range(12))
    left, right = 240 * ((1 - 3.5 / 8) + (1 - 4.5 / 8)) / inside, 240 * (1 - 3.5 / 8) / inside
    assert attackers((1, 2, 2), other)[0, 0].tolist() == [[round(left), round(right)]] * 2


@pytest.mark.parametrize(
    ("private", "aux", "other", "public", "part"),
    [
        ([0, 1], [1, 2], None, None, "private, aux"),
        ([0, 2], [1], None, [2], "private, aux, public"),
        ([0, 10], [1], None, None, "private"),
        ([0, 1], [-1, 2], None, None, "aux"),
        ([1, 0], [2], None, None, "private"),
        ([0, 1], [2, 2], None, None, "aux"),
        ([], [1], None, None, "0 private"),
        ([0], [], None, None, "0 aux"),
        ([0], [1], "fmnist", None, "1 aux"),
        ([0, 2], [1, 9], None, None, ""),
    ],
)
def test_check_split_reports_defect(private: Any, aux: Any, other: Any, public: Any, part: str) -> None:
    parts = [None if rows is None else torch.tensor(rows, dtype=torch.int64) for rows in (private, aux, public)]
    with pytest.raises(RuntimeError, match=part) if part else nullcontext():
        splits.check_split(data.Split("iid", parts[0], parts[1], other, parts[2]), 10)


@pytest.mark.parametrize(("name", "first"), [("disjoint-low", 0), ("disjoint-high", 5)])
def test_private_domain_has_private_classes(name: str, first: int) -> None:
    images = data.load("digits")
    split = data.split(images, name)
    domain, (private, labels) = data.private_domain(images, split), data.private_part(images, split)
    assert domain.class_names == tuple(str(first + number) for number in range(5))
    assert torch.equal(private, domain.train_images) and torch.equal(labels, domain.train_labels)
    kept = (images.test_labels >= first) & (images.test_labels < first + 5)
    assert domain.test_labels.tolist() == (images.test_labels[kept] - first).tolist()
    assert data.private_domain(images, data.split(images, "iid")) is images
