"""Groups of a user's own records, and disjoint parts: published client sizes, parts that depend on no other record."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refuses
from data_made import refusal
from PIL import Image
from torch import Tensor

from bench import data
from bench.data.dataset import Reading
from bench.data.groups import is_held_out, read_groups
from bench.data.partition import PARTITIONS, by_dirichlet, by_hash, partition, with_guests
from bench.errors import BadOption, NotFound, UnknownName
from bench.pipeline.material import Wanted, load_material

COUNT = 120
X = np.random.RandomState(0).randint(0, 256, (COUNT, 8, 8)).astype(np.uint8)
Y = np.arange(COUNT) % 3
GROUPS = np.array([f"patient {number // 4}" for number in range(COUNT)])


def saved(path: Path, **arrays: Any) -> str:
    np.savez(path / "mine.npz", **arrays)
    return f"npz:{path / 'mine.npz'}"


def folder(path: Path) -> dict[str, str]:
    """Write 60 files in three classes, without parts; return the group of each."""
    found = {}
    for number in range(60):
        file = path / "abc"[number % 3] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(X[number]).resize((16, 16)).save(file)
        found[file.relative_to(path).as_posix()] = f"p{number // 4}"
    return found


def written(path: Path, groups: dict[str, str]) -> Path:
    path.write_text("path,group,age\n" + "".join(f"{file},{group},9\n" for file, group in groups.items()))
    return path


def test_groups_of_arrays_are_numbered_over_both_parts(tmp_path: Path) -> None:
    found = data.load(saved(tmp_path, **BOTH, groups_train=GROUPS, test_groups=GROUPS[::-1]))
    assert found.train_groups is not None and found.test_groups is not None
    assert torch.equal(found.train_groups, found.test_groups.flip(0)) and len(found.train_groups.unique()) == 30
    plain = data.load(saved(tmp_path, **BOTH))
    assert plain.train_groups is None and plain.fingerprint != found.fingerprint


@pytest.mark.parametrize("images", ["x", "x_train"])
def test_groups_without_a_test_part_are_held_out_as_a_whole(images: str, tmp_path: Path) -> None:
    found = data.load(saved(tmp_path, **{images: X, images.replace("x", "y"): Y, "groups": GROUPS}))
    train, test = (set(found.train_groups.tolist()), set(found.test_groups.tolist()))  # type: ignore[union-attr]
    held_out = sum(is_held_out(f"patient {number}") for number in range(30))
    assert not train & test and len(train) + len(test) == 30 and len(test) == held_out > 0


def test_from_arrays_takes_groups(tmp_path: Path) -> None:
    own = data.from_arrays(X, Y, X, Y, name="mine", groups=GROUPS, groups_test=np.arange(COUNT) + 500)
    found = data.load(own.save(tmp_path), reading=own.reading)
    assert found.train_groups is not None and len(found.train_groups.unique()) == 30


@pytest.mark.parametrize("given", [True, False], ids=["option", "in the folder"])
def test_groups_of_an_image_folder(given: bool, tmp_path: Path) -> None:
    path = tmp_path / "rooms"
    file = written(tmp_path / "who.csv" if given else path / "groups.csv", folder(path))
    found = data.load(f"imagefolder:{path}@16", reading=Reading(groups=file if given else None))
    assert found.train_groups is not None and found.test_groups is not None
    assert not set(found.train_groups.tolist()) & set(found.test_groups.tolist())
    assert len(torch.cat([found.train_groups, found.test_groups]).unique()) == 15


def test_split_keeps_each_record_with_its_group(tmp_path: Path) -> None:
    """Pixels tell the group, so that a record with another's group would show; some records are removed as copies."""
    images = np.repeat(np.arange(COUNT) // 4, 64).reshape(COUNT, 8, 8).astype(np.uint8) * 8
    images[:, 0, 0] = np.arange(COUNT)
    test = np.concatenate([images[:3], 255 - images[3:30]])
    name = saved(tmp_path, x_train=images, y_train=Y, x_test=test, y_test=Y[:30], train_groups=np.arange(COUNT) // 4,
                 test_groups=np.arange(30) + 100)  # fmt: skip
    for split in ("iid", "identity"):
        found = load_material(Wanted(name, split))
        assert found.private_groups is not None
        shown = found.private[0][:, 0, 7, 7].tolist()
        pairs = set(zip(shown, found.private_groups.tolist(), strict=True))
        assert len(pairs) == len(set(shown)) == len(found.private_groups.unique()) == found.counts["private_groups"]
    assert len(set(shown)) == 25 and not set(found.aux[:, 0, 7, 7].tolist()) & set(shown)


BOTH = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        (BOTH | {"train_groups": GROUPS}, "test_groups"),
        (BOTH | {"groups": GROUPS}, "train_groups"),
        ({"x": X, "y": Y, "groups": GROUPS[:9]}, "groups"),
        ({"x": X, "y": Y, "groups": Y / 2}, "float64"),
        ({"x": X, "y": Y, "groups": np.where(Y == 1, "", "a")}, "position 1"),
        ({"x": X, "y": Y, "groups": Y, "group": Y}, "group"),
    ],
)
def test_wrong_groups_of_arrays_are_refused(arrays: dict[str, Any], named: str, tmp_path: Path) -> None:
    refusal(saved(tmp_path, **arrays), named)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("file,group\na/0.png,1\n", "path"),
        ("path,group\na/0.png,\n", "line 2"),
        ("path,group\na/0.png,1\na/0.png,2\n", "a/0.png"),
        ("path,group\na/0.png,1\n", "a/"),
    ],
)
def test_wrong_files_of_groups_are_refused(text: str, named: str, tmp_path: Path) -> None:
    folder(tmp_path / "rooms")
    (tmp_path / "rooms" / "groups.csv").write_text(text)
    refusal(f"imagefolder:{tmp_path / 'rooms'}", named)


