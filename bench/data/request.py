"""Requests for a data set: its folder, its argument, the shape of images, and the store for decoded images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Keep = Callable[[str, dict[str, Any], Callable[[Path], None]], Path]
"""Function of (kind, spec, make) that returns the folder of a step; `make(folder)` fills it once for all processes."""

Fit = Literal["crop", "pad", "stretch"]
"""How a non-square image becomes square."""


@dataclass(frozen=True)
class Reading:
    """A user's declarations about their own images that the files do not contain.

    Attributes:
        fit: crop = the central square; pad = black bars; stretch = changed aspect ratio.
        pixel_range: the values of black and white; None = those of the dtype or the file format.
    """

    fit: Fit = "crop"
    pixel_range: tuple[float, float] | None = None


AS_DECLARED = Reading()
"""The defaults: as dtypes and file formats say."""


@dataclass(frozen=True)
class Request:
    """A request to read a data set.

    Attributes:
        root: the folder of the data sets.
        download: fetch what is missing into `root`.
        argument: the text after the colon of `NAME:ARGUMENT`; "" without one.
        size: side of the images in pixels; None = the data set's own.
        channels: 1 = grey, 3 = RGB; None = the data set's own.
        skip_broken: omit unreadable image files instead of refusing them.
        keep: store for decoded images; None = do not keep them.
        reading: how a user's own images are read.
    """

    root: Path
    download: bool = False
    argument: str = ""
    size: int | None = None
    channels: int | None = None
    skip_broken: bool = False
    keep: Keep | None = None
    reading: Reading = AS_DECLARED
