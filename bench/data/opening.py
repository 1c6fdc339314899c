"""Open image files of any mode as upright 8-bit images, grey or RGB.

The format and mode of a file decide how it is read, never the values of other files, so that images are independent of
each other.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image, ImageOps

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


class StoredImage(Protocol):
    """An encoded image inside another file, such as a row of a table; errors show its `str`.

    Attributes:
        name: unique within the data set, as used in records.
        version: a text that changes whenever the bytes may change.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def read(self) -> bytes:
        """Return the encoded bytes. Raises ValueError if there are none."""


Source = Path | StoredImage
PixelRange = tuple[float, float]


class Broken(Exception):
    """The fault of a file, as words that follow its name."""


@dataclass(frozen=True)
class Opened:
    """An image of mode L or RGB, and the changes made to it."""

    image: Image.Image
    done: tuple[str, ...]


def name_of(source: Source, base: Path) -> str:
    """Return the name of a source of images below `base` in records."""
    return source.relative_to(base).as_posix() if isinstance(source, Path) else source.name


def is_grey(source: Source) -> bool:
    """Whether an image is stored as grey; True for broken files, whose fault is reported when they are decoded."""
    try:
        with _opened(source) as image:
            return image.mode in _GREY or image.mode.startswith("I;16")
    except BAD_IMAGE:
        return True


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
        with _opened(source) as opened:
            return _upright(opened, pixel_range)
    except BAD_IMAGE as error:
        text = " ".join(str(error).split())
        raise Broken(f"is not a readable image ({text[:300]}); repair or remove it") from error


@contextmanager
def _opened(source: Source) -> Iterator[Image.Image]:
    with Image.open(source if isinstance(source, Path) else io.BytesIO(source.read())) as image:
        yield image


def _upright(opened: Image.Image, pixel_range: PixelRange | None) -> Opened:
    done = [FRAMES] if getattr(opened, "n_frames", 1) > 1 else []
    opened.load()
    image: Image.Image = opened
    if _orientation(opened) in range(2, 9):
        image = ImageOps.exif_transpose(opened)
        done.append(TURNED)
    deep = "I;16" if image.mode.startswith("I;16") or (image.mode == "I" and opened.format == "PNG") else image.mode
    if deep in _DEEP:
        return Opened(_reduced(np.asarray(image, np.float64), pixel_range or _DEEP[deep]), (*done, DEEP))
    if image.mode in _ALPHA or "transparency" in image.info:
        grey = image.mode in _GREY
        image = image.convert("RGBA")
        if int(np.asarray(image.getchannel("A")).min()) < _WHITE:
            done.append(TRANSPARENT)
            image = Image.alpha_composite(Image.new("RGBA", image.size, (_WHITE,) * 4), image)
        return Opened(image.convert("RGB").convert("L" if grey else "RGB"), tuple(done))
    return Opened(image.convert("L" if image.mode in _GREY else "RGB"), tuple(done))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except BAD_IMAGE:  # the EXIF block is unreadable, but the image itself is intact
        return 1


def _reduced(values: np.ndarray, pixel_range: PixelRange) -> Image.Image:
    """Convert values of a range to 8 bits. Raises Broken if one is outside."""
    low, high = pixel_range
    if not (np.isfinite(values).all() and values.min() >= low and values.max() <= high):
        raise Broken(
            f"has values from {values.min():g} to {values.max():g}, expected {low:g} to {high:g}; say by --pixel-range "
            "LOW,HIGH which values mean black and white"
        )
    return Image.fromarray(np.rint((values - low) * (255 / (high - low))).astype(np.uint8))
