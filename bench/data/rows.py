"""Select images: a view if the rows are consecutive, else a copy; large copies are files instead of memory.

The content of a mapped file is identified by the file's digest, without reading it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.request import Keep

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 2**28
"""Size in bytes above which rows are copied to a file that is mapped into memory."""
FILE, MANIFEST = "images.u8", "step.json"
"""File names of the array, and of the store's manifest next to it."""
_AT_ONCE = 2**24


def take(images: Tensor, rows: Tensor, keep: Keep | None, content: str) -> Tensor:
    """Return `images[rows]` without holding a large copy in memory.

    Args:
        images: (n, c, h, w) uint8.
        rows: (m,) int64.
        keep: store for a large copy; None = memory.
        content: identifies the images of all n rows, so that a stored copy is found again.

    Returns:
        (m, c, h, w) uint8: for large images a view if the rows are consecutive; else a copy.
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
    """Map the uint8 array in a file as a tensor: pages are read on use; writing to the tensor does not change the
    file."""
    import numpy as np
    import torch

    images = torch.from_numpy(np.memmap(file, np.uint8, "c", shape=shape))
    _FILES[images.untyped_storage().data_ptr()] = (file, images.untyped_storage().nbytes())
    return images


_FILES: dict[int, tuple[Path, int]] = {}
"""Memory address of each mapped array to its file and its size in bytes; the latest mapping wins."""


def mapped_content(images: Tensor) -> str | None:
    """Return the identity of a large tensor in a mapped file: the file's SHA-256 and the position in it.

    None for tensors in memory, and for small ones, whose bytes are read quickly.
    """
    storage = images.untyped_storage()
    file, size = _FILES.get(storage.data_ptr(), (None, 0))
    if file is None or size != storage.nbytes() or images.numel() < LARGE or not images.is_contiguous():
        return None
    return f"{_sha256(file, images)}:{images.storage_offset()}:{images.numel()}"


def _sha256(file: Path, images: Tensor) -> str:
    """Return the file's SHA-256 from the store's manifest; if there is none, hash the mapped bytes."""
    import torch

    manifest = file.with_name(MANIFEST)
    if manifest.exists():
        return str(json.loads(manifest.read_text(encoding="utf-8"))["files"][file.name])
    whole = torch.empty(0, dtype=torch.uint8).set_(images.untyped_storage())
    return hashlib.sha256(whole.numpy().data).hexdigest()
