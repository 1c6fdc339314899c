"""The interface of a data set: public facts about it, its settings in papers, and its reader."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bench.data.images import ImageData
from bench.data.request import Request
from bench.errors import BenchError, NotFound

if TYPE_CHECKING:
    from bench.data.listing import Listing


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about a data set that are known without reading it; the defaults mean unknown.

    Attributes:
        shape: (c, h, w) of an image; None = known only after reading.
        class_names: one per class, in the order of the labels; () = known only after reading.
        is_public: whether anyone can get it, including its test part: a bundle then names it and states its accuracy.
        of_people: whether its images show real people: then pictures of runs show no images.
        classes_are_people: whether every class is one person: an independent face judge then identifies the person on a
            reconstruction (`bench.pipeline.face_judge`).
        evaluator: the teacher recipe that trains the evaluator, and its number of passes as a multiple of a teacher's;
            None = the standard recipe, with the evaluator's own sizes.
        counts: training and test images of the whole data set; None = not known.
        layout: the expected files below the data root, in a line.
        licence: the publisher's terms, in a line.
        prior: the prior of `bench.priors` that resembles its images most: "pen" for digits and letters, which a
            generator may also draw as strokes; "shapes" for garments and objects; "faces".
        other: the attacker's data set in split `full`; None = no such split.
        cross: the attacker's data set in split `cross`, of the same kind as this one but from another source; None = no
            such split.
        candidates: k, number of classes in randomised response (DPSD, section IV-A; DPDFD). The papers have
            3, but 50 for CIFAR-100, 2 for CelebA and 300 for ImageNet.
        teachers: n of an ensemble on disjoint parts, if the data set is too small for the papers' 100 (DGD) or 250
            (PATE); None = the paper's.
        dp_dfd_images: number of synthetic images in DP-DFD's queries (500,000 for CIFAR-100); the default is that of
            Fashion-MNIST.
        mmd_bandwidth: l of DP-MERF's kernel, in the authors' code; None = a sixth of the pixels.
        dp_sgd: batch, steps and learning rate of DP-SGD (Tramer and Boneh, ICLR 2021: 40, 40 and 30 passes over MNIST,
            Fashion-MNIST and CIFAR-10); the default is MNIST's.
        augments_psg: whether PSG's classifier is trained on slightly shifted images.
    """

    shape: tuple[int, int, int] | None = None
    class_names: tuple[str, ...] = ()
    is_public: bool = False
    of_people: bool = False
    classes_are_people: bool = False
    evaluator: tuple[str, float] | None = None
    counts: tuple[int, int] | None = None
    layout: str = ""
    licence: str = ""
    prior: str = "shapes"
    other: str | None = None
    cross: str | None = None
    candidates: int = 3
    teachers: int | None = None
    dp_dfd_images: int = 120_000
    mmd_bandwidth: float | None = None
    dp_sgd: tuple[int, int, float] = (512, 4680, 0.5)
    augments_psg: bool = False

    def classes_of(self, split: str) -> tuple[str, ...]:
        """Return the names of a split's private classes, in the order of their numbers there (`private_domain`)."""
        half = -(-len(self.class_names) // 2)
        return {"disjoint-low": self.class_names[:half], "disjoint-high": self.class_names[half:]}.get(
            split, self.class_names
        )


class Dataset(ABC):
    """A data set plug-in: one class in its own file. The file's name is the data set's name, and the first line of its
    docstring is shown by `bench list datasets`.

    The file imports torch and other libraries only inside `load`, so that facts are available without them.
    """

    facts: ClassVar[DatasetFacts] = DatasetFacts()
    takes: ClassVar[str] = ""
    """The meaning of ARGUMENT in the name NAME:ARGUMENT, in a line; "" = there is no such name."""
    usual: ClassVar[str] = ""
    """The default argument; "" = an argument must be given, if the data set takes one."""
    versions: ClassVar[tuple[str, ...]] = ()
    """Words after the name in `ImageData.name` for the version that was found, such as "subset"."""

    @abstractmethod
    def load(self, root: Path, download: bool) -> ImageData:
        """Read the data set into memory.

        Args:
            root: the folder of the data sets.
            download: fetch what is missing into `root`.

        Returns:
            Images named after the data set, or NAME-SOMETHING if it has several versions.

        Raises:
            BenchError: files are missing or corrupt; the message names the file and a remedy.
        """

    def read(self, asked: Request) -> ImageData:
        """Read as `load`; a data set with an argument, or readable at any size, uses more of the request."""
        return self.load(asked.root, asked.download)

    def check_argument(self, argument: str) -> None:
        """Raise ValueError with the expected form for an invalid argument."""
        return

    def files(self, root: Path) -> list[Path]:
        """Return the files that `load` reads below `root`; [] if it needs none."""
        return []

    def missing(self, root: Path) -> list[Path]:
        """Return those of `files` that are missing; checks only names."""
        return [path for path in self.files(root) if not os.path.isfile(path)]


class FileDataset(Dataset):
    """A data set of image files: it lists the class of each file; the files are decoded once, in parallel."""

    @abstractmethod
    def listing(self, asked: Request) -> Listing:
        """List the files below `asked.root`; opens no image.

        Raises:
            BenchError: files are missing or malformed.
        """

    def read(self, asked: Request) -> ImageData:
        """Read the data set of `listing`. Raises BenchError."""
        from bench.data import listing

        return listing.read(self.listing(asked), asked)

    def load(self, root: Path, download: bool) -> ImageData:
        """Read at the data set's own size and with its default argument."""
        return self.read(Request(root, download, self.usual))


def not_found(name: str, expected: str, root: Path, fetch: str = "") -> BenchError:
    """Return the error for a data set that is not below `root`.

    Args:
        fetch: the remedy, if it is not --download.
    """
    return NotFound(
        f"data set '{name}' not found: expected {expected} under {root}; name the folder above with --data-root DIR, "
        f"or set BENCH_DATA, or {fetch or 'use --download'}"
    )
