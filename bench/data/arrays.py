"""Convert arrays of images and labels to the form of `ImageData`, and change the shape of images.

The dtype and shape of an array, or the user, decide how its pixels are read, never their values: replacing one record
changes no other. Values outside of the range are refused. The list of classes is public: it is the array `class_names`,
the columns of one-hot rows, or the set of all training labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bench.data.dataset import Fit, PixelRange
from bench.data.images import ImageData
from bench.errors import BadData

Array = NDArray[np.generic]
Kind = Literal["whole numbers", "words", "booleans", "one-hot rows"]
_RANGES: dict[str, PixelRange] = {"bool": (0, 1), "uint8": (0, 255), "uint16": (0, 65535)}
_USUAL_RANGES = ((-1, 1), (0, 255), (0, 4095), (0, 65535))
_PIXELS_AT_ONCE = 2**24
_RESIZED_AT_ONCE = 2**22
_LUMA = (0.299, 0.587, 0.114)
"""Luma weights of ITU-R BT.601."""
_SHOWN = 20
"""Number of classes that a message names."""


@dataclass(frozen=True)
class Images:
    """Converted images, (n, c, h, w) uint8, and `notes`, sentences on how they were read."""

    images: Tensor
    notes: tuple[str, ...]


def as_images(array: Array, problem: str, pixel_range: PixelRange | None) -> Images:
    """Convert an array of images.

    Args:
        problem: beginning of error messages: the data set, its file and the array's name.
        pixel_range: the values that mean black and white; None = those of the dtype: bool 0 to 1, uint16 0 to 65535,
            other integers 0 to 255, floats 0 to 1.

    Raises:
        BenchError: a shape or a dtype whose meaning is ambiguous, or values outside of the range.
    """
    axis, dtype = channel_axis(array.shape, problem), array.dtype
    if dtype.kind not in "biuf":
        raise BadData(f"{problem} have dtype {dtype}, expected integers, floats or bool")
    usual = (0, 1) if dtype.kind == "f" else _RANGES.get(dtype.newbyteorder("=").name, (0, 255))
    low, high = pixel_range or usual
    notes = []
    if dtype != np.uint8 or pixel_range is not None:
        notes.append(f"{dtype} pixels of {low:g} to {high:g} became 0 to 255")
    images = torch.from_numpy(np.ascontiguousarray(to_8_bits(array, (low, high), problem)))
    if axis is None:
        return Images(images[:, None], tuple(notes))
    if axis == 3:
        return Images(images.permute(0, 3, 1, 2).contiguous(), tuple(notes))
    return Images(images, (*notes, "channels come before rows and columns, (n, c, h, w)"))


def channel_axis(shape: tuple[int, ...], problem: str) -> int | None:
    """Return the axis of the channels, 1 or 3; None for grey images without one. Raises BadData if it is ambiguous."""
    expected = "expected (n, h, w), (n, h, w, c) or (n, c, h, w) with c = 1 or 3"
    if len(shape) not in (3, 4):
        raise BadData(f"{problem} have shape {shape}, {expected}; reshape them")
    if 0 in shape:
        raise BadData(f"{problem} have shape {shape}, which has no pixels; expected at least one image")
    if len(shape) == 3:
        return None
    axes = [axis for axis in (1, 3) if shape[axis] in (1, 3)]
    if len(axes) == 2:
        raise BadData(f"{problem} have shape {shape}, whose channels may be first or last; {expected}; transpose them")
    if not axes:
        channels = next((shape[axis] for axis in (3, 1) if shape[axis] < 8), shape[3])
        raise BadData(f"{problem} have shape {shape}, {channels} channels; {expected}; leave out the others")
    return axes[0]


def to_8_bits(array: Array, pixel_range: PixelRange, problem: str) -> NDArray[np.uint8]:
    """Map the values of `pixel_range` to 0 to 255, rounded; same shape. Raises BadData for values outside of it."""
    if array.dtype == np.uint8 and pixel_range == (0, 255):
        return array  # type: ignore[return-value]
    low, high = pixel_range
    converted = np.empty(array.shape, np.uint8)
    least, most, is_finite = np.inf, -np.inf, True
    rows = max(1, _PIXELS_AT_ONCE // array[0].size)
    for start in range(0, len(array), rows):
        values = array[start : start + rows].astype(np.float64)
        least, most = min(least, values.min()), max(most, values.max())
        is_finite = is_finite and bool(np.isfinite(values).all())
        if is_finite and low <= least and most <= high:
            converted[start : start + rows] = np.rint((values - low) * (255 / (high - low)))
    if not is_finite:
        raise BadData(f"{problem} hold NaN or infinite values; expected {low:g} to {high:g}")
    if least < low or most > high:
        fit = next((pair for pair in _USUAL_RANGES if pair[0] <= least and most <= pair[1]), None)
        advice = (
            "declare with --pixel-range LOW,HIGH which values mean black and white, or undo their standardisation"
            if fit is None
            else f"declare which values mean black and white, such as --pixel-range {fit[0]:g},{fit[1]:g}"
        )
        found = f"{array.dtype} from {least:g} to {most:g}"
        raise BadData(f"{problem} are {found}, expected {low:g} to {high:g}; {advice}")
    return converted


@dataclass(frozen=True)
class Labels:
    """Converted labels: (n,) int64 class numbers of each array, the classes' names, and sentences on the reading."""

    numbers: list[Tensor]
    class_names: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Column:
    """The labels of one part: (n,) integers or words; for one-hot rows, the number of columns."""

    kind: Kind
    values: Array
    width: int = 0
    note: str = ""

    def __str__(self) -> str:
        return f"{self.kind} of {self.width} classes" if self.width else self.kind


