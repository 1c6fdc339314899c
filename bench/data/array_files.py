"""A user's own arrays: NumPy archives, folders of .npy files, and torch files with tensors. Nothing is unpickled.

The names of the arrays say which one contains the images or the labels of which part.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.data.arrays import Array, as_images, as_labels, make_square
from bench.data.dataset import AS_DECLARED, Reading
from bench.data.groups import is_held_out, number_groups
from bench.data.images import ONE_IN, ImageData, hold_out
from bench.errors import BadData, NotFound

ROLES = {
    "images": ("images", "image", "imgs", "img", "x", "data", "inputs"),
    "labels": ("labels", "label", "y", "targets", "target"),
}
GROUPS = ("groups", "group")
"""Names of the arrays with the group of each record, such as its patient, which are optional."""
PARTS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""Reading order of the parts: the test part is last."""
CLASS_NAMES = ("class_names", "classes", "label_names")
WHOLE = "whole"
"""The part of arrays whose names do not say one, such as x and y."""
EXPECTED = "{train,test}_{images,labels} or {x,y}_{train,test}"
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
_BAD_TENSORS = (*_BAD_ARCHIVE, pickle.UnpicklingError, KeyError, TypeError, AttributeError)
_HELD_OUT = "images is held out, by the hash of their numbers"
_DARKEST = 1
"""If no pixel is above this grey level, the images are refused: their range was probably misread."""

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Keys:
    """The names of the arrays in a user's files, by role.

    Attributes:
        parts: "train", "val", "test" or `WHOLE`, to the names of its images and its labels.
        groups: the names of the arrays of groups, in the order of the parts; () without groups.
        class_names: the name of the list of classes; None if there is none.
        unread: the names of all other arrays, which are not read.
    """

    parts: dict[str, tuple[str, str]]
    class_names: str | None
    unread: tuple[str, ...]
    groups: tuple[str, ...] = ()

    @property
    def read(self) -> tuple[str, ...]:
        """The names of all arrays to read."""
        names = (*(key for pair in self.parts.values() for key in pair), *self.groups)
        return names if self.class_names is None else (*names, self.class_names)


def find_keys(found: Iterable[str], problem: str) -> Keys:
    """Find the arrays to read by their names.

    Args:
        problem: beginning of error messages: the data set and its file.

    Raises:
        BenchError: two arrays with one role, images without labels or the reverse, or no training part.
    """
    found = sorted(found)
    by_meaning: dict[tuple[str, str], str] = {}
    for key in found:
        meaning = _meaning(key)
        if meaning is None:
            continue
        if meaning in by_meaning:
            raise BadData(f"{problem} has {by_meaning[meaning]} and {key}, which mean the same; keep one of them")
        by_meaning[meaning] = key
    parts = {part for part, role in by_meaning if role in ROLES}
    if len(parts) > 1:
        parts -= {WHOLE}
    if not parts & {"train", WHOLE}:
        raise BadData(f"{problem} has no train_images; found {', '.join(found) or 'nothing'}; expected {EXPECTED}")
    for part in sorted(parts):
        for role in ROLES:
            if (part, role) not in by_meaning:
                missing = role if part == WHOLE else f"{part}_{role}"
                raise BadData(f"{problem} has no {missing}; found {', '.join(found)}; expected {EXPECTED}")
    order = [part for part in (*PARTS, WHOLE) if part in parts]
    pairs = {part: (by_meaning[part, "images"], by_meaning[part, "labels"]) for part in order}
    names = next((key for key in found if key.lower() in CLASS_NAMES), None)
    if key := by_meaning.pop((WHOLE, "groups"), ""):
        if len(order) > 1:
            raise BadData(f"{problem} has {key}; call it train_groups, and add {order[-1]}_groups")
        by_meaning[order[0], "groups"] = key
    given = tuple(by_meaning[part, "groups"] for part in order if (part, "groups") in by_meaning)
    if given and len(given) < len(order):
        part = next(part for part in order if (part, "groups") not in by_meaning)
        raise BadData(f"{problem} has {given[0]} but no {part}_groups; give the groups of every part, or of none")
    read = {key for pair in pairs.values() for key in pair} | {names, *given}
    return Keys(pairs, names, tuple(key for key in found if key not in read), given)


def _meaning(key: str) -> tuple[str, str] | None:
    """Return the part, and "images", "labels" or "groups"; None for any other name."""
    words = [word for word in re.split(r"[^a-z]+", key.lower()) if word]
    if len(words) == 1 and (joined := re.fullmatch(r"([xy])(train|test|val)|(train|test|val)([xy])", words[0])):
        words = [group for group in joined.groups() if group]
    roles = {word: role for role, known in ROLES.items() for word in known} | dict.fromkeys(GROUPS, "groups")
    parts = {word: part for part, known in PARTS.items() for word in known}
    if len(words) == 1 and words[0] in roles:
        return WHOLE, roles[words[0]]
    if len(words) != 2:
        return None
    part = next((parts[word] for word in words if word in parts), None)
    role = next((roles[word] for word in words if word in roles), None)
    return None if part is None or role is None else (part, role)


