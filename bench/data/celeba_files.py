"""Paths of the parts of CelebA, as in torchvision, and which of them are missing. Imports no library."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER, IMAGES = "celeba", "img_align_celeba"
ATTRIBUTES, PEOPLE, PARTITION = "list_attr_celeba.txt", "identity_CelebA.txt", "list_eval_partition.txt"
LABELLED = (ATTRIBUTES, PEOPLE)


def missing(root: Path, *tables: str) -> list[Path]:
    """Return the missing paths among the folder of images and the tables below `root`."""
    folder = root / FOLDER
    found = [] if os.path.isdir(folder / IMAGES) else [folder / IMAGES]
    return found + [folder / name for name in tables if not os.path.isfile(folder / name)]
