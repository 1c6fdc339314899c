"""scikit-learn's 8x8 digits at 16x16, 1,438 + 359 images, 10 classes; needs no download

The test part of the UCI optical digits (Alpaydin and Kaynak, 1998), which comes with scikit-learn. There are no
official parts: the test set is the fifth of the records whose SHA-256 of "digits:<index>" is smallest. The 8x8 images
with values 0 to 16 are scaled to [0, 1], enlarged bilinearly and rounded to uint8. Every step is exact in float32, so
the fingerprint is the same on every machine.
"""

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
    """The default data set, which needs no download: scikit-learn's copy of the UCI optical digits, enlarged."""

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
        """Read 1,438 training and 359 test images."""
        import numpy as np
        import torch
        from torch.nn import functional as F

        images, target = read_digits()
        small = torch.from_numpy(np.asarray(images, dtype=np.float32))[:, None] / LEVELS
        large = F.interpolate(small, size=(SIDE, SIDE), mode="bilinear", align_corners=False, antialias=False)
        pixels = (large * 255).round().to(torch.uint8)
        labels = torch.from_numpy(np.asarray(target, dtype=np.int64))
        order = sorted(range(len(labels)), key=lambda index: hashlib.sha256(f"digits:{index}".encode()).digest())
        is_test = torch.zeros(len(labels), dtype=torch.bool)
        is_test[order[: len(labels) // 5]] = True
        return ImageData(
            *("digits", pixels[~is_test], labels[~is_test], pixels[is_test], labels[is_test], self.facts.class_names)
        )


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return (1797, 8, 8) values from 0 to 16 and (1797,) labels, as scikit-learn's `load_digits`.

    They are read from its file if possible, as importing scikit-learn takes longer than the rest of a cached run.
    """
    import numpy as np

    found = importlib.util.find_spec("sklearn")
    file = Path(found.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if found else Path()
    if not file.is_file():
        from sklearn import datasets

        bunch = datasets.load_digits()
        return bunch.images, bunch.target
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1]
