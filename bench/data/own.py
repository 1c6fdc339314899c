"""A user's own images as Python objects, from arrays and folders; and a summary of their classes before training.

    data = bench.data.from_arrays(x, y, x_test, y_test, name="mine")
    bench.run("rr", dataset=data)

`bench.data.own_items` reads data sets of torch and Hugging Face. Importing this file imports neither NumPy nor torch.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from bench.data.dataset import Fit, Reading
from bench.data.folder import find_tree, subfolders
from bench.data.groups import read_groups
from bench.data.images import ImageData
from bench.data.naming import CHANNELS, FILE_SIDE, SIZES, is_by_path
from bench.errors import BadData, BadOption, NotFound, unknown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    Arrays = Mapping[str, np.ndarray[Any, Any]]

FOLDER = "datasets"
"""Folder below `out` for the user's images, each in a folder named by its content."""
FEW = 20
"""Number of training images of a class below which a warning is shown."""
IMBALANCE = 20
"""Ratio of the largest to the smallest class above which a warning is shown."""
_SHOWN = 30
"""Number of classes that have a line each; of more, the smallest ones are shown."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,47}[a-z0-9])?")


@dataclass(frozen=True, eq=False)
class OwnDataset(ABC):
    """Your own images and labels: `bench.run(dataset=...)` takes it instead of a name.

    Attributes:
        name: name in records, after the kind of its files.
        reading: how images are made square, and which values mean black and white.
        shape_words: the requested size and channels, such as "@64@rgb"; "" = those of the images.
    """

    name: str
    reading: Reading
    shape_words: str

    @abstractmethod
    def save(self, out: Path) -> str:
        """Write the images below `out` unless they exist, and return the name of the data set in files."""


@dataclass(frozen=True, eq=False)
class PathDataset(OwnDataset):
    """Files at an absolute `path`; they are read when a run needs them.

    Attributes:
        path: the folder.
        kind: "imagefolder", image files in one folder per class; or "hf", parquet files or those of `save_to_disk`.
    """

    path: Path
    kind: str

    def save(self, out: Path) -> str:
        """Return its name as a data set; writes nothing."""
        return f"{self.kind}:{self.path}{self.shape_words}"


@dataclass(frozen=True, eq=False, repr=False)
class ArrayDataset(OwnDataset):
    """Images and labels in memory.

    Attributes:
        arrays: x_train, y_train and optionally x_test, y_test, groups_train, groups_test and class_names, all
            read-only.
        digest: first 16 hex digits of the SHA-256 over all arrays.
    """

    arrays: Arrays
    digest: str

    def save(self, out: Path) -> str:
        """Write `out/datasets/DIGEST/NAME.npz` unless it exists; return its name as a data set."""
        import numpy as np

        def write(path: Path) -> None:
            with path.open("wb") as stream:
                np.savez(stream, **self.arrays)  # type: ignore[arg-type]

        path = out / FOLDER / self.digest / f"{self.name}.npz"
        write_once(path, write)
        return f"npz:{path}{self.shape_words}"

    def __repr__(self) -> str:
        shapes = ", ".join(f"{key} {array.dtype} {tuple(array.shape)}" for key, array in self.arrays.items())
        return f"{type(self).__name__}({self.name}: {shapes})"


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    name: str,
    groups: ArrayLike | None = None,
    groups_test: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    value_range: tuple[float, float] | None = None,
    size: int | None = None,
    channels: int | None = None,
    fit: Fit = "crop",
) -> OwnDataset:
    """Make a data set from arrays or tensors, which are copied and checked in the same way as files.

    The values of the images never decide how they are read: a range computed from the data would reveal information
    about every record.

    Args:
        x: training images, (n, h, w), (n, h, w, c) or (n, c, h, w) with c = 1 or 3: uint8 and other integers of 0 to
            255, uint16 of 0 to 65535, bool, or floats in [0, 1]; other ranges need `value_range`.
        y: (n,) labels: whole numbers, words or booleans; or one-hot rows (n, classes).
        x_test: test images, in the same form; None = a sixth of the training images is held out, by the hash of their
            indices.
        y_test: labels of the test images.
        name: name in records: small letters, digits, - and _.
        groups: (n,) group of each training record, such as its patient or writer: whole numbers or words. Unit
            "group" protects all records of a group. Without a test part a sixth of the groups is held out.
        groups_test: groups of the test records.
        class_names: a name for each class, in the order of the numbers; None = the labels themselves.
        value_range: the values that mean black and white.
        size: side in pixels, 8 to 256, to which images are resized; None = their own.
        channels: 1 = grey, 3 = RGB; None = those of the images.
        fit: how non-square images become square: "crop" keeps the central square, "pad" adds black bars, "stretch"
            changes the aspect ratio.

    Returns:
        A value for `bench.run(dataset=...)`.

    Raises:
        BadData: arrays that do not fit together, or whose meaning is ambiguous.
        BadOption: an impossible name, range, size or fit.
    """
    from bench.data.array_files import as_data, find_keys

    reading, shape_words = checked_reading(fit, value_range), checked_shape(size, channels)
    problem = f"data set '{checked_name(name)}'"
    given = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    given |= {"groups_train": groups, "groups_test": groups_test}
    given |= {"class_names": None if class_names is None else [str(each) for each in class_names]}
    arrays = {key: _copy_array(value, f"{problem}: {key}") for key, value in given.items() if value is not None}
    try:
        as_data(dict(arrays), find_keys(arrays, problem), name, reading, problem)
    except BadData as error:
        raise BadData(python_words(str(error))) from None
    digest = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
        array.flags.writeable = False
    return ArrayDataset(name, reading, shape_words, arrays, digest.hexdigest()[:16])


def _copy_array(value: Any, problem: str) -> np.ndarray[Any, Any]:
    """Copy an array or a tensor. Raises BadData for anything else."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    try:
        array = np.array(value)
    except ValueError as error:
        raise BadData(
            f"{problem} cannot become an array ({error}); give images of one size, or labels of one kind"
        ) from None
    if array.dtype.hasobject or array.ndim == 0:
        raise BadData(f"{problem} is a {type(value).__name__} of dtype {array.dtype}; expected an array or a tensor")
    return array


