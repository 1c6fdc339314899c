"""CelebA by person, 64x64 colour faces: celeba-id:N has the people with at least N images (default 20); or a subset"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.celeba_files import PEOPLE, missing
from bench.data.dataset import DatasetFacts, FileDataset
from bench.data.fewest import check_fewest
from bench.data.request import Request

if TYPE_CHECKING:
    from bench.data.listing import Listing


class CelebaIdentity(FileDataset):
    """Faces of celebrities (Liu et al., 2015), cut closely. A fifth of each person's images is held out by the hash of
    its pixels; images of all other people are the attacker's in split identity."""

    facts = DatasetFacts(
        shape=(3, 64, 64),
        is_public=True,
        of_people=True,
        classes_are_people=True,
        evaluator=("faces", 1.5),
        layout="celeba/img_align_celeba/*.jpg, celeba/identity_CelebA.txt (torchvision); fewer images: -subset",
        licence="non-commercial research; no image may be passed on or published",
        prior="faces",
        cross="lfw",
    )
    takes = "N, people with at least N images are the classes (default 20)"
    usual = "20"
    versions = ("subset",)

    def check_argument(self, argument: str) -> None:
        """Raise ValueError for an invalid N."""
        check_fewest(argument)

    def missing(self, root: Path) -> list[Path]:
        """Return the missing files of CelebA."""
        return missing(root, PEOPLE)

    def listing(self, asked: Request) -> Listing:
        """List the people with at least N images as classes, and the others as outsiders."""
        from bench.data import celeba

        return celeba.by_person("celeba-id", asked)
