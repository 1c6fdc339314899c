"""USPS, 16x16 grey, 7,291 + 2,007 images, 10 classes

Digits of postcodes on envelopes of the US Postal Service (Hull, IEEE PAMI 1994). The publisher's training and test
parts are used. The archives of torchvision are read, or a NumPy archive `usps.npz` where only that exists; its images
are called `usps-npz`, so that records name the version. Checked: readable archives with one label per image.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts
from bench.data.images import ImageData


class Usps(Dataset):
    """Handwritten digits of postcodes (Hull, 1994), in torchvision's layout or as one NumPy archive."""

    facts = DatasetFacts(
        shape=(1, 16, 16),
        class_names=tuple("0123456789"),
        is_public=True,
        counts=(7_291, 2_007),
        layout="usps.bz2, usps.t.bz2 (torchvision), or usps.npz: then usps-npz",
        licence="no licence is stated",
        prior="pen",
        cross="mnist",
        teachers=100,
        augments_psg=True,
    )
    versions = ("npz",)

    def files(self, root: Path) -> list[Path]:
        """Return the two archives of torchvision; the NumPy one if only that exists."""
        return [root / "usps.npz"] if self._is_npz(root) else [root / "usps.bz2", root / "usps.t.bz2"]

    def load(self, root: Path, download: bool) -> ImageData:
        """Read usps.bz2 and usps.t.bz2, else usps.npz with {train,test}_{images,labels}, then named "usps-npz".

        Raises:
            BenchError: missing or corrupt files.
        """
        if not download and self._is_npz(root):
            from bench.data.array_files import load_arrays as load_npz

            return replace(load_npz("npz", root / "usps.npz", "usps-npz"), class_names=self.facts.class_names)
        from bench.data.torchvision_files import load_arrays

        return load_arrays("usps", "USPS", self, root, download, parts=({"train": True}, {"train": False}))

    def _is_npz(self, root: Path) -> bool:
        return not os.path.isfile(root / "usps.bz2") and os.path.isfile(root / "usps.npz")