def from_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    channels: int | None = None,
    fit: Fit = "crop",
    value_range: tuple[float, float] | None = None,
    groups: str | os.PathLike[str] | None = None,
) -> OwnDataset:
    """Make a data set from image files with one folder per class.

    Args:
        path: a folder with train/CLASS/ and test/CLASS/, or with CLASS/, of which a sixth of the files is held out.
        size, channels, fit, value_range: as in `from_arrays`; None = 32 pixels, grey if all files are, and the range
            of the file format.
        groups: CSV file with the columns path (below the folder) and group, such as the patient of each image file;
            None = `groups.csv` in the folder, if it is there.

    Returns:
        A value for `bench.run(dataset=...)`. Its files are read when a run needs them.

    Raises:
        NotFound: no such folder, or no such file of groups.
        BadData: a folder without classes, or with a test part and no training part.
        BadOption: an impossible size, fit or range.
    """
    reading, shape_words = checked_reading(fit, value_range), checked_shape(size, channels, FILE_SIDE)
    folder = Path(os.path.abspath(os.path.expanduser(path)))
    if not folder.is_dir():
        raise NotFound(f"no folder {folder}; expected PATH/{{train,test}}/CLASS/* or PATH/CLASS/*")
    tree = find_tree(folder, folder.name)
    if len(found := subfolders(tree.train)) < 2:
        raise BadData(f"{tree.train} has {len(found)} class folders; expected 2 or more, each with image files")
    if groups is not None:
        file = Path(os.path.abspath(os.path.expanduser(groups)))
        read_groups(file, f"data set '{folder.name}'")
        reading = replace(reading, groups=file)
    return PathDataset(folder.name, reading, shape_words, folder, "imagefolder")


