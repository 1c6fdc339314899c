"""Kuzushiji-MNIST, 28x28 grey, 60,000 + 10,000 images, 10 classes"""

from __future__ import annotations

from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts
from bench.data.idx import idx_files
from bench.data.images import ImageData


class Kmnist(Dataset):
    """Japanese characters of old books (Clanuwat et al., 2018), in torchvision's layout."""

    facts = DatasetFacts(
        shape=(1, 28, 28),
        class_names=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        is_public=True,
        counts=(60_000, 10_000),
        layout="KMNIST/raw/*-ubyte (torchvision)",
        licence="CC BY-SA 4.0",
        prior="pen",
        other="mnist",
        augments_psg=True,
    )

    def files(self, root: Path) -> list[Path]:
        """Return the four files of root/KMNIST/raw."""
        return idx_files(root, "KMNIST")

    def load(self, root: Path, download: bool) -> ImageData:
        """Read the set. Raises BenchError for missing or corrupt files."""
        from bench.data.torchvision_files import load_idx

        return load_idx("kmnist", "KMNIST", self, root, download)
