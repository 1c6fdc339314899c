"""a small set of chest X-rays, 128x128 grey, 1,124 images, 3 classes; not the papers' COVIDx

Chest X-rays of several collections, in one folder per class. Official parts do not exist: a sixth of each class, chosen
by the hash of the pixels, is the test set. Class and source of the images are confounded, so accuracies are too high.
Checked: the names of the three folders, and that every file is an image.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.data.dataset import DatasetFacts, Decoding, FileDataset, Listing, Request, not_found
from bench.data.folder import list_part, scan
from bench.errors import BadData

FOLDER = "covid-xray-128"
CLASSES = ("covid-19", "no_findings", "pneumonia")


class CovidXray(FileDataset):
    """Chest X-rays in three folders. Class and source of the images are confounded, so accuracies are too high."""

    facts = DatasetFacts(
        shape=(1, 128, 128),
        class_names=CLASSES,
        is_public=True,
        counts=(938, 186),
        layout=f"{FOLDER}/CLASS/*; a sixth of each class is held out by the hash of its pixels",
        licence="of several sources, each with its own",
    )

    def missing(self, root: Path) -> list[Path]:
        """Return the folder if it is missing."""
        return [] if os.path.isdir(root / FOLDER) else [root / FOLDER]

    def listing(self, request: Request) -> Listing:
        """List the three folders."""
        folder = request.root / FOLDER
        if self.missing(request.root):
            raise not_found("covid-xray", FOLDER, request.root, "unpack it there")
        classes = scan(folder, "covid-xray")
        if tuple(classes) != CLASSES:
            found = ", ".join(classes) or "none"
            raise BadData(f"data set 'covid-xray': {folder} has the folders {found}; expected {', '.join(CLASSES)}")
        return Listing("covid-xray", folder, CLASSES, list_part(classes, CLASSES), None, Decoding(128, channels=1))
