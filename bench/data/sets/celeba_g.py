"""CelebA by gender (attribute Male), 64x64 colour faces, 182,637 + 19,962 images, 2 classes; or a subset

Faces of celebrities (Liu et al., ICCV 2015). The images are the central square of the aligned images.
`bench.data.faces` describes files, parts and checks. The classes are the publisher's annotations of how a face looks,
not statements of the people shown.
"""

from __future__ import annotations

from pathlib import Path

from bench.data import faces
from bench.data.dataset import DatasetFacts, FileDataset, Listing, Request


class CelebaGender(FileDataset):
    """Faces of celebrities (Liu et al., 2015), the central square of the aligned images."""

    facts = DatasetFacts(
        shape=(3, 64, 64),
        class_names=("female", "male"),
        is_public=True,
        of_people=True,
        counts=(182_637, 19_962),
        layout="celeba/img_align_celeba/*.jpg and the text files next to it (torchvision); fewer images: -subset",
        licence=faces.LICENCE,
        prior="faces",
        cross="lfw",
        candidates=2,
    )
    versions = ("subset",)

    def missing(self, root: Path) -> list[Path]:
        """Return the missing files of CelebA."""
        return faces.missing_files(root, *faces.LABELLED)

    def listing(self, request: Request) -> Listing:
        """List the images with known attributes."""

        def label(marked: set[str]) -> int | None:
            return int("Male" in marked)

        return faces.list_by_attributes("celeba-g", request, self.facts.class_names, ("Male",), label)
