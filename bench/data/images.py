"""The common form of all data sets: uint8 images and int64 labels, train and test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from bench.data.rows import mapped_content

if TYPE_CHECKING:
    from torch import Tensor

    from bench.data.marks import Marks

_AT_ONCE = 2**24
"""Number of bytes that are hashed at once."""
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
        train_people: (n,) int64, the number of the person on a training image; None if unknown.
        test_people: (m,) int64, the same for the test images.
        outsiders: (k, c, h, w) uint8 images of people who are in no class; None where there are none.
        train_marks, test_marks, outsider_marks: hashes and looks of the images, computed when they were decoded.
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
    train_people: Tensor | None = None
    test_people: Tensor | None = None
    outsiders: Tensor | None = None
    train_marks: Marks | None = None
    test_marks: Marks | None = None
    outsider_marks: Marks | None = None
    left_out: tuple[str, ...] = ()
    conversions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part, images, labels in self._parts():
            if (
                images.ndim != 4
                or str(images.dtype) != "torch.uint8"
                or images.shape[1:] != self.train_images.shape[1:]
            ):
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
        """First 16 hex digits of the SHA-256 over shapes, pixels and labels of train, then test; then people, if known.

        For a large part in a mapped file, `rows.mapped_content` replaces the pixels. Outsiders are not included: specs
        that use them name them separately.
        """
        digest = hashlib.sha256()
        for part, images, labels in self._parts():
            digest.update(f"{part}:{tuple(images.shape)}:".encode())
            _add_pixels(digest, images)
            digest.update(labels.numpy().astype("<i8").tobytes())
        for people in (self.train_people, self.test_people):
            if people is not None:
                digest.update(b"people:" + people.numpy().astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def _parts(self) -> tuple[tuple[str, Tensor, Tensor], tuple[str, Tensor, Tensor]]:
        return ("train", self.train_images, self.train_labels), ("test", self.test_images, self.test_labels)


def at_once(images: Tensor, most: int) -> int:
    """Return how many of (n, c, h, w) images are in one batch: `most`, fewer if they are larger than 32x32."""
    return max(1, min(most, _PIXELS_AT_ONCE // (images.shape[-2] * images.shape[-1])))


def images_fingerprint(images: Tensor) -> str:
    """Return the first 16 hex digits of the SHA-256 over the pixels of (n, c, h, w) uint8 images."""
    digest = hashlib.sha256()
    _add_pixels(digest, images)
    return digest.hexdigest()[:16]


def _add_pixels(digest: hashlib._Hash, images: Tensor) -> None:
    known = mapped_content(images)
    if known is not None:
        digest.update(known.encode())
        return
    for some in images.split(max(1, _AT_ONCE // max(1, images[:1].numel()))):
        digest.update(some.contiguous().numpy().data)


def to_float(images_uint8: Tensor) -> Tensor:
    """Convert uint8 images of any shape to float32 in [0, 1], same shape and device.

    Raises:
        TypeError: any other dtype, since dividing by 255 twice would go unnoticed.
    """
    if str(images_uint8.dtype) != "torch.uint8":
        raise TypeError(f"to_float expects uint8 images, not {images_uint8.dtype}")
    return images_uint8.float().div_(255)


def corrupted(images: Tensor, how: str) -> Tensor:
    """Corrupt auxiliary images: the attacker's knowledge of its victims (GMI, Zhang et al. 2020).

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
        seen = torch.ones(h, w, device=images.device)
        seen[h // 4 : h - h // 4, w // 4 : w - w // 4] = 0
        return images * seen
    raise ValueError(f"how is '{how}'; expected blur or mask")
