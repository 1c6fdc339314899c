"""The common form of all data sets: uint8 images and int64 labels, train and test.

Large images are in files that are mapped into memory. The content of a mapped file is identified by the file's digest,
without reading it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.dataset import Keep

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bench.data.image_files import ImageHashes

LARGE = 2**28
"""Size in bytes above which selected images are copied to a file that is mapped into memory."""
FILE, MANIFEST = "images.u8", "step.json"
"""File names of a mapped array, and of the store's manifest next to it."""
ONE_IN = 6
"""One in this many records is held out if a data set has no test part."""
QUERY_BATCH = 128
"""Images of 32x32 pixels per batch where no gradient is computed, on a CPU. Activations of larger batches do not fit
its cache: docs/performance.md has the processor time per image."""
QUERY_BATCH_ON_ACCELERATOR = 512
"""The same on an accelerator, which larger batches use better."""
_BYTES_AT_ONCE = 2**24
_PIXELS_AT_ONCE = 512 * 32 * 32


@dataclass(frozen=True, eq=False)
class ImageData:
    """A labelled image data set on the CPU, in memory or mapped into it from a file.

    Attributes:
        name: file-name-safe label, [a-z0-9_-]; for CIFAR-10 read from JPEG files it is "cifar10-jpeg".
        train_images: (n, c, h, w) uint8, c = 1 or 3, h = w.
        train_labels: (n,) int64 in [0, classes).
        test_images: (m, c, h, w) uint8.
        test_labels: (m,) int64 in [0, classes).
        class_names: one per class, in the order of the labels.
        train_groups: (n,) int64, the number of the group of a training image: the person on it, its patient, its
            writer; None if unknown.
        test_groups: (m,) int64, the same for the test images.
        outsiders: (k, c, h, w) uint8 images of people who are in no class; None where there are none.
        train_hashes, test_hashes, outsider_hashes: hashes of the images, computed when they were decoded.
        left_out: names of unreadable files, and of class folders without images, that were left out.
        conversions: sentences on how images and labels were converted if the files have another form, and on decisions
            that were made.

    Raises:
        RuntimeError: on construction, if the parts are inconsistent (a reader's defect, not the user's).
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]
    train_groups: Tensor | None = None
    test_groups: Tensor | None = None
    outsiders: Tensor | None = None
    train_hashes: ImageHashes | None = None
    test_hashes: ImageHashes | None = None
    outsider_hashes: ImageHashes | None = None
    left_out: tuple[str, ...] = ()
    conversions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part, images, labels in self._parts():
            is_uint8, shape = str(images.dtype) == "torch.uint8", self.train_images.shape[1:]
            if images.ndim != 4 or not is_uint8 or images.shape[1:] != shape:
                raise RuntimeError(f"{self.name}: {part} images are {images.dtype} {tuple(images.shape)}")
            if labels.shape != images.shape[:1] or str(labels.dtype) != "torch.int64" or not len(labels):
                raise RuntimeError(f"{self.name}: {part} labels are {labels.dtype} {tuple(labels.shape)}")
            if int(labels.min()) < 0 or int(labels.max()) >= self.classes:
                raise RuntimeError(f"{self.name}: {part} labels leave the range 0 to {self.classes - 1}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (c, h, w) of one image."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @cached_property
    def fingerprint(self) -> str:
        """First 16 hex digits of the SHA-256 over shapes, pixels and labels of train, then test; then groups, if known.

        For a large part in a mapped file, `mapped_identity` replaces the pixels. Outsiders are not included: specs that
        use them name them separately.
        """
        digest = hashlib.sha256()
        for part, images, labels in self._parts():
            digest.update(f"{part}:{tuple(images.shape)}:".encode())
            _add_pixels(digest, images)
            digest.update(labels.numpy().astype("<i8").tobytes())
        for groups in (self.train_groups, self.test_groups):
            if groups is not None:
                digest.update(b"people:" + groups.numpy().astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def _parts(self) -> tuple[tuple[str, Tensor, Tensor], tuple[str, Tensor, Tensor]]:
        return ("train", self.train_images, self.train_labels), ("test", self.test_images, self.test_labels)


def images_fingerprint(images: Tensor) -> str:
    """Return the first 16 hex digits of the SHA-256 over the pixels of (n, c, h, w) uint8 images."""
    digest = hashlib.sha256()
    _add_pixels(digest, images)
    return digest.hexdigest()[:16]


def _add_pixels(digest: hashlib._Hash, images: Tensor) -> None:
    identity = mapped_identity(images)
    if identity is not None:
        digest.update(identity.encode())
        return
    for batch in images.split(max(1, _BYTES_AT_ONCE // max(1, images[:1].numel()))):
        digest.update(batch.contiguous().numpy().data)


def map_images(file: Path, shape: tuple[int, ...]) -> Tensor:
    """Map a file with a uint8 array of this shape into memory, as a tensor.

    Pages are read on use; writing to the tensor does not change the file.
    """
    import numpy as np
    import torch

    images = torch.from_numpy(np.memmap(file, np.uint8, "c", shape=shape))
    _MAPPED[images.untyped_storage().data_ptr()] = (file, images.untyped_storage().nbytes())
    return images


_MAPPED: dict[int, tuple[Path, int]] = {}
"""Memory address of each mapped array to its file and its size in bytes; the latest mapping wins."""


def mapped_identity(images: Tensor) -> str | None:
    """Return the identity of a large tensor in a mapped file: the file's SHA-256 and the position in it.

    None for tensors in memory, and for small ones, whose bytes are read quickly. The SHA-256 is that of the store's
    manifest; without one, the mapped bytes are hashed.
    """
    import torch

    storage = images.untyped_storage()
    file, size = _MAPPED.get(storage.data_ptr(), (None, 0))
    if file is None or size != storage.nbytes() or images.numel() < LARGE or not images.is_contiguous():
        return None
    manifest = file.with_name(MANIFEST)
    if manifest.exists():
        sha256 = str(json.loads(manifest.read_text(encoding="utf-8"))["files"][file.name])
    else:
        sha256 = hashlib.sha256(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data).hexdigest()
    return f"{sha256}:{images.storage_offset()}:{images.numel()}"


def select_images(images: Tensor, rows: Tensor, keep: Keep | None, content: str) -> Tensor:
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

    def make(path: Path) -> None:
        with (path / FILE).open("wb") as stream:
            for part in rows.split(max(1, _BYTES_AT_ONCE // images[0].numel())):
                stream.write(images[part].numpy().data)
            stream.flush()
            os.fsync(stream.fileno())

    digest = hashlib.sha256(rows.numpy().tobytes()).hexdigest()
    spec: dict[str, object] = {"kind": "image-rows", "of": content, "rows": digest}
    return map_images(keep("image-rows", spec, make) / FILE, shape)


def select_records(data: ImageData, train: Tensor, test: Tensor, keep: Keep | None) -> ImageData:
    """Select training and test records by the masks `train`, (n,) bool, and `test`, (m,) bool.

    Large images that are consecutive are not copied.
    """
    train_rows, test_rows = train.nonzero().flatten(), test.nonzero().flatten()
    return replace(
        data,
        train_images=select_images(data.train_images, train_rows, keep, f"{data.fingerprint}-train"),
        train_labels=data.train_labels[train],
        test_images=select_images(data.test_images, test_rows, keep, f"{data.fingerprint}-test"),
        test_labels=data.test_labels[test],
        train_groups=None if data.train_groups is None else data.train_groups[train],
        test_groups=None if data.test_groups is None else data.test_groups[test],
        train_hashes=None if data.train_hashes is None else data.train_hashes[train_rows.numpy()],
        test_hashes=None if data.test_hashes is None else data.test_hashes[test_rows.numpy()],
    )


def hold_out(count: int) -> Tensor:
    """Return (n,) bool: the sixth of n records whose indices have the smallest SHA-256.

    The choice depends only on the indices, so that no record decides whether another one is private.
    """
    import torch

    order = sorted(range(count), key=lambda number: hashlib.sha256(f"test:{number}".encode()).digest())
    is_test = torch.zeros(count, dtype=torch.bool)
    is_test[order[: count // ONE_IN]] = True
    return is_test


def query_batch(device: torch.device) -> int:
    """Return the number of 32x32 images per batch where no gradient is computed."""
    return QUERY_BATCH if device.type == "cpu" else QUERY_BATCH_ON_ACCELERATOR


def batch_size_for(images: Tensor, most: int) -> int:
    """Return the batch size for (n, c, h, w) images: `most`, but at most as many pixels as 512 images of 32x32 have."""
    return max(1, min(most, _PIXELS_AT_ONCE // (images.shape[-2] * images.shape[-1])))


def to_float(images_uint8: Tensor) -> Tensor:
    """Convert uint8 images of any shape to float32 in [0, 1], same shape and device.

    Raises:
        TypeError: any other dtype, since dividing by 255 twice would go unnoticed.
    """
    if str(images_uint8.dtype) != "torch.uint8":
        raise TypeError(f"to_float expects uint8 images, not {images_uint8.dtype}")
    return images_uint8.float().div_(255)


def corrupted(images: Tensor, how: str) -> Tensor:
    """Blur or mask images of victims: the attacker's knowledge of them (GMI, Zhang et al. 2020); same shape.

    Args:
        images: (n, c, h, w) in [0, 1].
        how: "blur", each pixel becomes the mean over a square of a quarter of the image's side; or "mask", the middle
            half of rows and columns becomes black.

    Raises:
        ValueError: another `how`.
    """
    import torch
    import torch.nn.functional as F

    h, w = images.shape[-2:]
    if how == "blur":
        side = 2 * (max(h, w) // 8) + 1
        return F.avg_pool2d(F.pad(images, (side // 2,) * 4, mode="replicate"), side, stride=1)
    if how == "mask":
        mask = torch.ones(h, w, device=images.device)
        mask[h // 4 : h - h // 4, w // 4 : w - w // 4] = 0
        return images * mask
    raise ValueError(f"how is '{how}'; expected blur or mask")