def load_arrays(kind: str, path: Path, name: str, reading: Reading = AS_DECLARED) -> ImageData:
    """Read the arrays at `path`: images and labels of a training part and, if there is one, a test part.

    A validation part joins the training part, or becomes the test part if there is none. Without both, the n // 6
    images whose indices have the smallest SHA-256 are the test set; or of records with groups, a sixth of the groups.

    Args:
        kind: npz, npy or pt.

    Raises:
        BenchError: arrays whose meaning is ambiguous; the message names the file and the array.
    """
    arrays, keys = {"npz": _read_npz, "npy": _read_npy, "pt": _read_pt}[kind](path, name)
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
    images, notes = _square_images(arrays, keys, reading, problem)
    names = None if keys.class_names is None else arrays[keys.class_names]
    label_keys = [label_key for _, label_key in keys.parts.values()]
    labels = as_labels([(key, arrays[key]) for key in label_keys], training, names, problem)
    notes += labels.notes
    if "val" in parts:
        notes.append(f"the validation part {'joins the training part' if training > 1 else 'is the test part'}")
    train_images, train_labels = (  # a single part is not copied
        tensors[0] if training == 1 else torch.cat(tensors[:training]) for tensors in (images, labels.numbers)
    )
    names_of_groups = _names_of_groups(arrays, keys, problem)
    groups = [torch.tensor(each, dtype=torch.int64) for each in number_groups(names_of_groups)]
    train_groups, test_groups = (torch.cat(groups[:training]), groups[-1]) if groups else (None, None)
    if training < len(parts):
        test_images, test_labels = images[-1], labels.numbers[-1]
    else:
        is_test = _choose_test(train_labels, labels.class_names, names_of_groups[0] if groups else None, problem)
        test_images, test_labels = train_images[is_test], train_labels[is_test]
        train_images, train_labels = train_images[~is_test], train_labels[~is_test]
        if train_groups is not None:
            train_groups, test_groups = train_groups[~is_test], train_groups[is_test]
        held_out = "groups is held out, by the hash of their names" if groups else _HELD_OUT
        notes.append(f"no test part: a sixth of the {held_out}")
    return ImageData(
        *(name, train_images, train_labels, test_images, test_labels, labels.class_names),
        train_groups=train_groups,
        test_groups=test_groups,
        conversions=tuple(notes),
    )


def _names_of_groups(arrays: Arrays, keys: Keys, problem: str) -> list[list[str]]:
    """Return the group of every record as a word, part by part; [] without groups.

    Raises:
        BadData: not one whole number or word for each image.
    """
    found = []
    for (image_key, _), key in zip(keys.parts.values(), keys.groups, strict=False):
        groups, count = arrays[key], len(arrays[image_key])
        if groups.shape != (count,) or groups.dtype.kind not in "iuU":
            raise BadData(
                f"{problem}: {key} has shape {groups.shape} and dtype {groups.dtype}; expected the group of each of "
                f"{count} images, a whole number or a word"
            )
        found.append([str(group) for group in groups.tolist()])
        if "" in found[-1]:
            raise BadData(f"{problem}: {key} has no group at position {found[-1].index('')}; give every record one")
    return found


def _square_images(arrays: Arrays, keys: Keys, reading: Reading, problem: str) -> tuple[list[Tensor], list[str]]:
    """Return the images of all parts as squares, with sentences on how they were read."""
    notes = [f"not read: {', '.join(keys.unread)}"] if keys.unread else []
    images: list[Tensor] = []
    first_key = next(iter(keys.parts.values()))[0]
    for image_key, label_key in keys.parts.values():
        found = as_images(arrays[image_key], f"{problem}: {image_key}", reading.pixel_range)
        images.append(found.images)
        notes += [sentence for sentence in found.notes if sentence not in notes]
        labels, shape, first_shape = arrays[label_key], tuple(found.images.shape[1:]), tuple(images[0].shape[1:])
        if labels.ndim and len(found.images) != len(labels):
            counts = f"{len(found.images)} {image_key} but {len(labels)} {label_key}"
            raise BadData(f"{problem}: {counts}; they must pair up")
        if shape != first_shape:
            shapes = f"{image_key} are {shape}, {first_key} {first_shape}"
            raise BadData(f"{problem}: {shapes} (channels, height, width); make them equal")
    if reading.pixel_range is None and max(int(part.max()) for part in images) <= _DARKEST:
        raise BadData(
            f"{problem}: every pixel would be black; declare with --pixel-range LOW,HIGH which values mean black and "
            "white, such as --pixel-range 0,1 or 0,255"
        )
    height, width = images[0].shape[2:]
    if height != width:
        images = [make_square(part, reading.fit) for part in images]
        side = images[0].shape[2]
        how = {"crop": "cut to their central", "pad": "padded with black bars to", "stretch": "stretched to"}
        notes.append(f"images of {height}x{width} pixels were {how[reading.fit]} {side}x{side} (--fit {reading.fit})")
    return images, notes


