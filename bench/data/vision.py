"""MNIST, Fashion-MNIST and CIFAR-10 in torchvision's own layout, read and downloaded by torchvision."""

from __future__ import annotations

import http.client
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets
from torchvision.datasets import mnist as idx
from torchvision.datasets.utils import check_integrity

from bench.data.folder import CIFAR10_CLASSES, load_cifar10_tree
from bench.data.images import ImageData
from bench.errors import BenchError

_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_SIDE = 28
_BAD_IDX = (OSError, EOFError, ValueError, RuntimeError, TypeError, KeyError, AssertionError)
_BAD_BATCH = (OSError, EOFError, ValueError, RuntimeError, KeyError, pickle.UnpicklingError)
_BAD_DOWNLOAD = (*_BAD_BATCH, http.client.HTTPException, tarfile.TarError)
_MEND = "delete it and use --download, or name a good copy with --data-root DIR or BENCH_DATA"


def load_mnist(root: Path, download: bool) -> ImageData:
    """MNIST from root/MNIST/raw. (1, 28, 28). Raises BenchError for missing or corrupt files."""
    return _load_idx("mnist", datasets.MNIST, root, download, tuple("0123456789"))


def load_fmnist(root: Path, download: bool) -> ImageData:
    """Fashion-MNIST from root/FashionMNIST/raw. (1, 28, 28). Raises BenchError for missing or corrupt files."""
    return _load_idx("fmnist", datasets.FashionMNIST, root, download, tuple(datasets.FashionMNIST.classes))


def load_cifar10(root: Path, download: bool) -> ImageData:
    """CIFAR-10 from root/cifar-10-batches-py, else from root/cifar10/{train,test}/<class>/*. (3, 32, 32).

    The pickled batches are unpickled only after torchvision found their published md5. Images from the tree of files
    are re-encoded with loss, so that data set is named "cifar10-jpeg".

    Raises:
        BenchError: missing files, or a batch whose md5 is not the published one.
    """
    source = datasets.CIFAR10
    folder, tree = root / source.base_folder, root / "cifar10"
    if not download and not os.path.isdir(folder) and os.path.isdir(tree):
        return load_cifar10_tree(tree)
    if download:
        _download("cifar10", source, root)
    sums = {folder / file: md5 for file, md5 in source.train_list + source.test_list}
    sums[folder / source.meta["filename"]] = source.meta["md5"]
    _require("cifar10", list(sums), f" (or image files under {tree}/{{train,test}}/CLASS)")
    try:
        train, test = source(str(root), train=True), source(str(root), train=False)
    except _BAD_BATCH as error:
        bad = [path for path, md5 in sums.items() if not check_integrity(str(path), md5)]
        fault = "its md5 is not the published one" if bad else _line(error)
        raise BenchError(f"data set 'cifar10': {bad[0] if bad else folder} is corrupt ({fault}); {_MEND}") from error
    return ImageData("cifar10", *_batch(train), *_batch(test), class_names=CIFAR10_CLASSES)


READERS: dict[str, Callable[[Path, bool], ImageData]] = {
    "mnist": load_mnist,
    "fmnist": load_fmnist,
    "cifar10": load_cifar10,
}


def _load_idx(name: str, source: Any, root: Path, download: bool, class_names: tuple[str, ...]) -> ImageData:
    files = [root / source.__name__ / "raw" / file for file in _IDX_FILES]
    if download and not all(map(os.path.isfile, files)):
        _download(name, source, root)
    _require(name, files)
    train_images, train_labels, test_images, test_labels = files
    train = _idx_pair(name, train_images, train_labels, len(class_names))
    test = _idx_pair(name, test_images, test_labels, len(class_names))
    return ImageData(name, *train, *test, class_names=class_names)


def _idx_pair(name: str, image_file: Path, label_file: Path, classes: int) -> tuple[Tensor, Tensor]:
    images = _read_idx(name, image_file, idx.read_image_file)
    labels = _read_idx(name, label_file, idx.read_label_file)
    if images.shape[1:] != (_IDX_SIDE, _IDX_SIDE) or not len(images):
        raise _corrupt(
            name, image_file, f"its images are {tuple(images.shape)}, expected (n, {_IDX_SIDE}, {_IDX_SIDE})"
        )
    if len(labels) != len(images):
        raise _corrupt(name, label_file, f"it holds {len(labels)} labels for {len(images)} images")
    if int(labels.max()) >= classes:
        raise _corrupt(name, label_file, f"it holds label {int(labels.max())}, expected 0 to {classes - 1}")
    return images[:, None], labels


def _read_idx(name: str, file: Path, read: Callable[[str], Tensor]) -> Tensor:
    try:
        return read(str(file))
    except _BAD_IDX as error:
        raise _corrupt(name, file, f"not a whole IDX file: {_line(error)}") from error


def _batch(source: Any) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(np.ascontiguousarray(source.data)).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor(source.targets, dtype=torch.int64)


def _download(name: str, source: Any, root: Path) -> None:
    try:
        source(str(root), train=True, download=True)
    except _BAD_DOWNLOAD as error:
        raise BenchError(
            f"could not download data set '{name}' to {root} ({_line(error)}); fetch it elsewhere and name its folder "
            f"with --data-root DIR or BENCH_DATA"
        ) from error


def _require(name: str, files: list[Path], other: str = "") -> None:
    if all(map(os.path.isfile, files)):
        return
    folder = files[0].parent
    raise BenchError(
        f"data set '{name}' not found: expected {', '.join(file.name for file in files)} under {folder}{other}; "
        f"name the folder above with --data-root DIR, or set BENCH_DATA, or use --download"
    )


def _corrupt(name: str, file: Path, fault: str) -> BenchError:
    return BenchError(f"data set '{name}': {file} is corrupt ({fault}); {_MEND}")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
