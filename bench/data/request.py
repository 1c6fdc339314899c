"""How a data set is asked for: where it lies, which part of it, at which size, and where decoded images are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Keep = Callable[[str, dict[str, Any], Callable[[Path], None]], Path]
"""(kind, spec, make) to the folder of a step that `make(folder)` fills, once for all runs and processes."""


@dataclass(frozen=True)
class Request:
    """What a data set is asked for.

    Attributes:
        root: the folder below which data sets lie.
        download: fetch what is missing into `root`.
        argument: what stands behind the colon of `NAME:ARGUMENT`; "" where nothing does.
        size: side of the images in pixels; None = the data set's own.
        skip_broken: leave out image files that cannot be read, instead of refusing them.
        keep: where decoded images are kept; None = nowhere.
    """

    root: Path
    download: bool = False
    argument: str = ""
    size: int | None = None
    skip_broken: bool = False
    keep: Keep | None = None
