"""The contract of every data set, their facts, scikit-learn's digits, and lines about a user's classes."""

import hashlib
import os
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from filelock import FileLock
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR10, FashionMNIST

from bench import data, plugins, testing
from bench.data import ImageData
from bench.data.own import class_lines
from bench.data.parts import remove_duplicates
from bench.data.sets import digits as digits_file

UNPACKED = ROOT / "build" / "data"
"""Where archives are unpacked."""
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


@pytest.fixture(scope="session")
def unpacked(data_root: Path) -> Path:
    """The archives of real data, unpacked once into an ignored folder."""
    UNPACKED.mkdir(parents=True, exist_ok=True)
    for archive in ("celeba", "lfw-64", "tiny-imagenet-32", "covid-xray-128"):
        with FileLock(UNPACKED / f".{archive}.lock"):
            if (UNPACKED / archive).is_dir():
                continue
            if not (data_root / f"{archive}.tar.xz").is_file():
                pytest.skip(f"no {archive}.tar.xz in {data_root}")
            work = UNPACKED / f".{archive}-{os.getpid()}"
            with tarfile.open(data_root / f"{archive}.tar.xz") as opened:
                opened.extractall(work, filter="data")
            (work / archive).rename(UNPACKED / archive)
            work.rmdir()
    return UNPACKED


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "called", "classes", "train", "test", "outsiders"),
    [
        ("celeba-g", "celeba-g-subset", 2, 8579, 1714, None),
        ("celeba-h", "celeba-h-subset", 3, 4900, 979, None),
        ("celeba-id", "celeba-id-subset", 201, 4245, 996, 10_701),
        ("celeba-id:25", "celeba-id-subset-25", 125, 2919, 692, 12_331),
        ("lfw", "lfw-crop", 62, 1745, 410, 10_210),
        ("lfw:10", "lfw-crop-10", 158, 2820, 636, 8909),
        ("tiny-imagenet", "tiny-imagenet-subset-32px", 200, 20_000, 5000, None),
        ("covid-xray", "covid-xray", 3, 938, 186, None),
    ],
)
def test_counts_of_real_files(
    unpacked: Path, name: str, called: str, classes: int, train: int, test: int, outsiders: int | None
) -> None:
    found = data.load(name, unpacked)
    assert (found.name, found.classes) == (called, classes)
    assert (len(found.train_labels), len(found.test_labels)) == (train, test)
    assert (None if found.outsiders is None else len(found.outsiders)) == outsiders
    assert data.facts(called).shape == found.shape and data.typed(called) == name.replace("net", "net@32")
    removed = remove_duplicates(found, data.split(found, "iid")).removed
    assert removed == {"celeba-id": {"private": 3}, "celeba-id:25": {"private": 2}}.get(name, {})


def has_files(name: str, root: Path) -> Path:
    if data.dataset(name).missing(root):
        pytest.skip(f"no {name} in {root}")
    return root


@pytest.mark.data
def test_real_usps_counts(data_root: Path) -> None:
    found = data.load("usps", has_files("usps", data_root))
    assert (found.name, len(found.train_labels), len(found.test_labels)) == ("usps-npz", 7291, 2007)
    assert found.train_labels.bincount().tolist()[:2] == [1194, 1005]


@pytest.mark.data
def test_real_mnist_is_golden(data_root: Path) -> None:
    found = data.load("mnist", has_files("mnist", data_root))
    assert (len(found.train_labels), len(found.test_labels)) == (60_000, 10_000)
    assert round(float(data.to_float(found.train_images).mean()), 4) == 0.1307
    assert found.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert found.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    header = struct.pack(">4I", 2051, 10_000, 28, 28)
    digest = hashlib.sha256(header + found.test_images.numpy().tobytes()).hexdigest()
    assert digest.startswith("0fa7898d509279e4") and found.fingerprint == "93d0715524ec166c"
    iid, low = data.split(found, "iid"), data.split(found, "disjoint-low")
    assert (len(iid.private), len(iid.aux)) == (50_000, 10_000) and iid.aux[:5].tolist() == [0, 3, 9, 13, 14]
    assert int(found.train_labels[iid.aux].bincount().min()) > 850
    assert (len(low.private), len(low.aux)) == (30_596, 29_404)


@pytest.mark.data
def test_real_fmnist_is_not_mnist(data_root: Path) -> None:
    found = data.load("fmnist", has_files("fmnist", data_root))
    assert round(float(data.to_float(found.train_images).mean()), 4) == 0.2860
    assert found.train_labels.bincount().tolist() == [6000] * 10
    assert found.test_labels.bincount().tolist() == [1000] * 10
    aux = data.aux_part(found, data.split(found, "full"), lambda name: data.load(name, data_root))
    assert torch.equal(aux, data.load("mnist", data_root).train_images)


@pytest.mark.thorough
@pytest.mark.data
@pytest.mark.parametrize(("name", "fingerprint"), [("mnist", "93d0715524ec166c"), ("fmnist", "1948f7be84680ae1")])
def test_real_sets_of_boards_have_no_duplicates(data_root: Path, name: str, fingerprint: str) -> None:
    found = data.load(name, has_files(name, data_root))
    assert found.fingerprint == fingerprint
    assert remove_duplicates(found, data.split(found, "iid")).removed == {}
