"""Data sets in torchvision's own layout, read and downloaded by torchvision: IDX files and pickled batches."""

from __future__ import annotations

import http.client
import pickle
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets
from torchvision.datasets import mnist as idx
from torchvision.datasets.utils import check_integrity

from bench.data.dataset import Dataset, not_found
from bench.data.images import ImageData
from bench.errors import BadData, NotFound

_IDX_SIDE = 28
_BAD_IDX = (OSError, EOFError, ValueError, RuntimeError, TypeError, KeyError, AssertionError)
_BAD_BATCH = (OSError, EOFError, ValueError, RuntimeError, KeyError, pickle.UnpicklingError)
_BAD_DOWNLOAD = (*_BAD_BATCH, http.client.HTTPException, tarfile.TarError)
_REMEDY = "delete it and use --download, or name a good copy with --data-root DIR or BENCH_DATA"


def load_idx(name: str, source: str, dataset: Dataset, root: Path, download: bool) -> ImageData:
    """Read a set of four IDX files, `dataset.files(root)`, of 28x28 grey images.

    Args:
        name: the data set's name in the bench.
        source: its class in `torchvision.datasets`, for downloading.

    Raises:
        BenchError: missing or corrupt files.
    """
    if download and dataset.missing(root):
        _download(name, getattr(datasets, source), root)
    _require_files(name, dataset, root)
    train_images, train_labels, test_images, test_labels = dataset.files(root)
    class_names = dataset.facts.class_names
    train = _read_idx_pair(name, train_images, train_labels, len(class_names))
    test = _read_idx_pair(name, test_images, test_labels, len(class_names))
    return ImageData(name, *train, *test, class_names=class_names)


def _read_idx_pair(name: str, image_file: Path, label_file: Path, classes: int) -> tuple[Tensor, Tensor]:
    """Return (n, 1, 28, 28) uint8 images and (n,) int64 labels. Raises BadData if they do not fit together."""

    def corrupt(file: Path, fault: str) -> BadData:
        return BadData(f"data set '{name}': {file} is corrupt ({fault}); {_REMEDY}")

    def read(file: Path, reader: Callable[[str], Tensor]) -> Tensor:
        try:
            return reader(str(file))
        except _BAD_IDX as error:
            raise corrupt(file, f"not a whole IDX file: {_one_line(error)}") from error

    images, labels = read(image_file, idx.read_image_file), read(label_file, idx.read_label_file)
    if images.shape[1:] != (_IDX_SIDE, _IDX_SIDE) or not len(images):
        raise corrupt(image_file, f"its images are {tuple(images.shape)}, expected (n, {_IDX_SIDE}, {_IDX_SIDE})")
    if len(labels) != len(images):
        raise corrupt(label_file, f"it has {len(labels)} labels for {len(images)} images")
    if int(labels.max()) >= classes:
        raise corrupt(label_file, f"it has label {int(labels.max())}, expected 0 to {classes - 1}")
    return images[:, None], labels


def load_batches(name: str, source: str, dataset: Dataset, root: Path, download: bool, instead: str = "") -> ImageData:
    """Read a set of pickled batches, as CIFAR's; they are unpickled only if their md5 is the published one.

    The arguments are those of `load_idx`, and one more.

    Args:
        instead: the remedy for missing files, in words.

    Raises:
        BenchError: missing files, or a batch whose md5 is not the published one.
    """
    library = getattr(datasets, source)
    if download:
        _download(name, library, root)
    _require_files(name, dataset, root, instead)
    try:
        train, test = library(str(root), train=True), library(str(root), train=False)
    except _BAD_BATCH as error:
        sums = {file: md5 for file, md5 in [*library.train_list, *library.test_list]}
        sums[library.meta["filename"]] = library.meta["md5"]
        bad = [path for path in dataset.files(root) if not check_integrity(str(path), sums[path.name])]
        fault = "its md5 is not the published one" if bad else _one_line(error)
        where = bad[0] if bad else root / library.base_folder
        raise BadData(f"data set '{name}': {where} is corrupt ({fault}); {_REMEDY}") from error
    parts = [
        (
            torch.from_numpy(np.ascontiguousarray(part.data)).permute(0, 3, 1, 2).contiguous(),
            torch.tensor(part.targets, dtype=torch.int64),
        )
        for part in (train, test)
    ]
    return ImageData(name, *parts[0], *parts[1], class_names=dataset.facts.class_names)


def load_arrays(
    name: str,
    source: str,
    dataset: Dataset,
    root: Path,
    download: bool,
    parts: tuple[Mapping[str, str | bool], Mapping[str, str | bool]],
) -> ImageData:
    """Read a set whose torchvision class has the arrays `data` and `labels` or `targets`: SVHN, USPS.

    Args:
        name: the data set's name in the bench.
        source: its class in `torchvision.datasets`.
        parts: the arguments of the class for the training and the test part.

    Raises:
        BenchError: missing or corrupt files.
    """
    library = getattr(datasets, source)
    if download and dataset.missing(root):
        for arguments in parts:
            _download(name, library, root, arguments)
    _require_files(name, dataset, root)
    found = []
    try:
        for arguments in parts:
            part = library(str(root), **arguments)
            images = torch.from_numpy(np.ascontiguousarray(part.data))
            labels = part.labels if hasattr(part, "labels") else part.targets
            images = images[:, None] if images.ndim == 3 else images  # grey images may have no channel axis
            found.append((images, torch.tensor(np.asarray(labels), dtype=torch.int64)))
    except _BAD_IDX as error:
        files = " or ".join(str(file) for file in dataset.files(root))
        raise BadData(f"data set '{name}': {files} is corrupt ({_one_line(error)}); {_REMEDY}") from error
    return ImageData(name, *found[0], *found[1], class_names=dataset.facts.class_names)


def _download(name: str, source: Any, root: Path, arguments: Mapping[str, str | bool] | None = None) -> None:
    try:
        source(str(root), download=True, **(arguments or {}))
    except _BAD_DOWNLOAD as error:
        raise NotFound(
            f"could not download data set '{name}' to {root} ({_one_line(error)}); fetch it elsewhere and name its "
            f"folder with --data-root DIR or BENCH_DATA"
        ) from error


def _require_files(name: str, dataset: Dataset, root: Path, instead: str = "") -> None:
    if dataset.missing(root):
        files = dataset.files(root)
        raise not_found(name, ", ".join(file.name for file in files), files[0].parent, instead=instead)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
