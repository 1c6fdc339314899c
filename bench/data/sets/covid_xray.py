"""a small set of chest X-rays, 128x128 grey, 1,124 images, 3 classes; not the papers' COVIDx"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.dataset import DatasetFacts, FileDataset, not_found
from bench.data.request import Request
from bench.errors import BadData

if TYPE_CHECKING:
    from bench.data.listing import Listing

FOLDER = "covid-xray-128"
CLASSES = ("covid-19", "no_findings", "pneumonia")


class CovidXray(FileDataset):
    """Chest X-rays in three folders. Class and source of the images are confounded, so accuracies flatter."""

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

    def listing(self, asked: Request) -> Listing:
        """List the three folders."""
        from bench.data.decoded import Look
        from bench.data.folder import part, scan
        from bench.data.listing import Listing

        if self.missing(asked.root):
            raise not_found("covid-xray", FOLDER, asked.root, "unpack it there")
        classes = scan(asked.root / FOLDER, "covid-xray")
        if tuple(classes) != CLASSES:
            raise BadData(
                f"data set 'covid-xray': {asked.root / FOLDER} has the folders {', '.join(classes) or 'none'}; "
                f"expected {', '.join(CLASSES)}"
            )
        return Listing("covid-xray", asked.root / FOLDER, CLASSES, part(classes, CLASSES), None, Look(128, channels=1))
