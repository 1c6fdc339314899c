"""Names of data sets as they are typed, NAME[:ARGUMENT][@SIZE], and as records have them, NAME-ARGUMENT-32px.

`imagefolder:PATH` and `npz:PATH` are named after the last word of the path.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from bench import plugins
from bench.errors import BenchError, unknown

KIND = "data set"
BY_PATH = {
    "imagefolder": "PATH/{train,test or val}/CLASS/* or PATH/CLASS/* (1/6 held out); PATH@64 sets the size, default 32",
    "npz": "a NumPy archive with {train,test}_{images,labels}, the layout of MedMNIST; val_* joins the training set",
}
OWN = {
    "imagefolder": (
        "image files of 8 bits; each is cut to its central square and resized; grey if all are grey, else RGB",
        "a folder of PATH, or of PATH/train, is a class: two at least, by sorted name, each with training images",
        "hidden files are left out; without PATH/test and PATH/val a sixth of each class's files is the test set",
    ),
    "npz": (
        "images: (n, h, w) or (n, h, w, c), square, c = 1 or 3, uint8 or floats in [0, 1]; nothing is cut",
        "labels: (n,) or (n, 1) integers 0 to classes - 1, two classes at least, each among the training images",
        "a test part is required; PATH.npz@64 resizes",
    ),
}
"""What a user's own images must be, a line each, by kind."""
SIZES = range(8, 257)
_FOLDER_SIZE = 32
_PIXELS = re.compile(r"-([0-9]+)px")


@dataclass(frozen=True)
class Name:
    """A parsed name: of a plug-in, with its argument ("" = none); or of a kind that is read by path.

    `size` is None where the data set's own is meant.
    """

    kind: str
    argument: str = ""
    size: int | None = None


def parse(name: str, known: dict[str, str]) -> Name:
    """What a name means, as far as the name tells.

    Args:
        known: all names with a line each, for the error.

    Raises:
        BenchError: no such name, an empty path or argument, or a size outside 8 to 256.
    """
    kind, colon, rest = name.partition(":")
    if kind in BY_PATH and colon:
        pattern = r"(.*)@([0-9]+)" if kind == "imagefolder" else r"(.*\.npz)@([0-9]+)"
        found = _sized(kind, rest, pattern)
        if not found.argument:
            raise BenchError(f"data set '{name}' names no path: write {kind}:PATH")
    else:
        plain = _sized("", name, r"(.*)@([0-9]+)")
        kind, colon, argument = plain.argument.partition(":")
        if kind not in plugins.entries(KIND) or (colon and not argument):
            raise unknown(KIND, name, known)
        found = Name(kind, argument, plain.size)
    if found.size is not None and found.size not in SIZES:
        raise BenchError(f"data set '{name}' asks for size {found.size}: expected {SIZES[0]} to {SIZES[-1]} pixels")
    return found


def _sized(kind: str, text: str, pattern: str) -> Name:
    match = re.fullmatch(pattern, text, re.DOTALL)
    return Name(kind, match[1], int(match[2].lstrip("0")[:9] or 0)) if match else Name(kind, text)


def path_label(name: Name) -> str:
    """What a data set that is read by path is called: [a-z0-9_-], at most 64 characters."""
    location = os.path.abspath(os.path.expanduser(name.argument))
    label = Path(location).stem if name.kind == "npz" else Path(location).name
    safe = safe_word(label) or hashlib.sha256(os.fsencode(label)).hexdigest()[:8]
    usual = _FOLDER_SIZE if name.kind == "imagefolder" else None
    size = "" if name.size in (None, usual) else f"-{name.size}px"
    return f"{name.kind}-{safe}"[: 64 - len(size)] + size


def safe_word(text: str) -> str:
    """Text in the characters [a-z0-9_-], none of the latter at an end."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def label(base: str, argument: str, usual: str, size: int | None, own: int | None) -> str:
    """The name in records: arguments and sizes that are the data set's own are left out.

    >>> label("lfw", "10", "20", 32, 64), label("lfw", "20", "20", 64, 64)
    ('lfw-10-32px', 'lfw')
    """
    named = base if argument in ("", usual) else f"{base}-{safe_word(argument)}"
    return named if size in (None, own) else f"{named}-{size}px"


def size_in(name: str) -> int | None:
    """The size that a name in records ends with; None where it has none.

    >>> size_in("celeba-g-subset-32px"), size_in("cifar10-jpeg")
    (32, None)
    """
    found = re.search(rf"{_PIXELS.pattern}$", name)
    return None if found is None else int(found[1])
