"""The four files that MNIST and the sets after its pattern come in."""

from __future__ import annotations

from pathlib import Path

PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def idx_files(root: Path, folder: str) -> list[Path]:
    """Training images, training labels, test images, test labels, as torchvision lays them below `root`."""
    return [root / folder / "raw" / f"{part}-ubyte" for part in PARTS]
