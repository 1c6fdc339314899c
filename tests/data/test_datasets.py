"""The contract of every data set, their facts, scikit-learn's digits, and lines about a user's classes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR10, FashionMNIST

from bench import data, plugins, testing
from bench.data import ImageData
from bench.data.own import class_lines
from bench.data.sets import digits as digits_file

UNPACKED = Path(__file__).resolve().parents[2] / "build" / "data"
"""Where tests/data/test_data_real.py unpacks archives."""
TYPED = [
    *(set(plugins.entries("data set")) - {"medmnist"}),
    *("medmnist:breastmnist", "usps@28", "lfw:60", "celeba-id:25"),
]
"""Names as on the command line: medmnist requires an argument."""


@pytest.mark.parametrize("check", [name for name in dir(testing.DatasetContract) if name.startswith("test_")])
@pytest.mark.parametrize("name", sorted(TYPED))
def test_data_set_contract(name: str, check: str, request: pytest.FixtureRequest) -> None:
    plugin = data.dataset(data.base_name(data.slug(name)))
    root = Path("nowhere") if not plugin.missing(Path("nowhere")) else request.getfixturevalue("data_root")
    root = root if not plugin.missing(root) else UNPACKED
    if plugin.missing(root):
        pytest.skip(f"no {name} in {request.getfixturevalue('data_root')}, nor in {root}")
    getattr(type(f"Test_{name}", (testing.DatasetContract,), {"name": name, "root": root})(), check)()


def test_facts_are_settings_of_papers() -> None:
    facts = {name: data.facts(name) for name in ("digits", "mnist", "fmnist", "cifar10", "npz-mnist")}
    assert [f.prior for f in facts.values()] == ["pen", "pen", "shapes", "shapes", "shapes"]
    assert [f.teachers for f in facts.values()] == [48, None, None, None, None]
    assert [f.dp_dfd_images for f in facts.values()] == [120_000, 50_000, 120_000, 220_000, 120_000]
    assert [f.mmd_bandwidth for f in facts.values()] == [None, 105.0, 127.0, None, None]
    mnist = (512, 4680, 0.5)
    assert [f.dp_sgd for f in facts.values()] == [mnist, mnist, (2048, 1160, 4.0), (1024, 1440, 1.0), mnist]
    assert [f.augments_psg for f in facts.values()] == [True, True, True, False, False]
    assert [f.other for f in facts.values()] == [None, "fmnist", "mnist", None, None]
    assert [f.is_public for f in facts.values()] == [True, True, True, True, False]
    assert {f.candidates for f in facts.values()} == {3}
    assert (data.facts("cifar100").candidates, data.facts("imagenet").candidates) == (50, 300)


def test_facts_of_versions_and_shapes() -> None:
    assert data.facts("cifar10-jpeg") == data.facts("cifar10") != data.facts("cifar100")
    assert data.facts("imagefolder-mnist") == data.DatasetFacts()
    assert data.facts("mnist-rgb").shape == (3, 28, 28) and data.facts("cifar10-grey-16px").shape == (1, 16, 16)


def test_facts_agree_with_torchvision() -> None:
    assert data.facts("fmnist").class_names == tuple(FashionMNIST.classes)
    listed = {name for name, _ in [*CIFAR10.train_list, *CIFAR10.test_list]} | {CIFAR10.meta["filename"]}
    files = data.dataset("cifar10").files(Path("root"))
    assert {file.name for file in files} == listed and files[0].parent == Path("root") / CIFAR10.base_folder


@pytest.mark.thorough
def test_facts_class_names_agree_with_readers(data_root: Path) -> None:
    for name in ("digits", "mnist"):
        images = data.load(name, data_root)
        for split in ("iid", "disjoint-low", "disjoint-high"):
            private = data.private_domain(images, data.split(images, split))
            assert data.facts(images.name).classes_of(split) == private.class_names


def test_facts_of_people_are_of_face_sets() -> None:
    people = {name for name in data.names() if ":" not in name and data.facts(name).of_people}
    assert people == {"celeba-g", "celeba-h", "celeba-id", "lfw"}
    assert all(data.facts(name).prior == "faces" for name in people)


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return data.load("digits")


def test_digits_fingerprint_is_golden(digits: ImageData) -> None:
    assert digits.fingerprint == "e363053ccf9a5bde" and digits.name == data.slug("digits") == "digits"
    assert (digits.shape, len(digits.train_images), len(digits.test_images)) == ((1, 16, 16), 1438, 359)
    assert digits.train_labels.bincount().min() > 120 and digits.test_labels.bincount().min() > 20
    assert (int(digits.train_images.min()), int(digits.train_images.max())) == (0, 255)


def test_digits_test_set_and_enlargement(digits: ImageData) -> None:
    """The test set has the smallest hashes; enlarging is the textbook's bilinear interpolation."""
    raw, target = load_digits().images, torch.from_numpy(load_digits().target).long()
    order = sorted(range(1797), key=lambda index: hashlib.sha256(f"digits:{index}".encode()).hexdigest())
    held_out, kept = sorted(order[:359]), sorted(order[359:])
    assert torch.equal(digits.test_labels, target[held_out]) and torch.equal(digits.train_labels, target[kept])
    weights = np.zeros((16, 8))
    for row in range(16):
        centre = max((row + 0.5) / 2 - 0.5, 0.0)
        low = int(centre)
        weights[row, low] += 1 - (centre - low)
        weights[row, min(low + 1, 7)] += centre - low
    expected = np.rint(weights @ (raw[kept[0]] / 16) @ weights.T * 255)
    assert np.array_equal(digits.train_images[0, 0].numpy(), expected)


