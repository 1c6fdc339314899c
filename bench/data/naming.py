"""Names of data sets: as typed, NAME[:ARGUMENT][@SIZE][@grey or @rgb], and in records, NAME-ARGUMENT-rgb-32px.

Data sets that are read by path, such as `npz:PATH`, are named after the last word of the path.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from bench import plugins
from bench.errors import BadOption, unknown

KIND = "data set"
BY_PATH = {
    "imagefolder": "one folder per class, below PATH/train and PATH/test or below PATH (1/6 held out); PATH@64 sets "
    "the size, default 32",
    "npz": "a NumPy archive with {train,test}_{images,labels} or {x,y}_{train,test}; val_* joins the training set",
    "npy": "a folder with such arrays as .npy files, x_train.npy and so on",
    "pt": "the same as torch tensors: a .pt file with a dictionary of them, or a folder with x_train.pt and so on",
    "hf": "a folder of the library `datasets`: parquet files, or what save_to_disk writes (needs the extra `hf`)",
}
_ARRAYS = (
    "keys: {train,test,val}_{images,labels}, {x,y}_{train,test,val}, or only x and y (1/6 held out)",
    "images: (n, h, w), (n, h, w, c) or (n, c, h, w), c = 1 or 3; uint8 and other integers of 0 to 255, uint16 of 0 to "
    "65535, bool, floats in [0, 1]; any other range by --pixel-range",
    "labels: one class per image, as integers, words, booleans or one-hot rows; `class_names` may name them",
    "images that are not square are cropped to their central square, or see --fit; PATH@64 resizes",
    "groups, or {train,test,val}_groups: the patient, user or writer of each record, for --unit group",
)
_FILES = (
    "image files that Pillow reads: rotated by EXIF, transparency on white, 16 bits by their full range; grey if all "
    "are grey, else RGB (--channels 1 or 3 declares it)",
    "each is cropped to its central square, or see --fit, and resized",
)
OWN = {
    "imagefolder": (
        *_FILES,
        "each folder of PATH, or of PATH/train, is a class: at least two, sorted by name, each with training images; "
        "training, testing, valid and the like are parts too, in any case",
        "without a test folder a sixth of each class's files is the test set; hidden files and those of file managers "
        "are ignored",
        "groups.csv in PATH, or --groups FILE, with the columns path and group: the patient, user or writer of each "
        "file, for --unit group; then a sixth of the groups is the test set",
    ),
    "npz": _ARRAYS,
    "npy": _ARRAYS,
    "pt": (*_ARRAYS, "only tensors are read: a file that contains anything else is refused"),
    "hf": (
        *_FILES,
        "one column of images and one of labels, a ClassLabel or whole numbers or words; splits train and test, or "
        "validation instead; without both a sixth of the rows is held out",
    ),
}
"""The requirements on a user's own images, a line per kind."""
CHANNELS = {"grey": 1, "rgb": 3}
"""The word for a number of channels, in names."""
SIZES = range(8, 257)
FILE_SIDE = 32
"""Default side of images from a user's own files."""
DECODED = ("imagefolder", "hf")
"""Kinds whose images are decoded from files."""
_PIXELS = re.compile(r"-([0-9]+)px")


@dataclass(frozen=True)
class Name:
    """A parsed name of a data set.

    Attributes:
        kind: name of a plug-in, or one of `BY_PATH`.
        argument: the plug-in's argument ("" = none), or the path.
        size: side of the images in pixels; None = the data set's own.
        channels: 1 = grey, 3 = RGB; None = the data set's own.
    """

    kind: str
    argument: str = ""
    size: int | None = None
    channels: int | None = None


