"""Real data, where the machine has it: counts, golden fingerprints and splits."""

from __future__ import annotations

import hashlib
import os
import struct
import tarfile
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from bench import data
from bench.data.parts import remove_duplicates

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def unpacked(data_root: Path) -> Path:
    """The archives of real data, unpacked once into an ignored folder."""
    folder = ROOT / "build" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for archive in ("celeba", "lfw-64", "tiny-imagenet-32", "covid-xray-128"):
        with FileLock(folder / f".{archive}.lock"):
            if (folder / archive).is_dir():
                continue
            if not (data_root / f"{archive}.tar.xz").is_file():
                pytest.skip(f"no {archive}.tar.xz in {data_root}")
            work = folder / f".{archive}-{os.getpid()}"
            with tarfile.open(data_root / f"{archive}.tar.xz") as opened:
                opened.extractall(work, filter="data")
            (work / archive).rename(folder / archive)
            work.rmdir()
    return folder


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