@pytest.mark.parametrize("has_file", [True, False])
def test_digits_are_read_as_by_scikit_learn(monkeypatch: pytest.MonkeyPatch, has_file: bool) -> None:
    bunch = load_digits()
    if not has_file:
        monkeypatch.setattr(digits_file.importlib.util, "find_spec", lambda name: None)
    images, target = digits_file.read_digits()
    assert (images == bunch.images).all() and (target == bunch.target).all()


def lines(train: list[int], test: list[int], name: str = "npz-mine") -> list[str]:
    """The lines about a data set with these numbers of training and test images per class."""
    parts = []
    for counts in (train, test):
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        parts += [torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), labels]
    names = tuple(f"class-{number:02}" for number in range(len(train)))
    return list(class_lines(ImageData(name, *parts, names, conversions=("turned",))))


def test_class_lines_count_both_parts() -> None:
    found = lines([120, 2000], [30, 40])
    assert found[0].endswith("turned") and "2,120" in found[1] and "70" in found[1]
    assert [line.split() for line in found[-2:]] == [["class-00", "120", "30"], ["class-01", "2,000", "40"]]
    assert lines([5, 5], [1, 1], "mnist") == [], "published sets have no lines"


@pytest.mark.parametrize(
    ("train", "test", "named"),
    [
        ([20, 20], [5, 5], None),
        ([19, 20, 20], [5, 5, 5], {"class-00"}),
        ([30, 30, 30], [5, 0, 5], {"class-01"}),
        ([20, 400], [5, 5], None),
        ([20, 401], [5, 5], {"class-00", "class-01"}),
    ],
)
def test_class_lines_warn_about_classes(train: list[int], test: list[int], named: set[str] | None) -> None:
    warnings = [line for line in lines(train, test) if "warning" in line]
    assert len(warnings) == (named is not None)
    for warning in warnings:
        assert {f"class-{number:02}" for number in range(3) if f"class-{number:02}" in warning} == named


def test_class_lines_of_many_classes_show_smallest() -> None:
    found = lines([*range(1000, 1100)], [5] * 100)
    shown = " ".join(found)
    assert len(found) < 40 and "class-00" in shown and "class-99" not in shown
