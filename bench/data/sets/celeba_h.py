"""CelebA by colour of the hair, 64x64 colour faces, those marked with exactly one of three, 3 classes; or a subset

Faces of celebrities (Liu et al., ICCV 2015). The images are the central square of the aligned images, which keeps the
hair. Images with none or several of the three colours are left out. `bench.data.faces` describes files, parts and
checks.
"""

from __future__ import annotations

from pathlib import Path

from bench.data import faces
from bench.data.dataset import DatasetFacts, FileDataset, Listing, Request

COLOURS = ("Black_Hair", "Blond_Hair", "Brown_Hair")


class CelebaHair(FileDataset):
    """Faces of celebrities (Liu et al., 2015), the central square of the aligned images: it keeps the hair."""

    facts = DatasetFacts(
        shape=(3, 64, 64),
        class_names=("black", "blond", "brown"),
        is_public=True,
        of_people=True,
        layout="celeba/img_align_celeba/*.jpg and the text files next to it (torchvision); fewer images: -subset",
        licence=faces.LICENCE,
        prior="faces",
        cross="lfw",
        candidates=3,
    )
    versions = ("subset",)

    def missing(self, root: Path) -> list[Path]:
        """Return the missing files of CelebA."""
        return faces.missing_files(root, *faces.LABELLED)

    def listing(self, request: Request) -> Listing:
        """List the images with exactly one of the three attributes."""

        def label(marked: set[str]) -> int | None:
            return COLOURS.index(marked.pop()) if len(marked) == 1 else None

        return faces.list_by_attributes("celeba-h", request, self.facts.class_names, COLOURS, label)
