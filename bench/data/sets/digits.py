"""scikit-learn's 8x8 digits at 16x16, 1,438 + 359 images, 10 classes; needs no download"""

from __future__ import annotations

import hashlib
from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts
from bench.data.images import ImageData

SIDE = 16
LEVELS = 16


class Digits(Dataset):
    """The embedded default: scikit-learn's copy of the UCI optical digits, enlarged."""

    facts = DatasetFacts(
        shape=(1, SIDE, SIDE),
        class_names=tuple("0123456789"),
        is_public=True,
        counts=(1438, 359),
        layout="none: it comes with scikit-learn",
        licence="CC BY 4.0 (UCI)",
        prior="pen",
        cross="usps",
        teachers=48,
        augments_psg=True,
    )

    def load(self, root: Path, download: bool) -> ImageData:
        """1,438 training and 359 test images.

        The 8x8 images with values 0 to 16 are scaled to [0, 1], enlarged bilinearly and rounded to uint8; every step is
        exact in float32, so the fingerprint is the same everywhere. There is no official split: the test set is the
        fifth of the records whose sha256 of "digits:<index>" is smallest.
        """
        import numpy as np
        import torch
        from sklearn import datasets
        from torch.nn import functional as F

        bunch = datasets.load_digits()
        small = torch.from_numpy(np.asarray(bunch.images, dtype=np.float32))[:, None] / LEVELS
        large = F.interpolate(small, size=(SIDE, SIDE), mode="bilinear", align_corners=False, antialias=False)
        images = (large * 255).round().to(torch.uint8)
        labels = torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
        order = sorted(range(len(labels)), key=lambda index: hashlib.sha256(f"digits:{index}".encode()).digest())
        held_out = torch.zeros(len(labels), dtype=torch.bool)
        held_out[order[: len(labels) // 5]] = True
        return ImageData(
            name="digits",
            train_images=images[~held_out],
            train_labels=labels[~held_out],
            test_images=images[held_out],
            test_labels=labels[held_out],
            class_names=self.facts.class_names,
        )
