"""CelebA by person, 64x64 colour faces: celeba-id:N has the people with at least N images (default 20); or a subset

Faces of celebrities (Liu et al., ICCV 2015), cropped to 128x128 pixels around the face and resized. A fifth of each
person's images, chosen by the hash of the pixels, is the test set. Images of all other people are the attacker's in
split `identity`. `bench.data.faces` describes files and checks.
"""

from __future__ import annotations

from pathlib import Path

from bench.data import faces
from bench.data.dataset import DatasetFacts, Listing, Request


class CelebaIdentity(faces.PeopleDataset):
    """Faces of celebrities (Liu et al., 2015), cropped closely around the face, with people as classes."""

    facts = DatasetFacts(
        shape=(3, 64, 64),
        is_public=True,
        of_people=True,
        classes_are_people=True,
        evaluator=("faces", 1.5),
        layout="celeba/img_align_celeba/*.jpg, celeba/identity_CelebA.txt (torchvision); fewer images: -subset",
        licence=faces.LICENCE,
        prior="faces",
        cross="lfw",
    )
    takes = "N, people with at least N images are the classes (default 20)"
    versions = ("subset",)

    def missing(self, root: Path) -> list[Path]:
        """Return the missing files of CelebA."""
        return faces.missing_files(root, faces.PEOPLE)

    def listing(self, request: Request) -> Listing:
        """List the people with at least N images as classes, and the others as outsiders."""
        return faces.list_by_person("celeba-id", request)
