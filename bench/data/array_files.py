"""A user's own arrays: NumPy archives, folders of .npy files, and torch files with tensors. Nothing is unpickled."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.data.array_images import Array, as_images
from bench.data.array_keys import EXPECTED, Keys, find_keys
from bench.data.array_labels import as_labels
from bench.data.images import ImageData
from bench.data.request import AS_DECLARED, Reading
from bench.data.resizing import squared
from bench.data.subset import ONE_IN, held_out
from bench.errors import BadData, NotFound

_BAD_ARCHIVE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # encrypted member
    NotImplementedError,  # unknown compression
    MemoryError,  # a header with a size that does not fit
    zipfile.BadZipFile,
    zlib.error,
)
_DARKEST = 1
"""Images without a grey level above this are refused: their range was probably misread."""

Arrays = dict[str, Array]


def load_arrays(kind: str, path: Path, name: str, reading: Reading) -> ImageData:
    """Read the arrays at `path`: images and labels of a training part and, if there is one, a test part.

    A validation part joins the training part, or becomes the test part if there is none. Without both, the n // 6
    images whose indices have the smallest SHA-256 are the test set.

    Args:
        kind: npz, npy or pt.

    Raises:
        BenchError: arrays whose meaning is ambiguous; the message names the file and the array.
    """
    arrays, keys = _READERS[kind](path, name)
    return as_data(arrays, keys, name, reading, f"data set '{name}': {path}")


def as_data(arrays: Arrays, keys: Keys, name: str, reading: Reading, problem: str) -> ImageData:
    """Build the data set from arrays, as `load_arrays` describes.

    Args:
        keys: the role of each array.
        problem: beginning of error messages: the data set and its file.

    Raises:
        BadData: arrays whose meaning is ambiguous.
    """
    parts = list(keys.parts)
    training = len([part for part in parts if part != "test" and (part != "val" or "test" in parts)])
    images, said = _images(arrays, keys, reading, problem)
    names = None if keys.class_names is None else arrays[keys.class_names]
    label_keys = [label_key for _, label_key in keys.parts.values()]
    labels = as_labels([(key, arrays[key]) for key in label_keys], training, names, problem)
    said += labels.said
    if "val" in parts:
        said.append(f"the validation part {'joins the training part' if training > 1 else 'is the test part'}")
    train_images, train_labels = _one(images[:training]), _one(labels.numbers[:training])
    if training < len(parts):
        test_images, test_labels = images[-1], labels.numbers[-1]
    else:
        is_test = _held_out(train_labels, labels.class_names, problem)
        test_images, test_labels = train_images[is_test], train_labels[is_test]
        train_images, train_labels = train_images[~is_test], train_labels[~is_test]
        said.append("no test part: a sixth of the images is held out, by the hash of their numbers")
    return ImageData(
        *(name, train_images, train_labels, test_images, test_labels, labels.class_names), conversions=tuple(said)
    )


def _images(arrays: Arrays, keys: Keys, reading: Reading, problem: str) -> tuple[list[Tensor], list[str]]:
    """Return the images of all parts as squares, with sentences on how they were read."""
    said = [f"not read: {', '.join(keys.unread)}"] if keys.unread else []
    images: list[Tensor] = []
    for image_key, label_key in keys.parts.values():
        found = as_images(arrays[image_key], f"{problem}: {image_key}", reading.pixel_range)
        images.append(found.images)
        said += [sentence for sentence in found.said if sentence not in said]
        _check_pair(images, arrays[label_key], list(keys.parts.values()), problem)
    _check_not_black(images, problem, reading)
    height, width = images[0].shape[2:]
    if height != width:
        images = [squared(some, reading.fit) for some in images]
        side = images[0].shape[2]
        how = {"crop": "cut to their central", "pad": "padded with black bars to", "stretch": "stretched to"}
        said.append(f"images of {height}x{width} pixels were {how[reading.fit]} {side}x{side} (--fit {reading.fit})")
    return images, said


def _one(tensors: list[Tensor]) -> Tensor:
    """Join tensors; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def load_npz(path: Path, name: str) -> ImageData:
    """Read the archive of a published data set. Raises BenchError as `load_arrays`."""
    return load_arrays("npz", path, name, AS_DECLARED)


def _check_pair(images: list[Tensor], labels: Array, keys: list[tuple[str, str]], problem: str) -> None:
    """Refuse the last images read if they do not fit their labels or the images before them."""
    found, (image_key, label_key) = images[-1], keys[len(images) - 1]
    if labels.ndim and len(found) != len(labels):
        raise BadData(f"{problem}: {len(found)} {image_key} but {len(labels)} {label_key}; they must pair up")
    if found.shape[1:] != images[0].shape[1:]:
        raise BadData(
            f"{problem}: {image_key} are {tuple(found.shape[1:])}, {keys[0][0]} {tuple(images[0].shape[1:])} "
            "(channels, height, width); make them equal"
        )


def _check_not_black(images: list[Tensor], problem: str, reading: Reading) -> None:
    """Refuse images that are all black: their value range differs from that of their dtype."""
    if reading.pixel_range is None and max(int(some.max()) for some in images) <= _DARKEST:
        raise BadData(
            f"{problem}: every pixel would be black; say by --pixel-range LOW,HIGH which values mean black and white, "
            "such as --pixel-range 0,1 or 0,255"
        )


