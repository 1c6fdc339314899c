"""Convert arrays of images to the form of the bench: (n, c, h, w) uint8.

The dtype and shape of an array, or the user, decide how its pixels are read, never their values: replacing one record
changes no other. Values outside of the range are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.data.opening import PixelRange
from bench.errors import BadData

Array = NDArray[np.generic]
_RANGES: dict[str, PixelRange] = {"bool": (0, 1), "uint8": (0, 255), "uint16": (0, 65535)}
_AT_ONCE = 2**24
"""Number of pixels that are converted at once."""


@dataclass(frozen=True)
class Images:
    """(n, c, h, w) uint8, with sentences on how they were read."""

    images: Tensor
    said: tuple[str, ...]


def as_images(array: Array, problem: str, pixel_range: PixelRange | None) -> Images:
    """Convert an array of images.

    Args:
        problem: beginning of error messages: the data set, its file and the array's name.
        pixel_range: the values that mean black and white; None = those of the dtype: bool 0 to 1, uint16 0 to 65535,
            other integers 0 to 255, floats 0 to 1.

    Raises:
        BenchError: a shape or a dtype whose meaning is ambiguous, or values outside of the range.
    """
    said = []
    place = _channel_axis(array.shape, problem)
    wanted = pixel_range or _range_of(array.dtype, problem)
    pixels = _in_8_bits(array, wanted, problem)
    if array.dtype != np.uint8 or pixel_range is not None:
        said.append(f"{array.dtype} pixels of {wanted[0]:g} to {wanted[1]:g} became 0 to 255")
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    if place is None:
        return Images(images[:, None], tuple(said))
    if place == 3:
        return Images(images.permute(0, 3, 1, 2).contiguous(), tuple(said))
    return Images(images, (*said, "channels come before rows and columns, (n, c, h, w)"))


def _channel_axis(shape: tuple[int, ...], problem: str) -> int | None:
    """Return the axis of the channels, 1 or 3; None for grey images without one."""
    expected = "expected (n, h, w), (n, h, w, c) or (n, c, h, w) with c = 1 or 3"
    if len(shape) not in (3, 4):
        raise BadData(f"{problem} have shape {shape}, {expected}; reshape them")
    if 0 in shape:
        raise BadData(f"{problem} have shape {shape}, which holds no pixels; expected at least one image")
    if len(shape) == 3:
        return None
    places = [axis for axis in (1, 3) if shape[axis] in (1, 3)]
    if len(places) == 2:
        raise BadData(f"{problem} have shape {shape}, whose channels may be first or last; {expected}; transpose them")
    if not places:
        found = next((f"{shape[axis]} channels" for axis in (3, 1) if shape[axis] < 8), f"{shape[3]} channels")
        raise BadData(f"{problem} have shape {shape}, {found}; {expected}; leave out the others")
    return places[0]


def _range_of(dtype: np.dtype[np.generic], problem: str) -> PixelRange:
    """Return the values of a dtype that mean black and white."""
    if dtype.kind == "f":
        return 0, 1
    if dtype.kind in "biu":
        return _RANGES.get(dtype.newbyteorder("=").name, (0, 255))
    raise BadData(f"{problem} have dtype {dtype}, expected integers, floats or bool")


def _in_8_bits(array: Array, wanted: PixelRange, problem: str) -> NDArray[np.uint8]:
    if array.dtype.kind not in "biuf":
        raise BadData(f"{problem} have dtype {array.dtype}, expected integers, floats or bool")
    if array.dtype == np.uint8 and wanted == (0, 255):
        return array  # type: ignore[return-value]
    low, high = wanted
    found = np.empty(array.shape, np.uint8)
    least, most, bad = np.inf, -np.inf, False
    rows = max(1, _AT_ONCE // array[0].size)
    for start in range(0, len(array), rows):
        some = array[start : start + rows].astype(np.float64)
        least, most, bad = min(least, some.min()), max(most, some.max()), bad or not np.isfinite(some).all()
        if not bad and low <= least and most <= high:
            found[start : start + rows] = np.rint((some - low) * (255 / (high - low)))
    if bad:
        raise BadData(f"{problem} hold NaN or infinite values; expected {low:g} to {high:g}")
    if least < low or most > high:
        raise BadData(
            f"{problem} are {array.dtype} from {least:g} to {most:g}, expected {low:g} to {high:g}; "
            f"{_declaration(float(least), float(most))}"
        )
    return found


def _declaration(least: float, most: float) -> str:
    """Suggest the option that says what such values mean."""
    usual = ((-1, 1), (0, 255), (0, 4095), (0, 65535))
    fits = next((pair for pair in usual if pair[0] <= least and most <= pair[1]), None)
    if fits is None:
        return "say with --pixel-range LOW,HIGH which values mean black and white, or undo their standardisation"
    return f"say which values mean black and white, such as --pixel-range {fits[0]:g},{fits[1]:g}"
