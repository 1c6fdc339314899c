"""CelebA by gender (attribute Male), 64x64 colour faces, 182,637 + 19,962 images, 2 classes; or a subset

The classes are the publisher's marks of what its annotators saw, not what anybody said of themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.celeba_files import LABELLED, missing
from bench.data.dataset import DatasetFacts, FileDataset
from bench.data.request import Request

if TYPE_CHECKING:
    from bench.data.listing import Listing


class CelebaGender(FileDataset):
    """Faces of celebrities (Liu et al., 2015), the central square of the aligned images."""

    facts = DatasetFacts(
        shape=(3, 64, 64),
        class_names=("female", "male"),
        is_public=True,
        of_people=True,
        counts=(182_637, 19_962),
        layout="celeba/img_align_celeba/*.jpg and the text files beside it (torchvision); fewer images: -subset",
        licence="non-commercial research; no image may be passed on or published",
        prior="faces",
        cross="lfw",
        candidates=2,
    )
    versions = ("subset",)

    def missing(self, root: Path) -> list[Path]:
        """Return the missing files of CelebA."""
        return missing(root, *LABELLED)

    def listing(self, asked: Request) -> Listing:
        """List the images with known attributes."""
        from bench.data import celeba

        def label(marked: set[str]) -> int | None:
            return int("Male" in marked)

        return celeba.by_attributes("celeba-g", asked, self.facts.class_names, ("Male",), label)
