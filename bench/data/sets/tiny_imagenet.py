"""Tiny-ImageNet, 64x64 colour, 100,000 + 10,000 images, 200 classes; also an unpacked tree at 32x32"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.dataset import DatasetFacts, FileDataset, not_found
from bench.data.request import Request
from bench.errors import BadData

if TYPE_CHECKING:
    from bench.data.listing import Listing, Part

FOLDER, SMALL = "tiny-imagenet-200", "tiny-imagenet-32"
CLASSES, SMALL_SIDE = 200, 32
LABELS = "val_annotations.txt"


class TinyImageNet(FileDataset):
    """A part of ImageNet made smaller (Le and Yang, 2015). The validation part, whose labels are known, is the test."""

    facts = DatasetFacts(
        shape=(3, 64, 64),
        is_public=True,
        counts=(100_000, 10_000),
        layout=f"{FOLDER}/{{train/WNID/images/*.JPEG,val/images/*.JPEG,val/{LABELS}}}, "
        f"or {SMALL}/{{train,val}}/WNID/*: then tiny-imagenet-32px",
        licence="ImageNet's: non-commercial research and education",
        cross="cifar100",
    )
    versions = ("subset",)

    def missing(self, root: Path) -> list[Path]:
        """Return the folder if neither one exists."""
        return [] if os.path.isdir(root / FOLDER) or os.path.isdir(root / SMALL) else [root / FOLDER]

    def listing(self, asked: Request) -> Listing:
        """List the official tree, else the small one; named "-subset" if there are fewer images than were published."""
        from bench.data.decoded import Look
        from bench.data.folder import part, scan
        from bench.data.listing import Listing

        if self.missing(asked.root):
            raise not_found("tiny-imagenet", FOLDER, asked.root, "fetch and unpack it there")
        official = os.path.isdir(asked.root / FOLDER)
        tree = asked.root / (FOLDER if official else SMALL)
        found = scan(tree / "train", "tiny-imagenet")  # WNID_boxes.txt is next to the images
        classes = {wnid: [file for file in files if file.suffix != ".txt"] for wnid, files in found.items()}
        names = tuple(classes)
        train = part(classes, names)
        test = _official_test(tree, names) if official else part(scan(tree / "val", "tiny-imagenet"), names)
        whole = (len(train.files), len(test.files)) == self.facts.counts
        name = "tiny-imagenet" if whole else "tiny-imagenet-subset"
        if official or asked.size is not None:
            return Listing(name, tree, names, train, test, Look(64))
        return Listing(f"{name}-{SMALL_SIDE}px", tree, names, train, test, Look(SMALL_SIDE))


def _official_test(tree: Path, names: tuple[str, ...]) -> Part:
    """List the validation images with their classes from val_annotations.txt: file, class, box, separated by tabs."""
    from bench.data.listing import Part

    labels = tree / "val" / LABELS
    try:
        lines = labels.read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t")[:2] for line in lines if line]
        return Part([tree / "val" / "images" / file for file, _ in rows], [names.index(wnid) for _, wnid in rows])
    except (OSError, ValueError) as error:
        raise BadData(
            f"data set 'tiny-imagenet': {labels} is missing or corrupt ({error}); unpack the archive again"
        ) from error