def test_missing_file_of_groups_is_refused(tmp_path: Path) -> None:
    with refuses(NotFound, "none.csv"):
        read_groups(tmp_path / "none.csv", "data set 'mine'")
    folder(tmp_path / "rooms")
    with refuses(NotFound, "none.csv"):
        data.from_folder(tmp_path / "rooms", groups=tmp_path / "none.csv")


def test_option_for_other_data_sets_is_refused() -> None:
    refusal("digits", "--groups", error=BadOption, reading=Reading(groups=Path("who.csv")))


CIFAR10 = (5000,) * 10
MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
FMNIST = (6000,) * 10
FIRST_CLIENT = [156, 709, 301, 2629, 20, 651, 915, 113, 180, 2133]
"""Images of each class of DENSE's first client of CIFAR-10."""


def noise(count: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        (CIFAR10, [7807, 12991, 10877, 10922, 7403]),
        (MNIST, [12173, 12364, 12034, 9587, 13842]),
        (FMNIST, [9794, 13644, 12431, 12103, 12028]),
    ],
    ids=["cifar10", "mnist", "fmnist"],
)
def test_dirichlet_balanced_has_published_client_sizes(counts: tuple[int, ...], sizes: list[int]) -> None:
    labels = np.repeat(np.arange(10), counts)
    parts = by_dirichlet(labels, 5, 0.5, seed=1, balanced=True)
    assert [len(part) for part in parts] == sizes
    if counts == CIFAR10:
        assert np.bincount(labels[parts[0]], minlength=10).tolist() == FIRST_CLIENT


@pytest.mark.parametrize("name", PARTITIONS)
def test_parts_are_disjoint_and_complete(name: str) -> None:
    parts = partition(noise(400, 0), torch.arange(400) % 4, 7, name, 0.5, 3)
    assert len(parts) == 7 and sorted(np.concatenate(parts).tolist()) == list(range(400))


