"""Requests for a data set: its folder, its argument, the shape of images, and where decoded images are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Keep = Callable[[str, dict[str, Any], Callable[[Path], None]], Path]
"""(kind, spec, make) to the folder of a step that `make(folder)` fills, once for all runs and processes."""

Fit = Literal["crop", "pad", "stretch"]
"""How an image that is not square becomes one."""


@dataclass(frozen=True)
class Reading:
    """A user's declarations about their own images, where the files do not decide how they are read.

    Attributes:
        fit: crop = the central square; pad = black bars; stretch = another ratio of the sides.
        pixel_range: the values that mean black and white; None = those of the dtype or the file format.
    """

    fit: Fit = "crop"
    pixel_range: tuple[float, float] | None = None


AS_DECLARED = Reading()
"""As dtypes and file formats say."""


@dataclass(frozen=True)
class Request:
    """What a data set is asked for.

    Attributes:
        root: the folder below which data sets lie.
        download: fetch what is missing into `root`.
        argument: what stands behind the colon of `NAME:ARGUMENT`; "" where nothing does.
        size: side of the images in pixels; None = the data set's own.
        channels: 1 = grey, 3 = RGB; None = the data set's own.
        skip_broken: leave out image files that cannot be read, instead of refusing them.
        keep: where decoded images are kept; None = nowhere.
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