def checked_name(name: str) -> str:
    """Return the name of a data set. Raises BadOption for one that files cannot have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadOption(
            f"name is {name!r}; expected 1 to 49 small letters, digits, - and _, no - or _ at an end, as in 'my-x-rays'"
        )
    return name


def checked_reading(fit: Fit, value_range: tuple[float, float] | None) -> Reading:
    """Return how images are read. Raises UnknownName for an unknown fit, BadOption for an impossible range."""
    if fit not in get_args(Fit):
        raise unknown("fit", fit, get_args(Fit))
    if value_range is None:
        return Reading(fit)
    try:
        low, high = map(float, value_range)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadOption(
            f"value_range is {value_range!r}; expected the values of black and white, the smaller one first, as in "
            "(-1, 1) or (0, 4095)"
        )
    return Reading(fit, (low, high))


def checked_shape(size: int | None, channels: int | None, usual: int | None = None) -> str:
    """Format size and channels as in names of data sets. Raises BadOption for impossible values.

    Args:
        usual: the default size, as for images from files; None = that of the images.
    """
    words = {number: f"@{word}" for word, number in CHANNELS.items()}
    if size is not None and (isinstance(size, bool) or size not in SIZES):
        raise BadOption(f"size is {size!r}; expected {SIZES[0]} to {SIZES[-1]} pixels")
    if channels is not None and channels not in words:
        raise BadOption(f"channels is {channels!r}; expected 1 or 3")
    side = usual if size is None else size
    return ("" if side is None else f"@{side}") + ("" if channels is None else words[channels])


def python_words(message: str) -> str:
    """Replace command-line options in a message about files by Python arguments.

    >>> python_words("declare which values mean black and white, such as --pixel-range -1,1")
    'declare which values mean black and white, such as value_range=(-1, 1)'
    """
    return re.sub(r"--pixel-range ([\w.+-]+),([\w.+-]+)", r"value_range=(\1, \2)", message)


def write_once(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file atomically unless it exists: its folder is named by its content.

    Args:
        write: called with the path of a temporary file.
    """
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(handle)
    try:
        write(Path(temporary))
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def class_lines(images: ImageData) -> Iterator[str]:
    """Yield lines about a user's own data: how they were read, each class with its number of images, and warnings.

    Published data sets have none: their documentation describes them.
    """
    if not is_by_path(images.name):
        return
    names = images.class_names
    train, test = (
        labels.bincount(minlength=images.classes).tolist() for labels in (images.train_labels, images.test_labels)
    )
    for sentence in images.conversions:
        yield f"{images.name}: {sentence}"
    channels, height, width = images.shape
    yield (
        f"{images.name}: {images.classes} classes, {sum(train):,} training and {sum(test):,} test images of "
        f"{channels}x{height}x{width}"
    )
    shown: Sequence[int] = range(len(names))
    if len(names) > _SHOWN:
        yield f"  the {_SHOWN} smallest of {len(names)} classes:"
        shown = sorted(shown, key=lambda number: train[number])[:_SHOWN]
    wide = max(len("class"), *(len(names[number]) for number in shown))
    yield f"  {'class':<{wide}}  {'training':>8}  {'test':>8}"
    for number in shown:
        yield f"  {names[number]:<{wide}}  {train[number]:>8,}  {test[number]:>8,}"
    for warning in class_warnings(names, train, test):
        yield f"{images.name}: warning: {warning}"


def class_warnings(names: Sequence[str], train: Sequence[int], test: Sequence[int]) -> Iterator[str]:
    """Yield warnings about classes with few training images or without test images, and about imbalance.

    Args:
        names: of the classes. train, test: number of training and of test images of each class.
    """

    def listed(some: list[str]) -> str:
        more = f" and {len(some) - 10} more" if len(some) > 10 else ""
        return f"class{'es' * (len(some) > 1)} {', '.join(some[:10])}{more}"

    if few := [name for name, count in zip(names, train, strict=True) if count < FEW]:
        yield f"fewer than {FEW} training images in {listed(few)}: a network hardly learns such a class"
    if untested := [name for name, count in zip(names, test, strict=True) if not count]:
        yield f"no test image in {listed(untested)}: the accuracy says nothing about such a class"
    if max(train) > IMBALANCE * min(train) > 0:
        most, least = names[train.index(max(train))], names[train.index(min(train))]
        yield (
            f"{most} has {max(train) / min(train):.0f} times as many training images as {least}: the accuracy over all "
            "classes says little about the smaller ones"
        )