def test_dirichlet_shares_have_mean_and_variance_of_law() -> None:
    """Share of one class on one of 4 clients at alpha 2: mean 1/4, variance (1/4)(3/4)/(4 * 2 + 1)."""
    labels = np.zeros(1000, dtype=np.int64)
    first = np.array([len(by_dirichlet(labels, 4, 2.0, seed, False)[0]) / 1000 for seed in range(400)])
    assert abs(first.mean() - 0.25) < 0.025 and 0.75 < first.var() / (3 / 16 / 9) < 1.3


def test_dirichlet_balanced_limits_clients_at_small_alpha() -> None:
    """Ten classes over five clients: at most an equal part, except its last record, and one class more."""
    labels = np.repeat(np.arange(10), 100)
    sizes = [len(part) for seed in range(60) for part in by_dirichlet(labels, 5, 1e-3, seed, balanced=True)]
    assert max(sizes) <= 200 - 1 + 100 and sum(sizes) == 60 * 1000


def test_by_hash_replaced_record_moves_no_other() -> None:
    images = noise(300, 1)
    other = images.clone()
    other[17] = 255 - other[17]
    rest = [set(part) - {17} for part in by_hash(images, 5, 0)]
    assert rest == [set(part) - {17} for part in by_hash(other, 5, 0)]
    removed = by_hash(torch.cat([images[:17], images[18:]]), 5, 0)
    assert rest == [{i if i < 17 else i + 1 for i in part} for part in removed]


@pytest.mark.parametrize("name", PARTITIONS)
def test_with_guests_moves_no_other_record(name: str) -> None:
    images, labels, guests = noise(300, 1), torch.arange(300) % 3, (0, 1, 5)
    without = partition(images[:295], labels[:295], 4, name, 0.5, 0)
    found = [with_guests(images[: 295 + g], labels[: 295 + g], g, 4, name, 0.5, 0) for g in guests]
    for g, parts in zip(guests, found, strict=True):
        assert sorted(np.concatenate(parts)) == list(range(295 + g))
        assert [sorted(part[part < 295]) for part in parts] == [sorted(part) for part in without]
    holder = [next(j for j, part in enumerate(parts) if 295 in part) for parts in found[1:]]
    assert holder[0] == holder[1], "a guest's client depends on no other guest"
    if name == "hash":
        same = partition(images, labels, 4, name, 0.5, 0)
        assert [part.tolist() for part in found[2]] == [part.tolist() for part in same]
    else:
        moved = partition(images[:296], labels[:296], 4, name, 0.5, 0)
        assert any(set(a) != set(b[b < 295]) for a, b in zip(without, moved, strict=True)), (
            "one more label moves others"
        )


def test_by_hash_parts_are_about_equal_and_salted_by_seed() -> None:
    images = noise(5000, 2)
    sizes = np.array([len(part) for part in by_hash(images, 10, 0)])
    chi_square = ((sizes - 500) ** 2 / 500).sum()
    assert 1.7 < chi_square < 23.6, "9 degrees of freedom, 0.5 % on either side"
    assert [part.tolist() for part in by_hash(images, 10, 1)] != [part.tolist() for part in by_hash(images, 10, 0)]


@pytest.mark.parametrize(
    ("count", "name", "alpha", "error", "value"),
    [
        (0, "hash", 0.5, BadOption, "40"),
        (41, "hash", 0.5, BadOption, "41"),
        (4, "random", 0.5, UnknownName, "'random'"),
        (4, "dirichlet", 0.0, BadOption, "0.0"),
        (4, "dirichlet", 1e-4, BadOption, "0.0001"),
    ],
)
def test_partition_bad_request_is_refused(count: int, name: str, alpha: float, error: type, value: str) -> None:
    with refuses(error, value):
        partition(torch.zeros(40, 1, 8, 8, dtype=torch.uint8), torch.arange(40) % 2, count, name, alpha, 0)
