from __future__ import annotations

import dataclasses
import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import data
from bench.data import splits
from bench.errors import BenchError


def make(
    name: str = "toy", total: int = 60, classes: int = 4, shape: tuple[int, int, int] = (1, 4, 4)
) -> data.ImageData:
    """Every training image is filled with its own index; test images with 255."""
    images = torch.arange(total, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, *shape).contiguous()
    labels = torch.arange(total) % classes
    test = torch.full((classes, *shape), 255, dtype=torch.uint8)
    return data.ImageData(name, images, labels, test, torch.arange(classes), tuple(map(str, range(classes))))


def refusal(of: data.ImageData, name: str) -> str:
    with pytest.raises(BenchError) as caught:
        data.split(of, name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def never(name: str) -> data.ImageData:
    raise AssertionError(f"no other data set should be loaded, not {name}")


def test_split_names() -> None:
    assert set(data.split_names()) == {
        *("iid", "canaries", "few", "full", "disjoint-low", "disjoint-high", "identity", "cross"),
    }
    assert "Did you mean 'iid'" in refusal(make(), "idd")


@settings(max_examples=25, deadline=None)
@given(
    total=st.integers(6, 200), classes=st.integers(4, 6), name=st.sampled_from(["iid", "disjoint-low", "disjoint-high"])
)
def test_parts_cover_the_training_set_once(total: int, classes: int, name: str) -> None:
    found = data.split(make(total=total, classes=classes), name)
    private, aux = found.private.tolist(), found.aux.tolist()
    assert sorted(private + aux) == list(range(total))
    assert private == sorted(private)
    assert aux == sorted(aux)
    assert private
    assert aux
    assert found.private.dtype == found.aux.dtype == torch.int64
    assert found.aux_dataset is None


def test_iid_takes_the_smallest_hashes_and_depends_on_the_name() -> None:
    found = data.split(make("toy", 61), "iid")
    keys = {index: hashlib.sha256(f"toy:{index}".encode()).hexdigest() for index in range(61)}
    assert found.aux.tolist() == sorted(sorted(keys, key=keys.__getitem__)[:10])
    assert len(found.private) == 51
    assert data.split(make("other", 61), "iid").aux.tolist() != found.aux.tolist()


def test_few_keeps_the_300_largest_hashes_private() -> None:
    found = data.split(make("toy", 700), "few")
    keys = {index: hashlib.sha256(f"toy:{index}".encode()).hexdigest() for index in range(700)}
    assert found.private.tolist() == sorted(sorted(keys, key=keys.__getitem__)[400:])
    assert found.aux.tolist() == sorted(sorted(keys, key=keys.__getitem__)[:400])
    assert found.aux_dataset is None
    assert set(found.private.tolist()) < set(data.split(make("toy", 700), "iid").private.tolist())


def test_few_has_a_public_part_and_needs_600_images() -> None:
    found = data.split(make("toy", 700), "few", public=True)
    assert found.public is not None
    assert len(found.public) == len(found.aux) == 200
    assert not set(found.public.tolist()) & (set(found.aux.tolist()) | set(found.private.tolist()))
    assert refusal(make("toy", 599), "few").startswith("split 'few' needs 600 or more training images")


def test_canaries_are_private_records_of_iid_with_another_label() -> None:
    of = make("toy", 700)
    found, iid = data.split(of, "canaries"), data.split(of, "iid")
    assert torch.equal(found.private, iid.private) and torch.equal(found.aux, iid.aux)
    rows = data.mislabelled(of, found)
    assert rows is not None and data.mislabelled(of, iid) is None
    keys = {row: hashlib.sha256(f"toy:canary {index}".encode()).digest() for row, index in enumerate(iid.private)}
    assert rows.tolist() == sorted(sorted(keys, key=keys.__getitem__)[: len(iid.private) // 20])
    images, labels = data.private_part(of, found)
    clean_images, clean = data.private_part(of, iid)
    assert torch.equal(images, clean_images) and (labels != clean).nonzero().flatten().tolist() == rows.tolist()
    assert labels.min() >= 0 and labels.max() < of.classes
    # The label of a canary depends only on its index
    moved = (labels - clean)[rows] % of.classes
    relabelled = dataclasses.replace(of, train_labels=of.train_labels.flip(0))
    others = data.private_part(relabelled, found)[1] - data.private_part(relabelled, iid)[1]
    assert torch.equal(others[rows] % of.classes, moved)
    few = data.split(make("toy", 23), "canaries")
    with pytest.raises(
        BenchError, match="split 'canaries' needs 20 or more private images; data set 'toy' has 19"
    ) as no:
        data.mislabelled(make("toy", 23), dataclasses.replace(few, private=few.private[:19]))
    assert "\n" not in str(no.value)


def test_at_most_a_thousand_records_are_canaries_and_every_wrong_class_is_as_likely() -> None:
    rows = splits.choose_canaries("toy", torch.arange(50_000))
    assert len(rows) == 1000 and bool((rows.diff() > 0).all())
    labels = torch.zeros(20_000, dtype=torch.int64)
    counts = data.wrong_labels("toy:test", range(20_000), labels, 5).bincount(minlength=5)
    assert int(counts[0]) == 0 and bool(((counts[1:] - 5000).abs() < 5 * (20_000 * 3 / 16) ** 0.5).all())
    assert not torch.equal(data.wrong_labels("toy:train", range(9), labels[:9], 5), labels[:9])


def test_iid_does_not_look_at_labels_images_or_test() -> None:
    first = make(classes=4)
    flipped = dataclasses.replace(
        first,
        train_images=255 - first.train_images,
        train_labels=first.train_labels.flip(0),
        test_images=first.test_images * 0,
    )
    assert data.split(first, "iid").aux.tolist() == data.split(flipped, "iid").aux.tolist()


def test_iid_on_digits_is_golden() -> None:
    found = data.split(data.load("digits"), "iid")
    assert (len(found.private), len(found.aux)) == (1199, 239)
    digest = hashlib.sha256(",".join(map(str, found.aux.tolist())).encode()).hexdigest()
    assert digest[:16] == "044595373b388af8"


@pytest.mark.parametrize(
    ("classes", "low", "high"),
    [(4, {0, 1}, {2, 3}), (5, {0, 1, 2}, {3, 4}), (10, {0, 1, 2, 3, 4}, {5, 6, 7, 8, 9})],
)
def test_disjoint_splits_divide_the_classes(classes: int, low: set[int], high: set[int]) -> None:
    of = make(classes=classes)
    for name, private, aux in (("disjoint-low", low, high), ("disjoint-high", high, low)):
        found = data.split(of, name)
        images, labels = data.private_part(of, found)
        assert set((images[:, 0, 0, 0].long() % classes).tolist()) == private
        assert [sorted(private)[label] for label in labels.tolist()] == of.train_labels[found.private].tolist()
        assert images[:, 0, 0, 0].tolist() == found.private.tolist()
        assert set((data.aux_part(of, found, never)[:, 0, 0, 0].long() % classes).tolist()) == aux


@pytest.mark.parametrize(("classes", "name"), [(2, "disjoint-low"), (2, "disjoint-high"), (3, "disjoint-high")])
def test_disjoint_needs_two_private_classes(classes: int, name: str) -> None:
    message = refusal(make(classes=classes), name)
    assert "toy" in message
    assert name in message


@pytest.mark.parametrize("total", [12, 61, 200])
def test_a_public_part_is_half_of_the_attackers_and_takes_nothing_else(total: int) -> None:
    """The teachers' records stay, the attacker keeps the smaller hashes, and the test set (all 255) is in no part."""
    of = make("toy", total)
    without, found = data.split(of, "iid"), data.split(of, "iid", public=True)
    assert without.public is None and data.public_part(of, without) is None
    assert found.private.tolist() == without.private.tolist()
    assert found.public is not None
    attackers, public = found.aux.tolist(), found.public.tolist()
    assert sorted(attackers + public) == without.aux.tolist() and public == sorted(public)
    assert len(public) == len(without.aux) // 2
    keys = {index: hashlib.sha256(f"toy:{index}".encode()).hexdigest() for index in range(total)}
    assert max(keys[i] for i in attackers) < min(keys[i] for i in public)
    images = data.public_part(of, found)
    assert images is not None and images[:, 0, 0, 0].tolist() == public
    assert data.aux_part(of, found, never)[:, 0, 0, 0].tolist() == attackers
    assert data.aux_labels(of, found).tolist() == of.train_labels[found.aux].tolist()  # type: ignore[union-attr]


def test_the_public_part_of_digits_is_golden() -> None:
    found = data.split(data.load("digits"), "iid", public=True)
    assert found.public is not None and (len(found.private), len(found.aux), len(found.public)) == (1199, 120, 119)
    digest = hashlib.sha256(",".join(map(str, found.public.tolist())).encode()).hexdigest()
    assert digest[:16] == "70376e88871187bd"


@pytest.mark.parametrize("name", ["full", "disjoint-low", "disjoint-high"])
def test_other_splits_have_no_public_images_of_the_private_distribution(name: str) -> None:
    with pytest.raises(BenchError, match=f"split '{name}' has no public images") as caught:
        data.split(make("mnist"), name, public=True)
    assert "use iid" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(BenchError, match="expected 2"):
        data.split(make(total=11), "iid", public=True)


def test_iid_needs_six_images() -> None:
    assert "6 or more" in refusal(make(total=5), "iid")
    assert len(data.split(make(total=6), "iid").aux) == 1


@pytest.mark.parametrize(("name", "other"), [("mnist", "fmnist"), ("fmnist", "mnist")])
def test_full_takes_aux_from_the_other_data_set(name: str, other: str) -> None:
    of = make(name)
    found = data.split(of, "full")
    assert found.private.tolist() == list(range(60))
    assert (len(found.aux), found.aux_dataset) == (0, other)
    asked: list[str] = []

    def load_other(wanted: str) -> data.ImageData:
        asked.append(wanted)
        return make(wanted, total=20)

    aux = data.aux_part(of, found, load_other)
    assert asked == [other]
    assert torch.equal(aux, make(other, total=20).train_images)


@pytest.mark.parametrize("name", ["digits", "cifar10", "npz-mnist"])
def test_full_is_refused_elsewhere(name: str) -> None:
    assert f"'{name}'" in refusal(make(name), "full")


def test_parts_keep_dtype_labels_and_order() -> None:
    of = make()
    found = data.split(of, "iid")
    images, labels = data.private_part(of, found)
    assert images.dtype == torch.uint8
    assert labels.tolist() == [index % 4 for index in found.private.tolist()]
    assert data.aux_part(of, found, never)[:, 0, 0, 0].tolist() == found.aux.tolist()


def test_parts_are_copies() -> None:
    of = make("mnist")
    for name in ("iid", "full"):
        images, labels = data.private_part(of, data.split(of, name))
        images.zero_()
        labels.zero_()
    assert of.train_images.max() > 0
    assert of.train_labels.max() > 0


@pytest.mark.parametrize(("ours", "theirs"), [((3, 8, 8), (1, 4, 4)), ((1, 4, 4), (3, 8, 8)), ((3, 4, 4), (3, 9, 9))])
def test_aux_is_brought_to_the_shape_of_the_private_images(
    ours: tuple[int, int, int], theirs: tuple[int, int, int]
) -> None:
    of = make("mnist", shape=ours)
    aux = data.aux_part(of, data.split(of, "full"), lambda name: make(name, total=20, shape=theirs))
    assert aux.shape == (20, *ours)
    assert aux.dtype == torch.uint8
    assert torch.equal(aux, torch.arange(20, dtype=torch.uint8).view(-1, 1, 1, 1).expand(20, *ours))


def test_colour_to_grey_is_luma() -> None:
    of = make("mnist", shape=(1, 4, 4))
    other = make("fmnist", total=20, shape=(3, 4, 4))
    other.train_images[:, 0], other.train_images[:, 1], other.train_images[:, 2] = 100, 50, 200
    aux = data.aux_part(of, data.split(of, "full"), lambda _: other)
    assert set(aux.flatten().tolist()) == {round(0.299 * 100 + 0.587 * 50 + 0.114 * 200)}


def test_enlarged_aux_is_bilinear() -> None:
    of = make("mnist", shape=(1, 2, 4))
    other = make("fmnist", total=2, classes=2, shape=(1, 2, 2))
    other.train_images[0, 0] = torch.tensor([[0, 100], [0, 100]], dtype=torch.uint8)
    aux = data.aux_part(of, data.split(of, "full"), lambda _: other)
    assert aux[0, 0].tolist() == [[0, 25, 75, 100]] * 2


def test_shrunken_aux_is_filtered_by_a_triangle_as_wide_as_the_shrinking() -> None:
    of = make("mnist", shape=(1, 2, 2))
    other = make("fmnist", total=2, classes=2, shape=(1, 16, 16))
    other.train_images[0, 0] = 0
    other.train_images[0, 0, :, ::8] = 240
    aux = data.aux_part(of, data.split(of, "full"), lambda _: other)
    inside = sum(1 - abs(column + 0.5 - 4) / 8 for column in range(12))
    left = 240 * ((1 - 3.5 / 8) + (1 - 4.5 / 8)) / inside
    right = 240 * (1 - 3.5 / 8) / inside
    assert aux[0, 0].tolist() == [[round(left), round(right)]] * 2


@pytest.mark.parametrize(
    ("private", "aux", "other", "says"),
    [
        ([0, 1], [1, 2], None, "overlap"),
        ([0, 10], [1], None, "private indices leave"),
        ([0, 1], [-1, 2], None, "aux indices leave"),
        ([1, 0], [2], None, "private indices are not ascending"),
        ([0, 1], [2, 2], None, "aux indices are not ascending"),
        ([], [1], None, "0 private"),
        ([0], [], None, "0 aux"),
        ([0], [1], "fmnist", "1 aux"),
    ],
)
def test_a_wrong_split_is_a_defect(private: list[int], aux: list[int], other: str | None, says: str) -> None:
    def indices(values: list[int]) -> torch.LongTensor:
        return torch.tensor(values, dtype=torch.int64)  # type: ignore[return-value]

    with pytest.raises(RuntimeError, match=says):
        splits.check_split(data.Split("iid", indices(private), indices(aux), other), 10)
    with pytest.raises(RuntimeError, match="private, aux, public overlap"):
        splits.check_split(data.Split("iid", indices([0, 2]), indices([1]), None, indices([2])), 10)
    splits.check_split(data.Split("iid", indices([0, 2]), indices([1, 9]), None), 10)


@pytest.mark.parametrize(
    ("name", "kept"), [("disjoint-low", ("0", "1", "2", "3", "4")), ("disjoint-high", tuple("56789"))]
)
def test_the_private_domain_is_the_classes_the_teacher_is_taught(name: str, kept: tuple[str, ...]) -> None:
    images = data.load("digits")
    parts = data.split(images, name)
    domain, (private, labels) = data.private_domain(images, parts), data.private_part(images, parts)
    assert domain.class_names == kept and domain.classes == 5
    assert torch.equal(private, domain.train_images) and torch.equal(labels, domain.train_labels)
    assert sorted(domain.test_labels.unique().tolist()) == [0, 1, 2, 3, 4]
    first = int(kept[0])
    assert int((images.test_labels - first).clamp(-1, 5).eq(0).sum()) == int((domain.test_labels == 0).sum())


def test_where_all_classes_are_private_the_domain_is_the_data_set() -> None:
    images = data.load("digits")
    assert data.private_domain(images, data.split(images, "iid")) is images
