"""Data sets in torchvision's own layout, read and downloaded by torchvision: IDX files and pickled batches."""

from __future__ import annotations

import http.client
import pickle
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets
from torchvision.datasets import mnist as idx
from torchvision.datasets.utils import check_integrity

from bench.data.dataset import Dataset
from bench.data.images import ImageData
from bench.errors import BadData, BenchError, NotFound

_IDX_SIDE = 28
_BAD_IDX = (OSError, EOFError, ValueError, RuntimeError, TypeError, KeyError, AssertionError)
_BAD_BATCH = (OSError, EOFError, ValueError, RuntimeError, KeyError, pickle.UnpicklingError)
_BAD_DOWNLOAD = (*_BAD_BATCH, http.client.HTTPException, tarfile.TarError)
_MEND = "delete it and use --download, or name a good copy with --data-root DIR or BENCH_DATA"


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
    _require(name, dataset, root)
    train_images, train_labels, test_images, test_labels = dataset.files(root)
    class_names = dataset.facts.class_names
    train = _idx_pair(name, train_images, train_labels, len(class_names))
    test = _idx_pair(name, test_images, test_labels, len(class_names))
    return ImageData(name, *train, *test, class_names=class_names)


def load_batches(name: str, source: str, dataset: Dataset, root: Path, download: bool, instead: str = "") -> ImageData:
    """Read a set of pickled batches; they are unpickled only if their md5 is the published one.

    The arguments are those of `load_idx`, and one more.

    Args:
        instead: the remedy for missing files, in words.

    Raises:
        BenchError: missing files, or a batch whose md5 is not the published one.
    """
    library = getattr(datasets, source)
    if download:
        _download(name, library, root)
    _require(name, dataset, root, instead)
    try:
        train, test = library(str(root), train=True), library(str(root), train=False)
    except _BAD_BATCH as error:
        sums = {file: md5 for file, md5 in [*library.train_list, *library.test_list]}
        sums[library.meta["filename"]] = library.meta["md5"]
        bad = [path for path in dataset.files(root) if not check_integrity(str(path), sums[path.name])]
        fault = "its md5 is not the published one" if bad else _line(error)
        where = bad[0] if bad else root / library.base_folder
        raise BadData(f"data set '{name}': {where} is corrupt ({fault}); {_MEND}") from error
    return ImageData(name, *_batch(train), *_batch(test), class_names=dataset.facts.class_names)


def load_arrays(name: str, source: str, dataset: Dataset, root: Path, download: bool, **parts: str) -> ImageData:
    """Read a set whose torchvision class has the arrays `data` and `labels` or `targets`: SVHN, USPS.

    Args:
        name: the data set's name in the bench.
        source: its class in `torchvision.datasets`.
        parts: the value of the argument `split` for "train" and "test"; none = `train=True` and `False`.

    Raises:
        BenchError: missing or corrupt files.
    """
    library = getattr(datasets, source)
    if download and dataset.missing(root):
        for part in ("train", "test"):
            _download(name, partial(library, **_which(part, parts)), root)
    _require(name, dataset, root)
    try:
        train, test = (_arrays(library(str(root), **_which(part, parts))) for part in ("train", "test"))
    except _BAD_IDX as error:
        files = " or ".join(str(file) for file in dataset.files(root))
        raise BadData(f"data set '{name}': {files} is corrupt ({_line(error)}); {_MEND}") from error
    return ImageData(name, *train, *test, class_names=dataset.facts.class_names)


def _which(part: str, parts: dict[str, str]) -> dict[str, Any]:
    return {"split": parts[part]} if parts else {"train": part == "train"}


def _arrays(source: Any) -> tuple[Tensor, Tensor]:
    """Return (n, c, h, w) uint8 and (n,) int64; sets of grey images may have (n, h, w)."""
    images = torch.from_numpy(np.ascontiguousarray(source.data))
    labels = source.labels if hasattr(source, "labels") else source.targets
    return images[:, None] if images.ndim == 3 else images, torch.tensor(np.asarray(labels), dtype=torch.int64)


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
        source(str(root), download=True)
    except _BAD_DOWNLOAD as error:
        raise NotFound(
            f"could not download data set '{name}' to {root} ({_line(error)}); fetch it elsewhere and name its folder "
            f"with --data-root DIR or BENCH_DATA"
        ) from error


def _require(name: str, dataset: Dataset, root: Path, other: str = "") -> None:
    if not dataset.missing(root):
        return
    files = dataset.files(root)
    raise NotFound(
        f"data set '{name}' not found: expected {', '.join(file.name for file in files)} under {files[0].parent}"
        f"{other}; name the folder above with --data-root DIR, or set BENCH_DATA, or use --download"
    )


def _corrupt(name: str, file: Path, fault: str) -> BenchError:
    return BadData(f"data set '{name}': {file} is corrupt ({fault}); {_MEND}")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
