"""scikit-learn's 8x8 digits at 16x16, 1,438 + 359 images, 10 classes; needs no download"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.dataset import Dataset, DatasetFacts
from bench.data.images import ImageData

if TYPE_CHECKING:
    import numpy as np

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
        """Read 1,438 training and 359 test images.

        The 8x8 images with values 0 to 16 are scaled to [0, 1], enlarged bilinearly and rounded to uint8; every step is
        exact in float32, so the fingerprint is the same everywhere. There is no official split: the test set is the
        fifth of the records whose sha256 of "digits:<index>" is smallest.
        """
        import numpy as np
        import torch
        from torch.nn import functional as F

        images, target = _read()
        small = torch.from_numpy(np.asarray(images, dtype=np.float32))[:, None] / LEVELS
        large = F.interpolate(small, size=(SIDE, SIDE), mode="bilinear", align_corners=False, antialias=False)
        pixels = (large * 255).round().to(torch.uint8)
        labels = torch.from_numpy(np.asarray(target, dtype=np.int64))
        order = sorted(range(len(labels)), key=lambda index: hashlib.sha256(f"digits:{index}".encode()).digest())
        held_out = torch.zeros(len(labels), dtype=torch.bool)
        held_out[order[: len(labels) // 5]] = True
        return ImageData(
            name="digits",
            train_images=pixels[~held_out],
            train_labels=labels[~held_out],
            test_images=pixels[held_out],
            test_labels=labels[held_out],
            class_names=self.facts.class_names,
        )


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Return (1797, 8, 8) values and (1797,) labels, as scikit-learn's `load_digits`; read from its file if possible,
    as importing scikit-learn takes longer than the rest of a cached run."""
    import numpy as np

    found = importlib.util.find_spec("sklearn")
    file = Path(found.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if found else Path()
    if not file.is_file():
        from sklearn import datasets

        bunch = datasets.load_digits()
        return bunch.images, bunch.target
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1]