def _choose_test(labels: Tensor, class_names: tuple[str, ...], groups: list[str] | None, problem: str) -> Tensor:
    """Return (n,) bool: the images of the test set. Raises BenchError if too few are left for it or for training.

    Args:
        groups: name of the group of each record; None without groups.
    """
    if len(labels) < ONE_IN:
        raise BadData(f"{problem}: {len(labels)} images and no test part; add one, or {ONE_IN} images")
    is_test = hold_out(len(labels)) if groups is None else torch.tensor([is_held_out(group) for group in groups])
    if not bool(is_test.any()):
        count = len(set(groups or ()))
        raise BadData(f"{problem}: none of its {count} groups is held out for the test; add a test part")
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
        raise BadData(f"{problem}: {what} ({_reason(error, member)}); save numbers or str with numpy.savez") from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise BadData(f"{problem}: {path}: {key} is not a NumPy array; save it with numpy.savez")
    return arrays, keys


def _reason(error: Exception, member: str) -> str:
    text = " ".join(str(error).split())
    if "pickle" in text:
        return "an array of Python objects" if member else "not NumPy's format"
    return text[:300]


def _read_npy(path: Path, name: str) -> tuple[Arrays, Keys]:
    """Read the arrays of a folder of .npy files."""
    files = _files_by_stem(path, name, ".npy")
    keys = find_keys(files, f"data set '{name}': {path}")
    arrays: Arrays = {}
    for key in keys.read:
        try:
            arrays[key] = np.load(files[key], allow_pickle=False)
        except _BAD_ARCHIVE as error:
            raise BadData(
                f"data set '{name}': {files[key]} cannot be read ({_reason(error, key)}); save numbers or str"
            ) from error
        if not isinstance(arrays[key], np.ndarray):
            raise BadData(f"data set '{name}': {files[key]} is not a single array; save it with numpy.save")
    return arrays, keys


def _read_pt(path: Path, name: str) -> tuple[Arrays, Keys]:
    """Read the tensors of a torch file, or of a folder of such files.

    A file contains a tensor, a pair of images and labels, or a dictionary of tensors.
    """
    files = {path.stem: path} if os.path.isfile(path) else _files_by_stem(path, name, ".pt")
    found: dict[str, object] = {}
    for stem, file in files.items():
        problem = f"data set '{name}': {file}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                content = torch.load(file, map_location="cpu", weights_only=True)
        except _BAD_TENSORS as error:
            raise BadData(
                f"{problem} cannot be read as tensors ({type(error).__name__}); save only tensors, as in "
                "torch.save({'x_train': images, 'y_train': labels}, FILE)"
            ) from error
        if isinstance(content, Tensor):
            found[stem] = content
        elif isinstance(content, tuple | list):
            if len(content) != 2:
                raise BadData(f"{problem} has {len(content)} values; expected two, images and labels")
            prefix = "" if file == path else f"{stem}_"
            found |= {f"{prefix}images": content[0], f"{prefix}labels": content[1]}
        elif isinstance(content, Mapping) and all(isinstance(key, str) for key in content):
            found |= content
        else:
            raise BadData(f"{problem} has a {type(content).__name__}; expected tensors with names, {EXPECTED}")
    keys = find_keys(found, f"data set '{name}': {path}")
    arrays: Arrays = {}
    for key in keys.read:
        value = found[key]
        if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
            arrays[key] = np.array(value)
            continue
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise BadData(f"data set '{name}': {path}: {key} is not a dense tensor of real numbers; save it as one")
        arrays[key] = (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
    return arrays, keys


def _files_by_stem(path: Path, name: str, suffix: str) -> dict[str, Path]:
    """Return the files of a folder with a suffix, by name without it."""
    if not os.path.isdir(path):
        kinds = "file or folder" if suffix == ".pt" else "folder"
        raise BadData(f"data set '{name}': no {kinds} {path}; expected {suffix} files, {EXPECTED}")
    return {file.stem: file for file in sorted(path.glob(f"*{suffix}")) if not file.name.startswith(".")}
