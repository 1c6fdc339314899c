"""The interface of a data set plug-in: public facts, a request to read it, and the list of its image files.

This file loads neither NumPy nor torch, so that facts are available quickly.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from bench.errors import BenchError, NotFound

if TYPE_CHECKING:
    from bench.data.images import ImageData

Keep = Callable[[str, dict[str, object], Callable[[Path], None]], Path]
"""A store of computed files: `keep(kind, spec, make)` returns the folder of the result that the plain data `spec`
identify; `make(folder)` fills it, once for all processes."""
Fit = Literal["crop", "pad", "stretch"]
"""How a non-square image becomes square."""
PixelRange = tuple[float, float]
"""The pixel values of black and white."""


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about a data set that are known without reading it; the defaults mean unknown.

    Attributes:
        shape: (c, h, w) of an image; None = known only after reading.
        class_names: one per class, in the order of the labels; () = known only after reading.
        is_public: whether anyone can get it, including its test part: a bundle then names it and states its accuracy.
        of_people: whether its images show real people: then pictures of runs show no images.
        has_outsiders: whether it has images that are in no class, which split `identity` gives to the attacker.
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
        augments_psg: whether PSG's classifier is trained on shifted, scaled and rotated images.
    """

    shape: tuple[int, int, int] | None = None
    class_names: tuple[str, ...] = ()
    is_public: bool = False
    of_people: bool = False
    has_outsiders: bool = False
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


@dataclass(frozen=True)
class Reading:
    """A user's declarations about their own images that the files do not contain.

    Attributes:
        fit: crop = the central square; pad = black bars; stretch = changed aspect ratio.
        pixel_range: the values of black and white; None = those of the dtype or the file format.
        groups: CSV file with the columns path and group of an image folder; None = the folder's `groups.csv`, if it
            has one.
    """

    fit: Fit = "crop"
    pixel_range: PixelRange | None = None
    groups: Path | None = None


AS_DECLARED = Reading()
"""The default: dtypes and file formats determine the pixel range, and images are cropped to squares."""


@dataclass(frozen=True)
class Request:
    """A request to read a data set.

    Attributes:
        root: the folder of the data sets.
        download: fetch what is missing into `root`.
        argument: the text after the colon of `NAME:ARGUMENT`; "" without one.
        size: side of the images in pixels; None = the data set's own.
        channels: 1 = grey, 3 = RGB; None = the data set's own.
        skip_broken: omit unreadable image files instead of refusing them.
        keep: store for decoded images; None = do not keep them.
        reading: how a user's own images are read.
    """

    root: Path
    download: bool = False
    argument: str = ""
    size: int | None = None
    channels: int | None = None
    skip_broken: bool = False
    keep: Keep | None = None
    reading: Reading = AS_DECLARED


class Dataset(ABC):
    """A data set plug-in: one class in its own file.

    The file's name is the data set's name, and the first line of its docstring is shown by `bench list datasets`.

    The file imports torch and other libraries only inside `load`, so that facts are available without them.
    """

    facts: ClassVar[DatasetFacts] = DatasetFacts()
    takes: ClassVar[str] = ""
    """The meaning of ARGUMENT in the name NAME:ARGUMENT, in a line; "" = the data set takes none."""
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

    def read(self, request: Request) -> ImageData:
        """Read as `load`; a data set with an argument, or readable at any size, uses more of the request."""
        return self.load(request.root, request.download)

    def check_argument(self, argument: str) -> None:
        """Raise ValueError with the expected form for an invalid argument."""
        return

    def files(self, root: Path) -> list[Path]:
        """Return the files that `load` reads below `root`; [] if it needs none."""
        return []

    def missing(self, root: Path) -> list[Path]:
        """Return those of `files` that are missing; checks only names."""
        return [path for path in self.files(root) if not os.path.isfile(path)]


