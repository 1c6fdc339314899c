"""The four files of MNIST and of data sets in the same format."""

from __future__ import annotations

from pathlib import Path

PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def idx_files(root: Path, folder: str) -> list[Path]:
    """Return training images, training labels, test images, test labels, in torchvision's layout below `root`."""
    return [root / folder / "raw" / f"{part}-ubyte" for part in PARTS]
