"""What a data set is to the bench: what is publicly known of it, what papers set for it, and the way to its images."""

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
    """What is known of a data set without reading it; the defaults are for one of which nothing is known.

    Attributes:
        shape: (c, h, w) of an image; None = only reading tells.
        class_names: one per class, in the order of the labels; () = only reading tells.
        is_public: whether anyone can have it, its test part too: a bundle then names it, and says its accuracy.
        of_people: whether its images show real people: then no picture of a run shows any image.
        classes_are_people: whether every class is one person: an independent judge of faces then says who is on a
            reconstruction (`bench.pipeline.face_judge`).
        evaluator: the teacher recipe by which the evaluator is trained, and how many times the passes that a teacher
            has by it; None = the standard recipe, at sizes of the evaluator's own.
        counts: training and test images of the whole data set; None = not known.
        layout: what is looked for below the data root, in a line.
        licence: what its publisher allows, in a line.
        prior: the prior of `bench.priors` that its images are most like: "pen" for digits and letters, of which a
            generator may draw strokes too; "shapes" for garments and objects; "faces".
        other: the data set that an attacker has in split `full`; None = there is no such split.
        cross: the data set that an attacker has in split `cross`, of the same kind as this one but from another
            source; None = there is no such split.
        candidates: k, the classes that randomised response answers within (DPSD, section IV-A; DPDFD). The papers have
            3, but 50 for CIFAR-100, 2 for CelebA and 300 for ImageNet.
        teachers: n of an ensemble on disjoint parts, where the data set is too small for the papers' 100 (DGD) or 250
            (PATE); None = the paper's.
        dp_dfd_images: how many synthetic images DP-DFD asks about (500,000 for CIFAR-100); the default is that of
            Fashion-MNIST.
        mmd_bandwidth: l of DP-MERF's kernel, in the authors' code; None = a sixth of the pixels.
        dp_sgd: batch, steps and learning rate of DP-SGD (Tramer and Boneh, ICLR 2021: 40, 40 and 30 passes over MNIST,
            Fashion-MNIST and CIFAR-10); the default is MNIST's.
        augments_psg: whether PSG's classifier is trained on images that are moved a little.
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
        """The names of the private classes of a split, in the order of their numbers there (`private_domain`)."""
        half = -(-len(self.class_names) // 2)
        return {"disjoint-low": self.class_names[:half], "disjoint-high": self.class_names[half:]}.get(
            split, self.class_names
        )


class Dataset(ABC):
    """A data set plug-in: one class in a file of its own, whose name is the data set's and whose docstring's first line
    is what `bench list datasets` says.

    The file imports torch and other libraries inside of `load`, so that facts are known without them.
    """

    facts: ClassVar[DatasetFacts] = DatasetFacts()
    takes: ClassVar[str] = ""
    """What ARGUMENT in the name NAME:ARGUMENT says, in a line; "" = there is no such name."""
    usual: ClassVar[str] = ""
    """The argument where none is given; "" = one must be given, if there is any."""
    versions: ClassVar[tuple[str, ...]] = ()
    """Words behind the name of what `load` reads that say which version lies there, such as "subset"."""

    @abstractmethod
    def load(self, root: Path, download: bool) -> ImageData:
        """Read it into memory.

        Args:
            root: the folder below which data sets lie.
            download: fetch what is missing into `root`.

        Returns:
            Images whose name is that of the data set, or NAME-SOMETHING if there are several versions of it.

        Raises:
            BenchError: files are missing or corrupt; the file and what would do are named.
        """

    def read(self, asked: Request) -> ImageData:
        """As `load`; a data set that takes an argument, or can be read at any size, heeds more of the request."""
        return self.load(asked.root, asked.download)

    def check_argument(self, argument: str) -> None:
        """Raises ValueError, saying what is expected, for an argument that is none."""
        return

    def files(self, root: Path) -> list[Path]:
        """The files that `load` reads below `root`; [] if it needs none."""
        return []

    def missing(self, root: Path) -> list[Path]:
        """Those of `files` that are not there; looks at names alone."""
        return [path for path in self.files(root) if not os.path.isfile(path)]


class FileDataset(Dataset):
    """A data set of image files: it says which file shows what, and the files are decoded once, in parallel."""

    @abstractmethod
    def listing(self, asked: Request) -> Listing:
        """What there is below `asked.root`; touches no image.

        Raises:
            BenchError: files are missing or do not say what they should.
        """

    def read(self, asked: Request) -> ImageData:
        """The data set that `listing` lists. Raises BenchError."""
        from bench.data import listing

        return listing.read(self.listing(asked), asked)

    def load(self, root: Path, download: bool) -> ImageData:
        """As `read`, at the data set's own size and with its usual argument."""
        return self.read(Request(root, download, self.usual))


def not_found(name: str, expected: str, root: Path, fetch: str = "") -> BenchError:
    """The error for a data set that is not below `root`.

    Args:
        fetch: what else would do, where that is not --download.
    """
    return NotFound(
        f"data set '{name}' not found: expected {expected} under {root}; name the folder above with --data-root DIR, "
        f"or set BENCH_DATA, or {fetch or 'use --download'}"
    )