class IdxDataset(Dataset):
    """A data set in MNIST's format: four IDX files of 28x28 grey images in root/SOURCE/raw, as torchvision stores them.

    Checks: whole IDX files, as many labels as images, labels below the number of classes. The publisher's counts and
    checksums are not checked, so that a subset can be read; the fingerprint in the record identifies the images.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Name of the class in `torchvision.datasets`, and of the folder below the data root."""

    def files(self, root: Path) -> list[Path]:
        """Return the paths of training images, training labels, test images and test labels."""
        parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
        return [root / self.source / "raw" / f"{part}-ubyte" for part in parts]

    def load(self, root: Path, download: bool) -> ImageData:
        """Read the set. Raises BenchError for missing or corrupt files."""
        from bench.data.torchvision_files import load_idx

        return load_idx(self.name, self.source, self, root, download)


class StoredImage(Protocol):
    """An encoded image inside another file, such as a row of a table; errors show its `str`.

    Attributes:
        name: unique within the data set, as used in records.
        version: a text that changes whenever the bytes may change.
    """

    @property
    def name(self) -> str:
        """The name in messages."""
        ...

    @property
    def version(self) -> str:
        """A text that changes when the image changes."""
        ...

    def read(self) -> bytes:
        """Return the encoded bytes. Raises ValueError if there are none."""


Source = Path | StoredImage


@dataclass(frozen=True)
class Decoding:
    """How an image file becomes an image of the data set.

    Attributes:
        side: of the square image, in pixels.
        channels: 1 = grey, 3 = RGB; None = grey if every file is stored so, else RGB.
        box: region of the file's image to crop: left, top, right, bottom as shares of its width and height.
            None = square by `fit`.
        exact: whether files of another size than side x side are refused.
        fit: how an image that is not square becomes one.
        pixel_range: the values that mean black and white in files of more than 8 bits; None = those of the format.
    """

    side: int
    channels: int | None = 3
    box: tuple[float, float, float, float] | None = None
    exact: bool = False
    fit: Fit = "crop"
    pixel_range: PixelRange | None = None


@dataclass(frozen=True)
class Part:
    """A part of a data set: image files with the class number of each and, where known, the number of its group, such
    as the person on it."""

    files: Sequence[Source]
    labels: Sequence[int]
    groups: Sequence[int] | None = None


@dataclass(frozen=True)
class Listing:
    """A data set of image files.

    Attributes:
        name: name of the `ImageData`.
        base: a folder that contains all files.
        class_names: one per class, in the order of the labels.
        train: the training part, or all files if `test` is None.
        test: the official test part. None = of the n images of each class, the n // hold_out with the smallest SHA-256
            of their pixels are the test set.
        decoding: how a file becomes an image; a request for another size changes its side.
        outsiders: files that show people outside the classes.
        hold_out: see `test`.
        left_out: folders without images that were left out.
        notes: sentences on how the files were found.
    """

    name: str
    base: Path
    class_names: tuple[str, ...]
    train: Part
    test: Part | None
    decoding: Decoding
    outsiders: Sequence[Path] = ()
    hold_out: int = 6
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class FileDataset(Dataset):
    """A data set of image files: it lists the class of each file; the files are decoded once, in parallel."""

    @abstractmethod
    def listing(self, request: Request) -> Listing:
        """List the files below the root of the request; opens no image.

        Raises:
            BenchError: files are missing or malformed.
        """

    def read(self, request: Request) -> ImageData:
        """Read the data set of `listing`. Raises BenchError."""
        from bench.data.image_files import read_listing

        return read_listing(self.listing(request), request)

    def load(self, root: Path, download: bool) -> ImageData:
        """Read at the data set's own size and with its default argument."""
        return self.read(Request(root, download, self.usual))


def not_found(name: str, expected: str, root: Path, fetch: str = "use --download", instead: str = "") -> BenchError:
    """Return the error for a data set that is not below `root`.

    Args:
        name: the data set. expected: the missing files.
        fetch: the remedy.
        instead: other files that can be read instead, in parentheses.
    """
    return NotFound(
        f"data set '{name}' not found: expected {expected} under {root}{instead}; name the folder above with "
        f"--data-root DIR, or set BENCH_DATA, or {fetch}"
    )
