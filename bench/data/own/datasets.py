"""The base class of the values that `bench.data.from_arrays` and similar functions return."""

from __future__ import annotations

import math
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from bench.data.naming import CHANNELS, FILE_SIDE, SIZES
from bench.data.request import Fit, Reading
from bench.errors import BadOption, unknown

FOLDER = "datasets"
"""Folder below `out` for the user's images, each in a folder named by its content."""
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
    def located(self, out: Path) -> str:
        """Write the images below `out` unless they exist, and return the name of the data set in files."""


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
        usual: the default size; None = that of the images.
    """
    words = {number: f"@{word}" for word, number in CHANNELS.items()}
    if size is not None and (isinstance(size, bool) or size not in SIZES):
        raise BadOption(f"size is {size!r}; expected {SIZES[0]} to {SIZES[-1]} pixels")
    if channels is not None and channels not in words:
        raise BadOption(f"channels is {channels!r}; expected 1 or 3")
    side = usual if size is None else size
    return ("" if side is None else f"@{side}") + ("" if channels is None else words[channels])


def of_files(size: int | None, channels: int | None) -> str:
    """Format the shape as `checked_shape` for images decoded from files, with a default size of 32 pixels."""
    return checked_shape(size, channels, FILE_SIDE)


def python_words(message: str) -> str:
    """Replace command-line options in a message about files by Python arguments.

    >>> python_words("say which values mean black and white, such as --pixel-range -1,1")
    'say which values mean black and white, such as value_range=(-1, 1)'
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
