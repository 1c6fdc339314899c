"""Fashion-MNIST, 28x28 grey, 60,000 + 10,000 images, 10 classes"""

from __future__ import annotations

from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts
from bench.data.idx import idx_files
from bench.data.images import ImageData

CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


class FashionMnist(Dataset):
    """Clothes of a shop (Xiao et al., 2017), in torchvision's layout."""

    facts = DatasetFacts(
        shape=(1, 28, 28),
        class_names=CLOTHES,
        is_public=True,
        counts=(60_000, 10_000),
        layout="FashionMNIST/raw/*-ubyte (torchvision)",
        licence="MIT",
        other="mnist",
        dp_dfd_images=120_000,
        mmd_bandwidth=127.0,
        dp_sgd=(2048, 1160, 4.0),
        augments_psg=True,
    )

    def files(self, root: Path) -> list[Path]:
        """Return the four files of root/FashionMNIST/raw."""
        return idx_files(root, "FashionMNIST")

    def load(self, root: Path, download: bool) -> ImageData:
        """Read the set. Raises BenchError for missing or corrupt files."""
        from bench.data.torchvision_files import load_idx

        return load_idx("fmnist", "FashionMNIST", self, root, download)