def as_labels(arrays: Sequence[tuple[str, Array]], training: int, names: Array | None, problem: str) -> Labels:
    """Convert the labels of all parts to class numbers from 0, with one list of classes.

    Args:
        arrays: each array with its name.
        training: number of training arrays, which come first.
        names: the array `class_names`, if any.
        problem: beginning of error messages: the data set and its file.

    Raises:
        BenchError: labels whose meaning is ambiguous, fewer than two classes, or classes without training images.
    """
    columns = [_read_column(array, f"{problem}: {key}") for key, array in arrays]
    (first_key, _), first = arrays[0], columns[0]
    for (key, _), column in zip(arrays, columns, strict=True):
        if (column.kind, column.width) != (first.kind, first.width):
            raise BadData(f"{problem}: {first_key} are {first}, {key} {column}; write them in one way")
    where = f"{problem}: {first_key}"
    train = replace(first, values=np.concatenate([column.values for column in columns[:training]]))
    known, class_names = _find_classes(train, names, where)
    present = set(_class_numbers(train.values, known, where, "class_names").tolist())
    if len(present) < 2:
        raise BadData(f"{where} hold {len(present)} class; expected 2 or more")
    absent = [name for number, name in enumerate(class_names) if number not in present]
    if absent:
        raise BadData(f"{where} have no class {absent[0]}; remove it from the list of classes, or add images of it")
    numbers = [
        _class_numbers(column.values, known, f"{problem}: {key}", first_key)
        for (key, _), column in zip(arrays, columns, strict=True)
    ]
    notes = [first.note] if first.note else []
    if class_names != tuple(str(number) for number in range(len(class_names))):
        shown = ", ".join(f"{number} = {name}" for number, name in enumerate(class_names[:_SHOWN]))
        more = f" and {len(class_names) - _SHOWN} more" if len(class_names) > _SHOWN else ""
        notes.append(f"classes by number: {shown}{more}")
    return Labels(numbers, class_names, tuple(notes))


def _read_column(array: Array, problem: str) -> _Column:
    """Return one label per image. Raises BenchError."""
    if array.ndim == 2 and array.shape[1] > 1:
        is_binary = array.dtype.kind in "biuf" and bool(((array == 0) | (array == 1)).all())
        if not is_binary or not bool((array.sum(1) == 1).all()):
            raise BadData(
                f"{problem} have shape {array.shape}, several per image and not one-hot (a single 1, else 0); expected "
                "one class per image"
            )
        width = array.shape[1]
        note = f"labels are one-hot rows of {width} classes"
        return _Column("one-hot rows", array.argmax(1).astype(np.int64), width, note)
    if array.ndim not in (1, 2):
        raise BadData(f"{problem} have shape {array.shape}, expected (n,) or (n, 1), or one-hot rows (n, classes)")
    flat = array.reshape(-1)
    if flat.dtype.kind == "b":
        return _Column("booleans", flat.astype(np.int64))
    if flat.dtype.kind in "US":
        return _Column("words", _decode_words(flat, problem))
    if flat.dtype.kind == "f":
        if not (np.isfinite(flat).all() and (flat == np.rint(flat)).all() and (abs(flat) < 2**53).all()):
            raise BadData(f"{problem} are {flat.dtype} that are not whole numbers; expected one class per image")
        return _Column("whole numbers", flat.astype(np.int64), note=f"{flat.dtype} labels are whole numbers")
    if flat.dtype.kind not in "iu":
        raise BadData(f"{problem} have dtype {array.dtype}, expected whole numbers, words, booleans or one-hot rows")
    if flat.size and int(flat.max()) > np.iinfo(np.int64).max:
        raise BadData(f"{problem} run to {flat.max()}, expected whole numbers below 2^63")
    return _Column("whole numbers", flat.astype(np.int64))