def parse(name: str, known: dict[str, str]) -> Name:
    """Parse a name without reading any file.

    Args:
        known: all names with a line each, for the error message.

    Raises:
        BenchError: no such name, an empty path or argument, or a size outside 8 to 256.
    """
    kind, colon, rest = name.partition(":")
    if kind in BY_PATH and colon:
        found = _shaped(kind, rest)
        if not found.argument:
            raise BadOption(f"data set '{name}' has no path: write {kind}:PATH")
    else:
        plain = _shaped("", name)
        kind, colon, argument = plain.argument.partition(":")
        if kind not in plugins.entries(KIND) or (colon and not argument):
            raise unknown(KIND, name, known)
        found = Name(kind, argument, plain.size, plain.channels)
    if found.size is not None and found.size not in SIZES:
        raise BadOption(f"data set '{name}' has size {found.size}: expected {SIZES[0]} to {SIZES[-1]} pixels")
    return found


def _shaped(kind: str, text: str) -> Name:
    """Split size and channels from a name; those of an `npz:` follow `.npz`."""
    match = re.fullmatch(rf"(.*?)(?:@([0-9]+))?(?:@({'|'.join(CHANNELS)}))?", text, re.DOTALL)
    if match is None or (kind == "npz" and not match[1].endswith(".npz")):
        return Name(kind, text)
    size = None if match[2] is None else int(match[2].lstrip("0")[:9] or 0)
    return Name(kind, match[1], size, CHANNELS.get(match[3]))


def path_label(name: Name) -> str:
    """Return the label of a data set read by path: [a-z0-9_-], at most 64 characters."""
    location = os.path.abspath(os.path.expanduser(name.argument))
    is_file = name.kind == "npz" or (name.kind == "pt" and location.endswith(".pt"))
    label = Path(location).stem if is_file else Path(location).name
    safe = safe_word(label) or hashlib.sha256(os.fsencode(label)).hexdigest()[:8]
    shape = _shape_words(name, FILE_SIDE if name.kind in DECODED else None, None)
    return f"{name.kind}-{safe}"[: 64 - len(shape)] + shape


def _shape_words(name: Name, own_size: int | None, own_channels: int | None) -> str:
    """Return the end of a record's name if images have another shape than the data set's own."""
    words = {number: word for word, number in CHANNELS.items()}
    colour = "" if name.channels in (None, own_channels) else f"-{words[name.channels]}"
    return colour + ("" if name.size in (None, own_size) else f"-{name.size}px")


def safe_word(text: str) -> str:
    """Reduce text to the characters [a-z0-9_-], without - or _ at either end."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def label(base: str, name: Name, usual: str, own: tuple[int, int] | None) -> str:
    """Return the name in records; argument, size and channels are left out if they are the data set's own.

    Args:
        base: the plug-in's name, or the name of its version.
        usual: the default argument.
        own: channels and side of the data set's own images, if known.

    >>> label("lfw", Name("lfw", "10", 32), "20", (3, 64)), label("lfw", Name("lfw", "20", 64, 1), "20", (3, 64))
    ('lfw-10-32px', 'lfw-grey')
    """
    channels, side = own or (None, None)
    named = base if name.argument in ("", usual) else f"{base}-{safe_word(name.argument)}"
    return named + _shape_words(name, side, channels)


def size_in(name: str) -> int | None:
    """Return the size at the end of a record's name; None without one.

    >>> size_in("celeba-g-subset-32px"), size_in("cifar10-jpeg")
    (32, None)
    """
    found = re.search(rf"{_PIXELS.pattern}$", name)
    return None if found is None else int(found[1])


def channels_in(name: str) -> int | None:
    """Return the channels in a record's name, ignoring its size; None without any.

    >>> channels_in("mnist-rgb-32px"), channels_in("cifar10-grey"), channels_in("mnist")
    (3, 1, None)
    """
    found = re.search(rf".-({'|'.join(CHANNELS)})({_PIXELS.pattern})?$", name)
    return None if found is None else CHANNELS[found[1]]


def is_by_path(name: str) -> bool:
    """Return whether a name in records is that of a user's own images, which are read by path.

    >>> is_by_path("npz-mine"), is_by_path("digits")
    (True, False)
    """
    return name.partition("-")[0] in BY_PATH
