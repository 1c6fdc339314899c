"""Published sets, read from small files in their exact formats: torchvision's files, archives and lists of images."""

import bz2
import hashlib
import pickle
import struct
from itertools import product
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from data_made import put, refusal, write_evil
from scipy.io import savemat
from torchvision.datasets import CIFAR10, CIFAR100, MNIST, SVHN

from bench import data
from bench.errors import BadData, NotFound

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_idx(raw: Path, train: int = 12, test: int = 6) -> Path:
    """Write a tiny MNIST: image i is filled with i, except one corner pixel; label i mod 10."""
    raw.mkdir(parents=True)
    for count, (images, labels) in ((train, FILES[:2]), (test, FILES[2:])):
        pixels = np.tile(np.arange(count, dtype=np.uint8)[:, None, None], (1, 28, 28))
        pixels[:, 0, 27] = 200
        (raw / images).write_bytes(idx(pixels))
        (raw / labels).write_bytes(idx(np.arange(count) % 10))
    return raw


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fmnist", "FashionMNIST"), ("kmnist", "KMNIST")])
def test_idx_files_are_read(tmp_path: Path, name: str, folder: str) -> None:
    write_idx(tmp_path / folder / "raw")
    found = data.load(name, tmp_path)
    assert (found.name, found.shape, found.classes) == (name, (1, 28, 28), 10)
    assert found.train_labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert found.test_images[:, 0, 5, 5].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.train_images[3, 0, 0, 27] == 200 and found.train_images[3, 0, 27, 0] == 3


