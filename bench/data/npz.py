"""NumPy archives with images and labels: the layout of MedMNIST, for a user's own data."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.data.images import ImageData
from bench.errors import BenchError

_KEYS = tuple(f"{part}_{what}" for part in ("train", "test") for what in ("images", "labels"))
_VAL_KEYS = ("val_images", "val_labels")
_BAD_ARCHIVE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # encrypted member
    NotImplementedError,  # unknown compression
    MemoryError,  # a header that promises more than fits
    zipfile.BadZipFile,
    zlib.error,
)

Array = NDArray[np.generic]


def load_npz(path: Path, name: str) -> ImageData:
    """Read `path`, an archive with train_images, train_labels, test_images, test_labels (val_* joins train).

    Images are (n, h, w) or (n, h, w, c) with h = w and c = 1 or 3, uint8 or floats in [0, 1] (rounded to uint8); labels
    are (n,) or (n, 1) integers 0 to classes - 1, each class present in train. Nothing is unpickled.

    Raises:
        BenchError: anything else, naming the archive and the key.
    """
    arrays = _read(path, name)
    problem = f"data set '{name}': {path}"
    parts = ["train", "test"] + ["val"] * any(key in arrays for key in _VAL_KEYS)
    images = {part: _images(arrays[f"{part}_images"], f"{problem}: {part}_images") for part in parts}
    labels = {part: _labels(arrays[f"{part}_labels"], f"{problem}: {part}_labels") for part in parts}
    for part in parts:
        if len(images[part]) != len(labels[part]):
            raise BenchError(
                f"{problem}: {len(images[part])} {part}_images but {len(labels[part])} {part}_labels; they must pair up"
            )
        if images[part].shape[1:] != images["train"].shape[1:]:
            raise BenchError(
                f"{problem}: {part}_images are {_shape(images[part])}, train_images {_shape(images['train'])} "
                f"(channels, height, width); make them equal"
            )
    if "val" in parts:
        images["train"] = torch.cat([images["train"], images["val"]])
        labels["train"] = torch.cat([labels["train"], labels["val"]])
    classes = _classes(labels["train"], labels["test"], problem)
    class_names = tuple(str(label) for label in range(classes))
    return ImageData(name, images["train"], labels["train"], images["test"], labels["test"], class_names)


def _read(path: Path, name: str) -> dict[str, Array]:
    if not os.path.isfile(path):
        raise BenchError(f"data set '{name}': no file {path}; expected a .npz archive with {', '.join(_KEYS)}")
    member = ""
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise BenchError(
                f"data set '{name}': {path} is a single array; save it with numpy.savez as {', '.join(_KEYS)}"
            )
        with archive:
            arrays: dict[str, Array] = {}
            for member in _wanted(archive.files, f"data set '{name}': {path}"):
                arrays[member] = archive[member]
    except _BAD_ARCHIVE as error:
        what = f"{path}: {member} cannot be read" if member else f"{path} is not a readable .npz archive"
        text = " ".join(str(error).split())
        if "pickle" in text:
            text = "an array of Python objects" if member else "not NumPy's format"
        raise BenchError(
            f"data set '{name}': {what} ({text[:300]}); save arrays of numbers with numpy.savez"
        ) from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise BenchError(f"data set '{name}': {path}: {key} is not a NumPy array; save it with numpy.savez")
    return arrays


def _wanted(found: list[str], problem: str) -> tuple[str, ...]:
    wanted = _KEYS + (_VAL_KEYS if any(key in found for key in _VAL_KEYS) else ())
    for key in wanted:
        if key not in found:
            raise BenchError(f"{problem} lacks {key}; found {', '.join(sorted(found)) or 'nothing'}")
    return wanted


def _images(array: Array, problem: str) -> Tensor:
    """(n, c, h, w) uint8."""
    shape = array.shape
    if array.ndim not in (3, 4):
        raise BenchError(f"{problem} have shape {shape}, expected (n, h, w) or (n, h, w, c)")
    if array.ndim == 4 and shape[3] not in (1, 3):
        raise BenchError(f"{problem} have shape {shape}, {shape[3]} channels; expected (n, h, w, c) with c = 1 or 3")
    if not array.size:
        raise BenchError(f"{problem} have shape {shape}, which holds no pixels; expected at least one image")
    if shape[1] != shape[2]:
        raise BenchError(f"{problem} are {shape[1]}x{shape[2]}, expected square images; crop or pad them first")
    if array.dtype.kind == "f":
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise BenchError(f"{problem} hold floats that are NaN or outside [0, 1]; rescale them, or save uint8")
        array = np.rint(array.astype(np.float64) * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise BenchError(f"{problem} have dtype {array.dtype}, expected uint8, or floats in [0, 1]")
    images = torch.from_numpy(np.ascontiguousarray(array))
    return images[:, None] if array.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()


def _labels(array: Array, problem: str) -> Tensor:
    """(n,) int64, not negative."""
    if array.ndim == 2 and array.shape[1] > 1:
        raise BenchError(f"{problem} have shape {array.shape}, several per image; expected one class per image, (n,)")
    if array.ndim not in (1, 2):
        raise BenchError(f"{problem} have shape {array.shape}, expected (n,) or (n, 1)")
    if array.dtype.kind not in "iu":
        raise BenchError(f"{problem} have dtype {array.dtype}, expected integers 0 to classes - 1")
    flat = array.reshape(-1)
    if flat.size and (int(flat.min()) < 0 or int(flat.max()) > np.iinfo(np.int64).max):
        raise BenchError(f"{problem} run from {flat.min()} to {flat.max()}, expected integers 0 to classes - 1")
    return torch.from_numpy(flat.astype(np.int64))


def _classes(train: Tensor, test: Tensor, problem: str) -> int:
    present = torch.unique(train).tolist()
    if len(present) < 2:
        raise BenchError(f"{problem}: train_labels hold {len(present)} class; expected 2 or more")
    absent = next((label for label, found in enumerate(present) if label != found), None)
    if absent is not None:
        raise BenchError(
            f"{problem}: train_labels lack class {absent} below {present[-1]}; number classes from 0, no gaps"
        )
    if int(test.max()) >= len(present):
        raise BenchError(f"{problem}: test_labels hold class {int(test.max())}, which train_labels lack; remove it")
    return len(present)


def _shape(images: Tensor) -> tuple[int, ...]:
    return tuple(images.shape[1:])
