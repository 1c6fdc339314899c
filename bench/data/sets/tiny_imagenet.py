"""Tiny-ImageNet, 64x64 colour, 100,000 + 10,000 images, 200 classes; also an unpacked tree at 32x32

A part of ImageNet at a smaller size (Le and Yang, course CS231n, Stanford, 2015). The validation part, whose labels are
public, is the test set. The official archive is read, or a tree of 32x32 images (`tiny-imagenet-32px`). Fewer images
than were published are called `tiny-imagenet-subset`. Checked: every test image has a known class.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.data.dataset import DatasetFacts, Decoding, FileDataset, Listing, Part, Request, not_found
from bench.data.folder import list_part, scan
from bench.errors import BadData

FOLDER, SMALL = "tiny-imagenet-200", "tiny-imagenet-32"
SMALL_SIDE = 32
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

    def listing(self, request: Request) -> Listing:
        """List the official tree, else the small one; named "-subset" if there are fewer images than were published."""
        root = request.root
        if self.missing(root):
            raise not_found("tiny-imagenet", FOLDER, root, "fetch and unpack it there")
        is_official = os.path.isdir(root / FOLDER)
        tree = root / (FOLDER if is_official else SMALL)
        found = scan(tree / "train", "tiny-imagenet")  # WNID_boxes.txt is next to the images
        classes = {wnid: [file for file in files if file.suffix != ".txt"] for wnid, files in found.items()}
        names = tuple(classes)
        train = list_part(classes, names)
        test = list_test(tree, names) if is_official else list_part(scan(tree / "val", "tiny-imagenet"), names)
        is_whole = (len(train.files), len(test.files)) == self.facts.counts
        name = "tiny-imagenet" if is_whole else "tiny-imagenet-subset"
        if is_official or request.size is not None:
            return Listing(name, tree, names, train, test, Decoding(64))
        return Listing(f"{name}-{SMALL_SIDE}px", tree, names, train, test, Decoding(SMALL_SIDE))


def list_test(tree: Path, names: tuple[str, ...]) -> Part:
    """List the validation images with their classes from val_annotations.txt: file, class, box, separated by tabs."""
    labels = tree / "val" / LABELS
    try:
        rows = [line.split("\t")[:2] for line in labels.read_text(encoding="utf-8").splitlines() if line]
        return Part([tree / "val" / "images" / file for file, _ in rows], [names.index(wnid) for _, wnid in rows])
    except (OSError, ValueError) as error:
        raise BadData(
            f"data set 'tiny-imagenet': {labels} is missing or corrupt ({error}); unpack the archive again"
        ) from error
