"""Labeled Faces in the Wild by person, 64x64 colour: lfw:N has the people with at least N images (default 20)"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.dataset import DatasetFacts, FileDataset, not_found
from bench.data.fewest import check_fewest
from bench.data.request import Request

if TYPE_CHECKING:
    from bench.data.listing import Listing

TREES = ("lfw-py/lfw-deepfunneled", "lfw-py/lfw_funneled", "lfw-py/lfw")
"""torchvision's folders, of 250x250 images; the first that is there is read."""
CROPPED = "lfw-64"
CENTRE = (61 / 250, 61 / 250, 189 / 250, 189 / 250)
"""128x128 pixels of the 250x250: the face."""
ALL = 13_233
MOST = 60
"""Images of a person: one man has 530 of the 3,023 of the people with at least 20."""


class Lfw(FileDataset):
    """Faces of the news (Huang et al., 2007). A fifth of a person's images, of 60 at most, is held out by the hash of
    its pixels; images of all other people are the attacker's in split identity."""

    facts = DatasetFacts(
        shape=(3, 64, 64),
        is_public=True,
        of_people=True,
        classes_are_people=True,
        evaluator=("faces", 1.5),
        layout=f"{', '.join(TREES)}, each NAME/NAME_0001.jpg (torchvision), or {CROPPED}/NAME/*.jpg: then lfw-crop",
        licence="for research; no licence is stated, the rights to the pictures are the news agencies'",
        prior="faces",
        cross="celeba-id",
    )
    takes = "N, people with at least N images are the classes (default 20), 60 images of a person at most"
    usual = "20"
    versions = ("crop", "subset")

    def check_argument(self, argument: str) -> None:
        """Raise ValueError for an invalid N."""
        check_fewest(argument)

    def missing(self, root: Path) -> list[Path]:
        """Return the first of the folders if none exists."""
        return [] if self._tree(root) else [root / TREES[0]]

    def listing(self, asked: Request) -> Listing:
        """List the people with at least N images, and the others; people are numbered by their sorted names."""
        from bench.data.decoded import Look
        from bench.data.faces import identities
        from bench.data.folder import scan

        tree = self._tree(asked.root)
        if tree is None:
            raise not_found("lfw", f"{TREES[0]} or {CROPPED}", asked.root, "fetch and unpack it there")
        people = scan(tree, "lfw")
        shown = {file: number for number, files in enumerate(people.values()) for file in files}
        cropped = tree.name == CROPPED
        name = ("lfw-crop" if cropped else "lfw") + ("" if len(shown) == ALL else "-subset")
        look = Look(64, box=None if cropped else CENTRE)
        return identities(name, tree, shown, int(asked.argument), look, MOST)

    def _tree(self, root: Path) -> Path | None:
        return next((root / tree for tree in (*TREES, CROPPED) if os.path.isdir(root / tree)), None)
