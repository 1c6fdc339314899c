"""Open image files of any mode as upright 8-bit images, grey or RGB.

The format and mode of a file decide how it is read, never the values of other files, so that images are independent of
each other.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from bench.data.dataset import PixelRange, Source

BAD_IMAGE = (
    *(OSError, EOFError, ValueError, SyntaxError, struct.error, zlib.error, Image.DecompressionBombError),
    *(KeyError, IndexError, TypeError, OverflowError),  # Pillow raises these for invalid headers
)
TURNED, TRANSPARENT, DEEP, FRAMES = "turned", "transparent", "deep", "frames"
"""Changes of an image: rotated by EXIF; put on white; reduced to 8 bits; frames after the first left out."""

_DEEP = {"I;16": (0.0, 65535.0), "F": (0.0, 1.0), "I": (0.0, 255.0)}
"""Modes of more than 8 bits, to the values of black and white. TIFF uses I for 32-bit integers."""
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
_GREY = ("L", "1", "LA", "La", "I", "F")
_ORIENTATION = 0x0112
_WHITE = 255


class Broken(Exception):
    """A file that cannot be read as an image; the message is its fault, in words that follow the file's name."""


@dataclass(frozen=True)
class Opened:
    """An image of mode L or RGB, the changes made to it, and whether its file stores it as grey."""

    image: Image.Image
    done: tuple[str, ...]
    is_grey: bool


def name_of(source: Source, base: Path) -> str:
    """Return the name of a source of images below `base` in records."""
    return source.relative_to(base).as_posix() if isinstance(source, Path) else source.name


def is_grey(source: Source) -> bool:
    """Return whether an image is stored as grey; True for broken files, whose fault is reported on decoding."""
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source.read())) as image:
            return _is_grey_mode(image.mode)
    except BAD_IMAGE:
        return True


def _is_grey_mode(mode: str) -> bool:
    return mode in _GREY or mode.startswith("I;16")


def open_image(source: Source, pixel_range: PixelRange | None) -> Opened:
    """Open the image of a source.

    Args:
        pixel_range: the values that mean black and white in files of more than 8 bits; None = those of the format.

    Raises:
        Broken: the file is not an image, or has values outside of the range.
    """
    if isinstance(source, Path) and not os.path.isfile(source):
        raise Broken("is not a regular file; remove it")
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source.read())) as opened:
            return _convert(opened, pixel_range)
    except BAD_IMAGE as error:
        text = " ".join(str(error).split())
        raise Broken(f"is not a readable image ({text[:300]}); repair or remove it") from error


def _convert(opened: Image.Image, pixel_range: PixelRange | None) -> Opened:
    """Rotate an image as its EXIF block says, and convert it to mode L or RGB."""
    done, stored_grey = [FRAMES] if getattr(opened, "n_frames", 1) > 1 else [], _is_grey_mode(opened.mode)
    opened.load()
    image: Image.Image = opened
    try:
        orientation = int(opened.getexif().get(_ORIENTATION, 1))
    except BAD_IMAGE:  # the EXIF block is unreadable, but the image itself is intact
        orientation = 1
    if orientation in range(2, 9):
        image = ImageOps.exif_transpose(opened)
        done.append(TURNED)
    deep = "I;16" if image.mode.startswith("I;16") or (image.mode == "I" and opened.format == "PNG") else image.mode
    if deep in _DEEP:
        values, (low, high) = np.asarray(image, np.float64), pixel_range or _DEEP[deep]
        if not (np.isfinite(values).all() and values.min() >= low and values.max() <= high):
            raise Broken(
                f"has values from {values.min():g} to {values.max():g}, expected {low:g} to {high:g}; declare with "
                "--pixel-range LOW,HIGH which values mean black and white"
            )
        grey = np.rint((values - low) * (255 / (high - low))).astype(np.uint8)
        return Opened(Image.fromarray(grey), (*done, DEEP), stored_grey)
    target = "L" if image.mode in _GREY else "RGB"
    if image.mode in _ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        if int(np.asarray(image.getchannel("A")).min()) < _WHITE:
            done.append(TRANSPARENT)
            image = Image.alpha_composite(Image.new("RGBA", image.size, (_WHITE,) * 4), image)
        image = image.convert("RGB")
    return Opened(image.convert(target), tuple(done), stored_grey)
