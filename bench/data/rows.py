"""Some of many images: a view where they stand side by side, else a copy; a large one in a file instead of memory."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.request import Keep

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 2**28
"""Bytes from which on rows are copied to a file that is mapped into memory."""
FILE = "images.u8"
_AT_ONCE = 2**24


def take(images: Tensor, rows: Tensor, keep: Keep | None, content: str) -> Tensor:
    """`images[rows]`, without holding a large copy in memory.

    Args:
        images: (n, c, h, w) uint8.
        rows: (m,) int64.
        keep: where a large copy is kept; None = in memory after all.
        content: names the images of all n rows, for a copy to be found again.

    Returns:
        (m, c, h, w) uint8: of large images a view where the rows are consecutive; else a copy.
    """
    shape = (len(rows), *images.shape[1:])
    if math.prod(shape) < LARGE:
        return images[rows]
    if bool((rows.diff() == 1).all()):
        return images[int(rows[0]) : int(rows[-1]) + 1]
    if keep is None:
        return images[rows]
    spec = {"kind": "image-rows", "of": content, "rows": hashlib.sha256(rows.numpy().tobytes()).hexdigest()}

    def make(path: Path) -> None:
        with (path / FILE).open("wb") as stream:
            for part in rows.split(max(1, _AT_ONCE // images[0].numel())):
                stream.write(images[part].numpy().data)
            stream.flush()
            os.fsync(stream.fileno())

    return mapped(keep("image-rows", spec, make) / FILE, shape)


def mapped(file: Path, shape: tuple[int, ...]) -> Tensor:
    """The uint8 array in a file as a tensor: pages are read when they are used; writing to it changes no file."""
    import numpy as np
    import torch

    return torch.from_numpy(np.memmap(file, np.uint8, "c", shape=shape))
