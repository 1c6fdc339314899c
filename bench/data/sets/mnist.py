"""MNIST, 28x28 grey, 60,000 + 10,000 images, 10 classes"""

from __future__ import annotations

from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts
from bench.data.idx import idx_files
from bench.data.images import ImageData


class Mnist(Dataset):
    """Handwritten digits (LeCun et al., 1998), in torchvision's layout."""

    facts = DatasetFacts(
        shape=(1, 28, 28),
        class_names=tuple("0123456789"),
        is_public=True,
        counts=(60_000, 10_000),
        layout="MNIST/raw/*-ubyte (torchvision)",
        licence="CC BY-SA 3.0",
        prior="pen",
        other="fmnist",
        cross="usps",
        dp_dfd_images=50_000,
        mmd_bandwidth=105.0,
        dp_sgd=(512, 4680, 0.5),
        augments_psg=True,
    )

    def files(self, root: Path) -> list[Path]:
        """Return the four files of root/MNIST/raw."""
        return idx_files(root, "MNIST")

    def load(self, root: Path, download: bool) -> ImageData:
        """Read the set. Raises BenchError for missing or corrupt files."""
        from bench.data.torchvision_files import load_idx

        return load_idx("mnist", "MNIST", self, root, download)
