from __future__ import annotations

import hashlib
import os
import pickle
import struct
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10, MNIST

from bench import data
from bench.errors import BenchError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def refusal(name: str, root: Path | None, download: bool = False) -> str:
    with pytest.raises(BenchError) as caught:
        data.load(name, root, download)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_idx(raw: Path, train: int = 12, test: int = 6) -> None:
    """A tiny MNIST: image i is filled with i, except one corner pixel; label i mod 10."""
    raw.mkdir(parents=True)
    for count, (images, labels) in ((train, FILES[:2]), (test, FILES[2:])):
        pixels = np.tile(np.arange(count, dtype=np.uint8)[:, None, None], (1, 28, 28))
        pixels[:, 0, 27] = 200
        (raw / images).write_bytes(idx(pixels))
        (raw / labels).write_bytes(idx(np.arange(count) % 10))


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fmnist", "FashionMNIST")])
def test_idx_files_are_read_from_their_own_folder(tmp_path: Path, name: str, folder: str) -> None:
    write_idx(tmp_path / folder / "raw")
    found = data.load(name, tmp_path)
    assert (found.name, found.shape, found.classes) == (name, (1, 28, 28), 10)
    assert found.train_labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert found.test_images[:, 0, 5, 5].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.train_images[3, 0, 0, 27] == 200
    assert found.train_images[3, 0, 27, 0] == 3


def test_root_comes_from_the_environment_then_the_home_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "elsewhere" / "MNIST" / "raw")
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "elsewhere"))
    assert len(data.load("mnist").train_labels) == 12
    assert f"{tmp_path / 'argument'}/MNIST/raw" in refusal("mnist", tmp_path / "argument")
    monkeypatch.delenv("BENCH_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert f"{tmp_path}/home/.cache/dp-distill-bench/MNIST/raw" in refusal("mnist", None)


@pytest.mark.parametrize("name", ["mnist", "fmnist", "cifar10"])
def test_missing_files_are_named_with_the_three_ways_out(tmp_path: Path, name: str) -> None:
    message = refusal(name, tmp_path)
    expected = ("data_batch_1", "test_batch") if name == "cifar10" else FILES
    for part in (f"'{name}'", str(tmp_path), "--data-root DIR", "BENCH_DATA", "--download", *expected):
        assert part in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("gone", FILES)
def test_one_missing_file_is_enough(tmp_path: Path, gone: str) -> None:
    write_idx(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / gone).unlink()
    assert "'mnist' not found" in refusal("mnist", tmp_path)


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
def test_corrupt_idx_files_are_named(tmp_path: Path, file: str, fault: str) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw)
    (raw / file).write_bytes(damaged((raw / file).read_bytes())[fault])
    message = refusal("mnist", tmp_path)
    assert f"{raw / file} is corrupt" in message
    assert "'mnist'" in message


@pytest.mark.parametrize(
    ("file", "array", "says"),
    [
        (FILES[0], np.zeros((12, 28, 27)), "(12, 28, 27), expected (n, 28, 28)"),
        (FILES[0], np.zeros((0, 28, 28)), "is corrupt"),
        (FILES[2], np.zeros(9), "is corrupt"),
        (FILES[1], np.zeros((12, 1)), "is corrupt"),
        (FILES[1], np.zeros(11), "11 labels for 12 images"),
        (FILES[3], np.full(6, 10), "label 10, expected 0 to 9"),
    ],
)
def test_whole_idx_files_with_wrong_content(tmp_path: Path, file: str, array: np.ndarray, says: str) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw)
    (raw / file).write_bytes(idx(array))
    message = refusal("mnist", tmp_path)
    assert says in message
    assert str(raw / file) in message


def test_images_and_labels_exchanged(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw)
    (raw / FILES[0]).write_bytes((raw / FILES[1]).read_bytes())
    assert str(raw / FILES[0]) in refusal("mnist", tmp_path)


def test_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise URLError("no route\nto host")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    for name in ("mnist", "fmnist", "cifar10"):
        message = refusal(name, tmp_path, download=True)
        assert f"could not download data set '{name}' to {tmp_path}" in message
        assert "no route to host" in message


