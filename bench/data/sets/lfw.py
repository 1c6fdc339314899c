"""Labeled Faces in the Wild by person, 64x64 colour: lfw:N has the people with at least N images (default 20)

Faces of the news (Huang et al., technical report, 2007): 13,233 images of 5,749 people. At most 60 images of a person
are used. A fifth of each person's images, chosen by the hash of the pixels, is the test set; images of all other people
are the attacker's in split `identity`. Fewer images than were published are called `lfw-subset`; images that were
cropped before are called `lfw-crop`.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.data.dataset import DatasetFacts, Decoding, Listing, Request, not_found
from bench.data.faces import PeopleDataset, list_people
from bench.data.folder import scan

TREES = ("lfw-py/lfw-deepfunneled", "lfw-py/lfw_funneled", "lfw-py/lfw")
"""torchvision's folders, of 250x250 images; the first that exists is read."""
CROPPED = "lfw-64"
CENTRE = (61 / 250, 61 / 250, 189 / 250, 189 / 250)
"""The central 128x128 of 250x250 pixels, around the face, as shares of the sides."""
ALL = 13_233
MOST = 60
"""Largest number of images used per person. One man has 530 of the 3,023 images of people with at least 20."""


class Lfw(PeopleDataset):
    """Faces of the news (Huang et al., 2007), with people as classes and at most 60 images per person."""

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
    versions = ("crop", "subset")

    def missing(self, root: Path) -> list[Path]:
        """Return the first of the folders if none exists."""
        return [] if self._tree(root) else [root / TREES[0]]

    def listing(self, request: Request) -> Listing:
        """List the people with at least N images, and the others; people are numbered by their sorted names."""
        tree = self._tree(request.root)
        if tree is None:
            raise not_found("lfw", f"{TREES[0]} or {CROPPED}", request.root, "fetch and unpack it there")
        people = scan(tree, "lfw")
        shown = {file: number for number, files in enumerate(people.values()) for file in files}
        cropped = tree.name == CROPPED
        name = ("lfw-crop" if cropped else "lfw") + ("" if len(shown) == ALL else "-subset")
        decoding = Decoding(64, box=None if cropped else CENTRE)
        return list_people(name, tree, shown, int(request.argument), decoding, MOST)

    def _tree(self, root: Path) -> Path | None:
        return next((root / tree for tree in (*TREES, CROPPED) if os.path.isdir(root / tree)), None)
