"""SVHN, 32x32 colour house numbers, 73,257 + 26,032 images, 10 classes

Digits cropped from photographs of house numbers (Netzer et al., NIPS workshop 2011). The publisher's training and test
parts are used, without the part "extra". torchvision checks the md5 of both files.
"""

from __future__ import annotations

from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts
from bench.data.images import ImageData


class Svhn(Dataset):
    """Digits of house numbers, cropped (Netzer et al., 2011), in torchvision's layout; the part "extra" is not used."""

    facts = DatasetFacts(
        shape=(3, 32, 32),
        class_names=tuple("0123456789"),
        is_public=True,
        counts=(73_257, 26_032),
        layout="train_32x32.mat, test_32x32.mat (torchvision)",
        licence="non-commercial use only",
        prior="pen",
        cross="mnist",
    )

    def files(self, root: Path) -> list[Path]:
        """Return the two archives."""
        return [root / "train_32x32.mat", root / "test_32x32.mat"]

    def load(self, root: Path, download: bool) -> ImageData:
        """Read the set. Raises BenchError for missing files, or files whose md5 is not the published one."""
        from bench.data.torchvision_files import load_arrays

        return load_arrays("svhn", "SVHN", self, root, download, parts=({"split": "train"}, {"split": "test"}))