def test_root_is_argument_environment_or_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "elsewhere" / "MNIST" / "raw")
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "elsewhere"))
    assert len(data.load("mnist").train_labels) == 12
    refusal("mnist", f"{tmp_path / 'argument'}/MNIST/raw", error=NotFound, root=tmp_path / "argument")
    monkeypatch.delenv("BENCH_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    refusal("mnist", f"{tmp_path}/home/.cache/dp-distill-bench/MNIST/raw", error=NotFound)


@pytest.mark.parametrize("name", ["mnist", "fmnist", "cifar10"])
def test_missing_files_are_named_with_options(tmp_path: Path, name: str) -> None:
    files = ("data_batch_1", "test_batch") if name == "cifar10" else FILES
    options = ("--data-root DIR", "BENCH_DATA", "--download")
    refusal(name, f"'{name}'", tmp_path, *options, *files, error=NotFound, root=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("gone", FILES)
def test_one_missing_idx_file_is_refused(tmp_path: Path, gone: str) -> None:
    (write_idx(tmp_path / "MNIST" / "raw") / gone).unlink()
    refusal("mnist", "'mnist'", error=NotFound, root=tmp_path)


def damaged(good: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "two bytes": good[:2],
        "header cut": good[:7],
        "header only": good[: 4 * (good[3] + 1)],
        "truncated": good[:-1],
        "one byte too many": good + b"\0",
        "bad magic": b"\xde\xad\xbe\xef" + good[4:],
        "no dimensions": b"\0\0\x08\0" + good[4:],
        "four dimensions": b"\0\0\x08\x04" + good[4:],
        "unknown type": b"\0\0\x0a" + good[3:],
        "int8 instead of uint8": b"\0\0\x09" + good[3:],
        "float64": b"\0\0\x0e" + good[3:],
        "huge": good[:4] + b"\xff" * 4 + good[8:],
        "html": b"<!DOCTYPE html><html>404</html>",
        "gzip": b"\x1f\x8b\x08\x00" + good,
    }


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("fault", list(damaged(b"\0\0\x08\x01")))
def test_corrupt_idx_file_is_named(tmp_path: Path, file: str, fault: str) -> None:
    path = write_idx(tmp_path / "MNIST" / "raw") / file
    path.write_bytes(damaged(path.read_bytes())[fault])
    refusal("mnist", "'mnist'", path, root=tmp_path)


@pytest.mark.parametrize(
    ("file", "array", "values"),
    [
        (FILES[0], np.zeros((12, 28, 27)), ("(12, 28, 27)", "(n, 28, 28)")),
        (FILES[0], np.zeros((0, 28, 28)), ()),
        (FILES[0], np.arange(12) % 10, ()),
        (FILES[2], np.zeros(9), ()),
        (FILES[1], np.zeros((12, 1)), ()),
        (FILES[1], np.zeros(11), (11, 12)),
        (FILES[3], np.full(6, 10), ("10", "0 to 9")),
    ],
)
def test_idx_file_of_other_content_is_named(
    tmp_path: Path, file: str, array: np.ndarray, values: tuple[object, ...]
) -> None:
    path = write_idx(tmp_path / "MNIST" / "raw") / file
    path.write_bytes(idx(array))
    refusal("mnist", path, *values, root=tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fmnist", "cifar10"])
def test_failed_download_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise URLError("no route\nto host")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    values = (f"'{name}'", tmp_path, "no route to host")
    refusal(name, *values, error=NotFound, root=tmp_path, download=True)


def test_download_fetches_missing_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def fetch(self: MNIST) -> None:
        folders.append(write_idx(Path(self.raw_folder)))

    monkeypatch.setattr(MNIST, "download", fetch)
    for _ in range(2):
        assert len(data.load("mnist", tmp_path, download=True).test_labels) == 6
    assert folders == [tmp_path / "MNIST" / "raw"]


@pytest.fixture
def batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny CIFAR-10 whose md5 sums torchvision is made to expect."""
    contents: dict[str, Any] = {"batches.meta": {"label_names": list(data.facts("cifar10").class_names)}}
    for number, file in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pixels = np.full((2, 3, 1024), number, dtype=np.uint8)
        pixels[:, 1, 31] = 99
        contents[file] = {"data": pixels.reshape(2, -1), "labels": [number, 9]}
    sums = [[*item] for item in write_pickles(tmp_path / "cifar-10-batches-py", contents).items()]
    monkeypatch.setattr(CIFAR10, "train_list", sums[1:6])
    monkeypatch.setattr(CIFAR10, "test_list", sums[6:])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums[0][1]})
    return tmp_path / "cifar-10-batches-py"


def test_cifar10_batches_are_read(batches: Path) -> None:
    found = data.load("cifar10", batches.parent)
    assert (found.name, found.shape, found.classes) == ("cifar10", (3, 32, 32), 10)
    assert found.train_labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9] and found.test_labels.tolist() == [5, 9]
    assert found.train_images[2, :, 0, 31].tolist() == [1, 99, 1]
    assert found.train_images[2, :, 31, 0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_cifar10_file_of_other_md5_is_not_unpickled(batches: Path, file: str) -> None:
    trap = batches.parent / "trap"
    write_evil(batches / file, trap)
    refusal("cifar10", batches / file, "md5", root=batches.parent)
    assert not trap.exists()


def test_cifar10_missing_or_damaged_batch_is_refused(batches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (batches / "test_batch").write_bytes(b"garbage")
    with monkeypatch.context() as patch:
        patch.setattr(CIFAR10, "test_list", [["test_batch", md5(b"garbage")]])
        refusal("cifar10", batches, root=batches.parent)
    refusal("cifar10", batches / "test_batch", "md5", root=batches.parent)
    (batches / "test_batch").unlink()
    refusal("cifar10", "test_batch", error=NotFound, root=batches.parent)


def write_pickles(folder: Path, contents: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Write pickles; return the md5 sum of each."""
    folder.mkdir()
    for file, content in contents.items():
        (folder / file).write_bytes(pickle.dumps(content))
    return {file: md5((folder / file).read_bytes()) for file in contents}


def test_cifar100_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents: dict[str, Any] = {"meta": {"fine_label_names": list(data.facts("cifar100").class_names)}}
    for part, count in (("train", 200), ("test", 100)):
        pixels, labels = np.arange(count, dtype=np.uint8)[:, None].repeat(3072, 1), [n % 100 for n in range(count)]
        contents[part] = {"data": pixels, "fine_labels": labels, "coarse_labels": [0] * count}
    sums = write_pickles(tmp_path / "cifar-100-python", contents)
    monkeypatch.setattr(CIFAR100, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(CIFAR100, "meta", CIFAR100.meta | {"md5": sums["meta"]})
    found = data.load("cifar100", tmp_path)
    assert (found.name, found.shape, found.classes) == ("cifar100", (3, 32, 32), 100)
    assert len(found.train_labels) == 200 and found.test_labels.tolist() == list(range(100))
    file = tmp_path / "cifar-100-python" / "test"
    file.write_bytes(b"x")
    refusal("cifar100", file, "md5", root=tmp_path)


def test_svhn_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, sums = np.random.default_rng(0), {}
    for part, count in (("train", 20), ("test", 10)):
        file = tmp_path / f"{part}_32x32.mat"
        pixels = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        pixels[3, 7, 1, 4] = 99
        savemat(file, {"X": pixels, "y": (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]})
        sums[part] = ["", file.name, md5(file.read_bytes())]
    monkeypatch.setattr(SVHN, "split_list", sums)
    found = data.load("svhn", tmp_path)
    assert (found.name, found.shape, found.classes) == ("svhn", (3, 32, 32), 10)
    assert found.train_labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert found.train_images[4, 1, 3, 7] == 99
    (tmp_path / "test_32x32.mat").write_bytes(b"x")
    refusal("svhn", tmp_path / "test_32x32.mat", root=tmp_path)


def test_usps_archives_are_read(tmp_path: Path) -> None:
    pixels = " ".join(f"{pixel + 1}:{-1 if pixel else 1}" for pixel in range(256))
    for file, count in (("usps.bz2", 20), ("usps.t.bz2", 10)):
        lines = [f"{number % 10 + 1} {pixels}" for number in range(count)]
        (tmp_path / file).write_bytes(bz2.compress("\n".join(lines).encode()))
    found = data.load("usps", tmp_path)
    assert (found.name, found.shape, len(found.test_labels)) == ("usps", (1, 16, 16), 10)
    assert found.train_labels[:10].tolist() == list(range(10)) and found.train_images[0, 0, 0, :2].tolist() == [255, 0]
    (tmp_path / "usps.bz2").write_bytes(b"BZh9 no")
    refusal("usps", tmp_path / "usps.bz2", root=tmp_path)


@pytest.mark.parametrize(("name", "side"), [("medmnist:pathmnist", 28), ("medmnist:pathmnist@64", 64)])
def test_medmnist_archive_is_read(tmp_path: Path, name: str, side: int) -> None:
    file = tmp_path / "medmnist" / ("pathmnist.npz" if side == 28 else "pathmnist_64.npz")
    file.parent.mkdir()
    rng, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 18), ("val", 9), ("test", 9)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 9).astype(np.uint8)[:, None]
    np.savez(file, **arrays)
    found = data.load(name, tmp_path)
    assert found.name == ("medmnist-pathmnist" if side == 28 else "medmnist-pathmnist-64px")
    assert (found.shape, found.classes, len(found.train_labels)) == ((3, side, side), 9, 27)
    assert data.typed(found.name) == name and data.base_name(found.name) == "medmnist"
    refusal("medmnist:pneumoniamnist", "pneumoniamnist.npz", error=NotFound, root=tmp_path)


def test_tiny_imagenet_archive_is_read(tmp_path: Path) -> None:
    tree, lines = tmp_path / "tiny-imagenet-200", []
    for wnid, number in product(("n02", "n01"), range(6)):
        put(tree / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", size=(64, 64))
        (tree / "train" / wnid / f"{wnid}_boxes.txt").write_text("x\t0\t0\t9\t9\n")
    for number, wnid in enumerate(("n02", "n01", "n02")):
        put(tree / "val" / "images" / f"val_{number}.JPEG", size=(64, 64))
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    labels = tree / "val" / "val_annotations.txt"
    labels.write_text("".join(lines))
    found = data.load("tiny-imagenet", tmp_path)
    assert (found.name, found.shape, found.class_names) == ("tiny-imagenet-subset", (3, 64, 64), ("n01", "n02"))
    assert found.train_labels.tolist() == [0] * 6 + [1] * 6 and found.test_labels.tolist() == [1, 0, 1]
    assert data.load("tiny-imagenet@32", tmp_path).name == "tiny-imagenet-subset-32px"
    labels.write_text("val_0.JPEG\tn99\n")
    refusal("tiny-imagenet", labels, root=tmp_path)


def test_imagenet_folders_are_read(tmp_path: Path) -> None:
    for (part, count), wnid in product((("train", 4), ("val", 2)), ("n01440764", "n01443537")):
        for number in range(count):
            put(tmp_path / "imagenet" / part / wnid / f"{wnid}_{number}.JPEG", size=(300, 250))
    found = data.load("imagenet", tmp_path)
    assert (found.name, found.shape) == ("imagenet-subset", (3, 224, 224))
    assert found.train_labels.tolist() == [0] * 4 + [1] * 4
    assert data.facts(data.load("imagenet@64", tmp_path).name).shape == (3, 64, 64)
    put(tmp_path / "imagenet" / "val" / "n9" / "x.JPEG")
    refusal("imagenet", tmp_path / "imagenet" / "train", 2, 3, root=tmp_path)


def test_covidx_lists_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "covidx"
    for part, count in (("train", 12), ("test", 3)):
        lines = []
        for number in range(count):
            file = f"scan {number}.png" if number == 1 else f"scan{number}.png"
            put(folder / part / file, size=(90, 70))
            lines.append(f"{part}{number // 2} {file} {('COVID-19', 'normal', 'pneumonia')[number % 3]} cohen")
        (folder / f"{part}.txt").write_text("\n".join(lines))
    found = data.load("covidx", tmp_path)
    assert (found.shape, found.class_names) == ((1, 64, 64), ("COVID-19", "normal", "pneumonia"))
    assert found.train_groups is not None and len(found.train_groups.unique()) == 6
    shared = data.split(found, "identity")
    assert not set(found.train_groups[shared.private].tolist()) & set(found.train_groups[shared.aux].tolist())
    (folder / "test.txt").write_text("p scan0.png normal\n")
    refusal("covidx", folder / "test.txt", "line 1", root=tmp_path)
    (folder / "test.txt").write_text("p scan0.png other cohen\n")
    refusal("covidx", "'other'", error=BadData, root=tmp_path)


def test_covid_xray_folders_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "covid-xray-128"
    for name, number in product(("covid-19", "no_findings", "pneumonia"), range(6)):
        put(folder / name / f"{number}.png")
    found = data.load("covid-xray", tmp_path)
    assert (found.shape, len(found.train_labels), len(found.test_labels)) == ((1, 128, 128), 15, 3)
    (folder / "pneumonia").rename(folder / "other")
    refusal("covid-xray", folder, "other", "pneumonia", root=tmp_path)