def _held_out(labels: Tensor, class_names: tuple[str, ...], problem: str) -> Tensor:
    """Return (n,) bool: the images of the test set. Raises BenchError if too few are left for training."""
    if len(labels) < ONE_IN:
        raise BadData(f"{problem}: {len(labels)} images and no test part; add one, or {ONE_IN} images")
    is_test = held_out(len(labels))
    absent = sorted(set(range(len(class_names))) - set(labels[~is_test].tolist()))
    if absent:
        raise BadData(
            f"{problem}: no training image of class {class_names[absent[0]]} is left where a sixth is held out; "
            "add a test part"
        )
    return is_test


def _read_npz(path: Path, name: str) -> tuple[Arrays, Keys]:
    """Read the needed arrays of a NumPy archive."""
    problem = f"data set '{name}'"
    if not os.path.isfile(path):
        raise NotFound(f"{problem}: no file {path}; expected a .npz archive with {EXPECTED}")
    member = ""
    arrays: Arrays = {}
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise BadData(
                f"{problem}: {path} is a single array; save numpy.savez of {EXPECTED}, or give its folder, npy:PATH"
            )
        with archive:
            keys = find_keys(archive.files, f"{problem}: {path}")
            for member in keys.read:
                arrays[member] = archive[member]
    except _BAD_ARCHIVE as error:
        what = f"{path}: {member} cannot be read" if member else f"{path} is not a readable .npz archive"
        raise BadData(f"{problem}: {what} ({_said(error, member)}); save numbers or str with numpy.savez") from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise BadData(f"{problem}: {path}: {key} is not a NumPy array; save it with numpy.savez")
    return arrays, keys


def _said(error: Exception, member: str) -> str:
    text = " ".join(str(error).split())
    if "pickle" in text:
        return "an array of Python objects" if member else "not NumPy's format"
    return text[:300]


def _read_npy(path: Path, name: str) -> tuple[Arrays, Keys]:
    """Read the arrays of a folder of .npy files."""
    files = _files(path, name, ".npy")
    keys = find_keys(files, f"data set '{name}': {path}")
    arrays: Arrays = {}
    for key in keys.read:
        try:
            arrays[key] = np.load(files[key], allow_pickle=False)
        except _BAD_ARCHIVE as error:
            raise BadData(
                f"data set '{name}': {files[key]} cannot be read ({_said(error, key)}); save numbers or str"
            ) from error
        if not isinstance(arrays[key], np.ndarray):
            raise BadData(f"data set '{name}': {files[key]} is not a single array; save it with numpy.save")
    return arrays, keys


def _read_pt(path: Path, name: str) -> tuple[Arrays, Keys]:
    """Read the tensors of a torch file, or of a folder of such files: a tensor, a pair of images and labels, or several
    tensors by name."""
    files = {path.stem: path} if os.path.isfile(path) else _files(path, name, ".pt")
    found: dict[str, Any] = {}
    for stem, file in files.items():
        read = _unpacked(file, name)
        if isinstance(read, Tensor):
            found[stem] = read
        elif isinstance(read, tuple | list):
            found |= _pair(read, "" if file == path else f"{stem}_", file, name)
        else:
            found |= read
    keys = find_keys(found, f"data set '{name}': {path}")
    return {key: _as_array(found[key], f"data set '{name}': {path}: {key}") for key in keys.read}, keys


def _unpacked(file: Path, name: str) -> Tensor | tuple[Any, ...] | list[Any] | dict[str, Any]:
    """Load a torch file: tensors, or plain containers of them. Raises BenchError for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read = torch.load(file, map_location="cpu", weights_only=True)
    except (*_BAD_ARCHIVE, pickle.UnpicklingError, KeyError, TypeError, AttributeError) as error:
        raise BadData(
            f"data set '{name}': {file} cannot be read as tensors ({type(error).__name__}); save only tensors, as in "
            "torch.save({'x_train': images, 'y_train': labels}, FILE)"
        ) from error
    if isinstance(read, Tensor | tuple | list):
        return read
    if isinstance(read, Mapping) and all(isinstance(key, str) for key in read):
        return dict(read)
    raise BadData(f"data set '{name}': {file} holds a {type(read).__name__}; expected tensors with names, {EXPECTED}")


def _pair(read: Any, start: str, file: Path, name: str) -> dict[str, Any]:
    if len(read) != 2:
        raise BadData(f"data set '{name}': {file} holds {len(read)} values; expected two, images and labels")
    return {f"{start}images": read[0], f"{start}labels": read[1]}


def _as_array(value: Any, problem: str) -> Array:
    if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
        return np.array(value)
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized or value.is_complex():
        raise BadData(f"{problem} is not a dense tensor of real numbers; save it as one")
    return (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()


def _files(path: Path, name: str, suffix: str) -> dict[str, Path]:
    """Return the files of a folder with a suffix, by name without it."""
    if not os.path.isdir(path):
        kinds = "file or folder" if suffix == ".pt" else "folder"
        raise BadData(f"data set '{name}': no {kinds} {path}; expected {suffix} files, {EXPECTED}")
    return {file.stem: file for file in sorted(path.glob(f"*{suffix}")) if not file.name.startswith(".")}


_READERS: dict[str, Callable[[Path, str], tuple[Arrays, Keys]]] = {"npz": _read_npz, "npy": _read_npy, "pt": _read_pt}
