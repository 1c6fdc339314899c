"""CelebA by colour of the hair, 64x64 colour faces, those marked with exactly one of three, 3 classes; or a subset"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.celeba_files import LABELLED, missing
from bench.data.dataset import DatasetFacts, FileDataset
from bench.data.request import Request

if TYPE_CHECKING:
    from bench.data.listing import Listing

COLOURS = ("Black_Hair", "Blond_Hair", "Brown_Hair")


class CelebaHair(FileDataset):
    """Faces of celebrities (Liu et al., 2015), the central square of the aligned images: it keeps the hair."""

    facts = DatasetFacts(
        shape=(3, 64, 64),
        class_names=("black", "blond", "brown"),
        is_public=True,
        of_people=True,
        layout="celeba/img_align_celeba/*.jpg and the text files beside it (torchvision); fewer images: -subset",
        licence="non-commercial research; no image may be passed on or published",
        prior="faces",
        cross="lfw",
        candidates=3,
    )
    versions = ("subset",)

    def missing(self, root: Path) -> list[Path]:
        """Return the missing files of CelebA."""
        return missing(root, *LABELLED)

    def listing(self, asked: Request) -> Listing:
        """List the images with exactly one of the three attributes."""
        from bench.data import celeba

        def label(marked: set[str]) -> int | None:
            return COLOURS.index(marked.pop()) if len(marked) == 1 else None

        return celeba.by_attributes("celeba-h", asked, self.facts.class_names, COLOURS, label)
