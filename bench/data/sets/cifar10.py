"""CIFAR-10, 32x32 colour, 50,000 + 10,000 images, 10 classes; also an unpacked tree of JPEG files

Small photographs (Krizhevsky, technical report, 2009). The publisher's training and test parts are used. The pickled
batches are unpickled only if torchvision confirms their published md5. A tree of image files,
cifar10/{train,test}/CLASS, is read where the batches do not exist. Its images were encoded again with loss, so they are
called `cifar10-jpeg`.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts, Request
from bench.data.images import ImageData

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDER = "cifar-10-batches-py"
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")


class Cifar10(Dataset):
    """Small photographs (Krizhevsky, 2009), in torchvision's layout or as files."""

    facts = DatasetFacts(
        shape=(3, 32, 32),
        class_names=CLASSES,
        is_public=True,
        counts=(50_000, 10_000),
        layout="cifar-10-batches-py/ (torchvision), or cifar10/{train,test}/CLASS/*: then cifar10-jpeg",
        licence="no licence is stated; its author wants to be cited",
        cross="cifar100",
        dp_dfd_images=220_000,
        dp_sgd=(1024, 1440, 1.0),
    )
    versions = ("jpeg",)

    def files(self, root: Path) -> list[Path]:
        """Return the batches; [] if the images are unpacked to files instead."""
        return [] if self._is_unpacked(root) else [root / FOLDER / name for name in BATCHES]

    def load(self, root: Path, download: bool) -> ImageData:
        """Read with default options, as `read`."""
        return self.read(Request(root, download))

    def read(self, request: Request) -> ImageData:
        """Read root/cifar-10-batches-py, else root/cifar10/{train,test}/<class>/*, then named "cifar10-jpeg".

        Raises:
            BenchError: missing files, or a batch whose md5 is not the published one.
        """
        root = request.root
        if not request.download and self._is_unpacked(root):
            from bench.data.folder import load_unpacked

            return load_unpacked(root / "cifar10", "cifar10-jpeg", CLASSES, request)
        from bench.data.torchvision_files import load_batches

        instead = f" (or image files under {root / 'cifar10'}/{{train,test}}/CLASS)"
        return load_batches("cifar10", "CIFAR10", self, root, request.download, instead)

    def _is_unpacked(self, root: Path) -> bool:
        return not os.path.isdir(root / FOLDER) and os.path.isdir(root / "cifar10")
