"""Marks that compare images: the hash of the pixels, and a coarse look that survives re-encoding."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

Bytes = NDArray[np.uint8]
EXACT = 16
"""Number of bytes of a SHA-256 that are kept of every image."""
LOOK = (9, 8)
"""Width and height to which an image is reduced for its look."""


@dataclass(frozen=True, eq=False)
class Marks:
    """Marks of n images: the first bytes of the SHA-256 of the pixels, (n, 16) uint8; and the looks, (n,) uint64."""

    exact: Bytes
    look: NDArray[np.uint64]

    def __getitem__(self, rows: Any) -> Marks:
        return Marks(self.exact[rows], self.look[rows])


def exact(image: Bytes) -> Bytes:
    """Return the (16,) uint8 hash of an image's pixels in their stored order, (c, h, w)."""
    digest = hashlib.sha256(np.ascontiguousarray(image).data).digest()
    return np.frombuffer(digest[:EXACT], np.uint8)


def look(image: Image.Image) -> np.uint64:
    """Return 64 bits: whether each of 8x9 grey cells is brighter than its left neighbour (a difference hash)."""
    small = np.asarray(image.convert("L").resize(LOOK), dtype=np.int16)
    return np.packbits(small[:, 1:] > small[:, :-1]).view(">u8").astype(np.uint64)[0]


def keys(found: Bytes) -> list[bytes]:
    """Return the rows of `Marks.exact` as keys of a set."""
    return [row.tobytes() for row in found]


def of_images(images: Tensor) -> list[bytes]:
    """Return the same keys for (n, c, h, w) uint8 images."""
    return [exact(image).tobytes() for image in images.numpy()]