def test_download_fetches_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def fetch(self: MNIST) -> None:
        asked.append(Path(self.raw_folder))
        write_idx(Path(self.raw_folder))

    monkeypatch.setattr(MNIST, "download", fetch)
    assert len(data.load("mnist", tmp_path, download=True).test_labels) == 6
    assert len(data.load("mnist", tmp_path, download=True).test_labels) == 6
    assert asked == [tmp_path / "MNIST" / "raw"]


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny CIFAR-10 whose md5 sums torchvision is made to expect."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    contents = {"batches.meta": pickle.dumps({"label_names": names})}
    for number, file in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pixels = np.full((2, 3, 1024), number, dtype=np.uint8)
        pixels[:, 1, 31] = 99
        contents[file] = pickle.dumps({"data": pixels.reshape(2, -1), "labels": [number, 9]})
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    sums = [[file, md5(contents[file])] for file in contents]
    monkeypatch.setattr(CIFAR10, "train_list", sums[1:6])
    monkeypatch.setattr(CIFAR10, "test_list", sums[6:])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums[0][1]})
    return folder


def test_cifar10_batches(batches: Path) -> None:
    found = data.load("cifar10", batches.parent)
    assert (found.name, found.shape, found.classes) == ("cifar10", (3, 32, 32), 10)
    assert found.train_labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert found.test_labels.tolist() == [5, 9]
    assert found.class_names[3] == "cat"
    assert found.train_images[2, :, 0, 31].tolist() == [1, 99, 1]
    assert found.train_images[2, :, 31, 0].tolist() == [1, 1, 1]


class Evil:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_cifar10_never_unpickles_a_file_of_another_md5(batches: Path, file: str) -> None:
    trap = batches.parent / "trap"
    (batches / file).write_bytes(pickle.dumps(Evil(trap)))
    message = refusal("cifar10", batches.parent)
    assert f"{batches / file} is corrupt (its md5 is not the published one)" in message
    assert not trap.exists()
    pickle.loads((batches / file).read_bytes())
    assert trap.exists(), "the trap itself must work"


def test_cifar10_truncated_and_missing_batches(batches: Path) -> None:
    (batches / "data_batch_2").write_bytes((batches / "data_batch_2").read_bytes()[:50])
    assert str(batches / "data_batch_2") in refusal("cifar10", batches.parent)
    (batches / "data_batch_2").unlink()
    assert "'cifar10' not found" in refusal("cifar10", batches.parent)


def test_cifar10_right_md5_but_no_pickle(batches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (batches / "test_batch").write_bytes(b"garbage")
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(b"garbage")]])
    assert f"{batches} is corrupt (" in refusal("cifar10", batches.parent)


def real_data() -> Path:
    places = [os.environ.get("BENCH_DATA"), Path(__file__).resolve().parents[2].parent / "shared" / "data"]
    for place in places:
        if place and (Path(place) / "MNIST" / "raw").is_dir():
            return Path(place)
    pytest.skip("no real MNIST under $BENCH_DATA or ../shared/data")


@pytest.mark.data
def test_real_mnist() -> None:
    found = data.load("mnist", real_data())
    assert (len(found.train_labels), len(found.test_labels)) == (60_000, 10_000)
    assert round(float(data.to_float(found.train_images).mean()), 4) == 0.1307
    assert found.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert found.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    header = struct.pack(">4I", 2051, 10_000, 28, 28)
    digest = hashlib.sha256(header + found.test_images.numpy().tobytes()).hexdigest()
    assert digest.startswith("0fa7898d509279e4")
    assert found.fingerprint == "93d0715524ec166c"


@pytest.mark.data
def test_real_mnist_splits() -> None:
    found = data.load("mnist", real_data())
    iid = data.split(found, "iid")
    assert (len(iid.private), len(iid.aux)) == (50_000, 10_000)
    assert iid.aux[:5].tolist() == [0, 3, 9, 13, 14]
    assert int(found.train_labels[iid.aux].bincount().min()) > 850
    low = data.split(found, "disjoint-low")
    assert (len(low.private), len(low.aux)) == (30_596, 29_404)


@pytest.mark.data
def test_real_fmnist_is_not_mnist() -> None:
    root = real_data()
    if not (root / "FashionMNIST" / "raw").is_dir():
        pytest.skip("no real Fashion-MNIST beside MNIST")
    found = data.load("fmnist", root)
    assert round(float(data.to_float(found.train_images).mean()), 4) == 0.2860
    assert found.train_labels.bincount().tolist() == [6000] * 10
    assert found.test_labels.bincount().tolist() == [1000] * 10
    full = data.split(found, "full")
    aux = data.aux_part(found, full, lambda name: data.load(name, root))
    assert torch.equal(aux, data.load("mnist", root).train_images)