def _decode_words(flat: Array, problem: str) -> Array:
    try:
        words = np.char.decode(flat.astype(np.bytes_), "utf-8") if flat.dtype.kind == "S" else flat
    except UnicodeDecodeError as error:
        raise BadData(f"{problem} are bytes that are not UTF-8; save them as str") from error
    if (words == "").any():
        raise BadData(f"{problem} hold {int((words == '').sum())} empty words; name a class for every image")
    return words


def _find_classes(train: _Column, names: Array | None, problem: str) -> tuple[list[int] | list[str], tuple[str, ...]]:
    """Return the values of the training labels in class order, and the class names; from `class_names` if given."""
    if names is not None:
        if names.ndim != 1 or names.dtype.kind not in "US" or len(np.unique(names)) != len(names):
            raise BadData(
                f"{problem}: class_names have shape {names.shape} and dtype {names.dtype}; expected different words, "
                "one a class"
            )
        words = tuple(_decode_words(names, f"{problem}: class_names").tolist())
        if train.width not in (0, len(words)):
            raise BadData(f"{problem} are one-hot rows of {train.width} classes and class_names are {len(words)}")
        return (list(words) if train.kind == "words" else list(range(len(words)))), words
    if train.kind == "one-hot rows":
        return list(range(train.width)), tuple(str(number) for number in range(train.width))
    if train.kind == "booleans":
        return [0, 1], ("False", "True")
    values = np.unique(train.values).tolist()
    if train.kind == "whole numbers" and values and values[0] < 0 and values != [-1, 1]:
        raise BadData(
            f"{problem} run from {values[0]} to {values[-1]}: a negative number may mean a missing label; "
            "expected numbers from 0, or the two classes -1 and 1"
        )
    return values, tuple(str(value) for value in values)


def _class_numbers(values: Array, known: list[int] | list[str], problem: str, source: str) -> Tensor:
    numbers = {value: number for number, value in enumerate(known)}
    found = [numbers.get(value, -1) for value in values.tolist()]
    if -1 in found:
        raise BadData(f"{problem} hold class {values[found.index(-1)]}, which is not in {source}; remove it")
    return torch.tensor(found, dtype=torch.int64)


def reshape_data(data: ImageData, channels: int, side: int) -> ImageData:
    """Return the data set with images of side x side pixels and 1 or 3 channels, in memory."""
    shape = (channels, side, side)
    return replace(
        data,
        train_images=reshape_images(data.train_images, shape),
        test_images=reshape_images(data.test_images, shape),
        outsiders=None if data.outsiders is None else reshape_images(data.outsiders, shape),
        train_hashes=None,
        test_hashes=None,
        outsider_hashes=None,
    )


def make_square(images: Tensor, fit: Fit) -> Tensor:
    """Make (n, c, h, w) uint8 images square: "crop" to the central square, "pad" by black bars, or "stretch".

    Padded and stretched images have the length of the longer side.
    """
    height, width = images.shape[2:]
    if height == width:
        return images
    if fit == "stretch":
        return reshape_images(images, (images.shape[1], max(height, width), max(height, width)))
    if fit == "pad":
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
        return F.pad(images, (left, side - width - left, top, side - height - top))
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return images[:, :, top : top + side, left : left + side].contiguous()


def reshape_images(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Convert (n, c, h, w) uint8 images to the shape (c, h, w); images that have it are returned unchanged.

    Grey is repeated in three channels, colours become grey by their luma (ITU-R BT.601); the size changes by
    antialiased bilinear interpolation.
    """
    if tuple(images.shape[1:]) == shape:
        return images
    channels, height, width = shape
    whole = torch.empty(len(images), *shape, dtype=torch.uint8)
    rows = max(1, _RESIZED_AT_ONCE // max(images[:1].numel(), whole[:1].numel()))
    for batch, target in zip(images.split(rows), whole.split(rows), strict=True):
        pixels = batch.float()
        if batch.shape[1] == 3 and channels == 1:
            pixels = (pixels * torch.tensor(_LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
        elif batch.shape[1] == 1:
            pixels = pixels.expand(-1, channels, -1, -1)
        if pixels.shape[2:] != (height, width):
            pixels = F.interpolate(pixels, size=(height, width), mode="bilinear", align_corners=False, antialias=True)
        target.copy_(pixels.round().clamp(0, 255).to(torch.uint8))
    return whole
