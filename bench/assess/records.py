"""Read members and non-members as images: from folders with one folder per class, or from NumPy archives."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bench.assess.scores import FEWEST, file_digest
from bench.data.array_files import find_keys
from bench.data.arrays import as_images, make_square
from bench.data.dataset import AS_DECLARED, Decoding, Reading
from bench.data.folder import is_clutter, list_part, scan
from bench.data.image_files import decode
from bench.data.naming import FILE_SIDE
from bench.data.opening import BAD_IMAGE
from bench.errors import BenchError
from bench.escape import visible

FILE_FACTS = ("file size", "image width", "image height", "JPEG table sum", "EXIF block", "colour mode length")
GROUP_KEYS = ("group", "groups", "patient", "patients")


@dataclass(frozen=True, eq=False)
class Records:
    """One set of labelled images.

    Attributes:
        path: the path as given.
        images: (n, c, h, w) uint8.
        labels: (n,) int64.
        class_names: None if the labels are only numbers, as in an archive.
        groups: (n,) text; None without groups.
        facts: (n, d) float64, facts about the files, named by `FILE_FACTS`; d = 0 for archives.
        digest: SHA-256 of the archive, or of the pixels and labels of a folder.
        names: (n,) text: file names relative to the folder, or numbers of the rows of an archive, from 0.
    """

    path: str
    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...] | None
    groups: NDArray[np.str_] | None
    facts: NDArray[np.float64]
    digest: str
    names: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Records:
        """Select records by a mask or an array of indices."""
        rows = torch.from_numpy(chosen)
        groups = None if self.groups is None else self.groups[chosen]
        return replace(
            self,
            images=self.images[rows],
            labels=self.labels[rows],
            groups=groups,
            facts=self.facts[chosen],
            names=self.names[chosen],
        )


@dataclass(frozen=True)
class ReadAs:
    """How images are read.

    Attributes:
        size: side in pixels of images from files; None = 32. Archives keep theirs.
        channels: 1 or 3; None = as the files of the first set are stored.
        reading: how images become square, and which values mean black and white.
        groups: a CSV file with columns `file` and `group`; None = the archive's array `group`, or no groups.
    """

    size: int | None = None
    channels: int | None = None
    reading: Reading = AS_DECLARED
    groups: Path | None = None


def read_records(path: Path, how: ReadAs, like: Records | None = None) -> Records:
    """Read one set of labelled images.

    Args:
        like: the other set, whose classes, channels and size this one must have.

    Raises:
        BenchError: no such path, images or labels that cannot be read, other classes or shapes than those of `like`,
            fewer than 30 records.
    """
    if path.is_dir():
        found = _read_folder(path, how, like)
    elif path.suffix.lower() == ".npz" and path.is_file():
        found = _read_archive(path, how, like)
    else:
        raise BenchError(f"no images at '{path}'; give a folder with one folder per class, or a .npz file")
    if len(found) < FEWEST:
        raise BenchError(f"'{path}' has {len(found)} images; expected at least {FEWEST}; give more")
    if like is not None and found.images.shape[1:] != like.images.shape[1:]:
        shapes = tuple(found.images.shape[1:]), tuple(like.images.shape[1:])
        raise BenchError(f"'{path}' has images of {shapes[0]}, '{like.path}' of {shapes[1]} (channels, height, width)")
    if like is not None and (found.groups is None) != (like.groups is None):
        raise BenchError(f"groups are given for one of '{path}' and '{like.path}' only; give them for both or neither")
    return found


def read_images(path: Path, how: ReadAs, like: Records) -> Tensor:
    """Read images without labels: all image files below a folder, or the array of a .npz file.

    The array is called `images`, `samples`, `x` or `arr_0`.

    Args:
        like: records whose channels and size the images must have.

    Returns:
        (m, c, h, w) uint8.

    Raises:
        BenchError: no images, unreadable ones, or another shape than that of `like`.
    """
    channels, height, width = like.images.shape[1:]
    if path.is_dir():
        files = [file for found in scan(path, str(path)).values() for file in found]
        files += sorted(file for file in path.iterdir() if file.is_file() and not is_clutter(file.name))
        if not files:
            raise BenchError(f"'{path}' has no images; give the folder of the released images")
        decoding = Decoding(
            how.size or FILE_SIDE, how.channels or channels, fit=how.reading.fit, pixel_range=how.reading.pixel_range
        )
        decoded = decode(files, path, decoding, None)
        if decoded.broken:
            row, said = next(iter(decoded.broken.items()))
            raise BenchError(f"'{path}': {visible(str(files[row]))} {said}; {len(decoded.broken)} such files in all")
        images = decoded.images.clone()
    elif path.suffix.lower() == ".npz" and path.is_file():
        arrays = _arrays_of(path)
        names = [name for name in arrays if name.lower() in ("images", "samples", "x", "arr_0")]
        if len(names) != 1:
            raise BenchError(f"'{path}' has the arrays {', '.join(arrays)}; expected one named images")
        images = as_images(arrays[names[0]], f"'{path}': {names[0]}", how.reading.pixel_range).images
    else:
        raise BenchError(f"no images at '{path}'; give a folder of images or a .npz file")
    if images.shape[1:] != (channels, height, width):
        raise BenchError(
            f"'{path}' has images of {tuple(images.shape[1:])}, '{like.path}' of {(channels, height, width)} "
            "(channels, height, width); give images as they were released, or --size and --channels"
        )
    return images


def _read_folder(path: Path, how: ReadAs, like: Records | None) -> Records:
    classes = scan(path, str(path))
    names = tuple(classes) if like is None or like.class_names is None else like.class_names
    unknown = [name for name, files in classes.items() if files and name not in names]
    if unknown:
        raise BenchError(f"'{path}' has the class folder '{visible(unknown[0])}', which the members do not have")
    listed = list_part({name: classes.get(name, []) for name in names}, names)
    if not listed.files:
        raise BenchError(f"'{path}' has no images; expected one folder for each class with image files in it")
    channels = how.channels or (None if like is None else int(like.images.shape[1]))
    decoding = Decoding(how.size or FILE_SIDE, channels, fit=how.reading.fit, pixel_range=how.reading.pixel_range)
    decoded = decode(listed.files, path, decoding, None)
    if decoded.broken:
        row, said = next(iter(decoded.broken.items()))
        raise BenchError(f"'{path}': {visible(str(listed.files[row]))} {said}; {len(decoded.broken)} such files in all")
    labels = torch.tensor(list(listed.labels), dtype=torch.int64)
    files = [file for file in listed.files if isinstance(file, Path)]
    relative = [file.relative_to(path).as_posix() for file in files]
    groups = None if how.groups is None else _groups_of_files(how.groups, relative, path)
    digest = hashlib.sha256(decoded.hashes.pixels.tobytes() + labels.numpy().tobytes()).hexdigest()
    return Records(
        str(path),
        decoded.images.clone(),
        labels,
        names,
        groups,
        np.array([_file_facts(file) for file in files]),
        digest,
        np.array(relative),
    )


def _file_facts(path: Path) -> tuple[float, ...]:
    """Return facts about a file that may differ between sources, in the order of `FILE_FACTS`."""
    try:
        with Image.open(path) as image:
            tables = getattr(image, "quantization", None) or {}
            total = float(sum(sum(table) for table in tables.values()))
            return (
                *(float(path.stat().st_size), float(image.width), float(image.height), total),
                *(float("exif" in image.info), float(len(image.mode))),
            )
    except BAD_IMAGE as error:
        raise BenchError(f"'{path}' is not a readable image ({type(error).__name__}); repair or remove it") from error


def _groups_of_files(table: Path, names: list[str], base: Path) -> NDArray[np.str_]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BenchError(f"--groups {table} cannot be read ({error}); give CSV with columns file and group") from error
    if not rows or not {"file", "group"} <= set(rows[0]):
        raise BenchError(f"--groups {table} has no columns file and group; give a CSV file that has them")
    known = dict(map(itemgetter("file", "group"), rows))
    missing = [name for name in names if name not in known]
    if missing:
        raise BenchError(
            f"--groups {table} has no group for {len(missing)} files of '{base}', such as '{visible(missing[0])}'; "
            "name files relative to the set's folder"
        )
    return np.array([known[name] for name in names])


def _read_archive(path: Path, how: ReadAs, like: Records | None) -> Records:
    problem = f"'{path}'"
    arrays = _arrays_of(path)
    keys = find_keys([name for name in arrays if name not in GROUP_KEYS], problem)
    image_key, label_key = next(iter(keys.parts.values()))
    images = as_images(arrays[image_key], f"{problem}: {image_key}", how.reading.pixel_range).images
    if images.shape[2] != images.shape[3]:
        images = make_square(images, how.reading.fit)
    labels = _archive_labels(arrays[label_key], f"{problem}: {label_key}", like)
    if len(labels) != len(images):
        raise BenchError(f"{problem}: {len(images)} {image_key} but {len(labels)} {label_key}; they must pair up")
    group = next((arrays[name] for name in GROUP_KEYS if name in arrays), None)
    if group is not None and group.shape != (len(images),):
        raise BenchError(f"{problem}: group has shape {group.shape}; expected one for each of {len(images)} images")
    groups = None if group is None else group.astype(np.str_)
    facts = np.empty((len(images), 0))
    names = np.arange(len(images)).astype(np.str_)
    return Records(str(path), images, labels, None, groups, facts, file_digest(path), names)


def _arrays_of(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read all arrays of a .npz file; arrays of Python objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # the bytes may come from anyone; damaged files raise a dozen kinds
        why = "an array of Python objects, which is not read" if "pickle" in str(error) else type(error).__name__
        raise BenchError(f"'{path}' cannot be read as an archive ({why}); save arrays by numpy.savez") from error


def _archive_labels(array: NDArray[np.generic], problem: str, like: Records | None) -> Tensor:
    """Check and convert labels: whole numbers from 0, which number the model's outputs; words cannot be assigned."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise BenchError(
            f"{problem} has shape {array.shape} and type {array.dtype}; expected one whole number for each image, the "
            "number of the model's output"
        )
    labels = array.astype(np.int64)
    if len(labels) and labels.min() < 0:
        raise BenchError(f"{problem} has the label {labels.min()}; expected 0 or larger")
    return torch.from_numpy(labels)
