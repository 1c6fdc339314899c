"""CelebA in torchvision's layout below the data root: celeba/img_align_celeba/*.jpg and text files next to it.

The official partition (list_eval_partition.txt) is used if all 202,599 images are there; its validation part joins the
training set. Fewer images are called a subset, whose test part is chosen by the hash of the pixels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.data.celeba_files import ATTRIBUTES, FOLDER, IMAGES, LABELLED, PARTITION, PEOPLE, missing
from bench.data.dataset import not_found
from bench.data.decoded import Box, Look
from bench.data.faces import identities
from bench.data.listing import Listing, Part
from bench.data.request import Request
from bench.errors import BadData, BenchError, NotFound

ALL = 202_599
TEST = 2
"""Number of the test part in the partition; 0 is training, 1 is validation."""
FACE: Box = (24 / 178, 50 / 218, 152 / 178, 178 / 218)
"""128x128 pixels of the 178x218 of an aligned image, around the face; the central square keeps the hair."""
SIDE = 64


@dataclass(frozen=True)
class Table:
    """A text file about images: image name to words; and the columns' names, if it has any."""

    rows: dict[str, list[str]]
    columns: tuple[str, ...] = ()


def prepare(name: str, asked: Request, *tables: str) -> None:
    """Check that the folder of images and the tables exist. Raises BenchError if not."""
    if asked.download and missing(asked.root, *tables):
        _download(name, asked.root)
    if missing(asked.root, *tables):
        raise not_found(name, f"{IMAGES}/*.jpg, {', '.join(tables)}", asked.root / FOLDER)


def attributes(root: Path) -> Table:
    """Read the forty attributes, "1" or "-1". Raises BenchError."""
    file = root / FOLDER / ATTRIBUTES
    lines = _lines(file)
    count, columns = next(lines, []), tuple(next(lines, []))
    if len(count) != 1 or not count[0].isdigit() or not columns:
        raise _corrupt(file, "its first lines are not a count and the names of attributes")
    rows = {words[0]: words[1:] for words in lines if words}
    if len(rows) != int(count[0]) or any(len(row) != len(columns) for row in rows.values()):
        raise _corrupt(file, f"it announces {count[0]} lines of {len(columns)} attributes and has others")
    return Table(rows, columns)


def people(root: Path) -> dict[str, int]:
    """Return the number of the person on each image, by image name. Raises BenchError."""
    return _numbers(root / FOLDER / PEOPLE)


def is_whole(root: Path) -> bool:
    """Whether all images and the official partition are available."""
    folder = root / FOLDER
    if not os.path.isfile(folder / PARTITION):
        return False
    return sum(entry.name.endswith(".jpg") for entry in os.scandir(folder / IMAGES)) == ALL


def parts(root: Path, labels: dict[str, int], known: dict[str, int] | None) -> tuple[Part, Part | None]:
    """Return the images with a label and a file, sorted by name: for training and, in the whole CelebA, for the test.

    Args:
        labels: image name to class.
        known: image name to person; None = unknown.
    """
    folder = root / FOLDER / IMAGES
    there = {entry.name for entry in os.scandir(folder)}
    names = sorted(name for name in labels if name in there and (known is None or name in known))
    if not is_whole(root):
        return _part(folder, names, labels, known), None
    split = _numbers(root / FOLDER / PARTITION)
    train = [name for name in names if split.get(name, 0) != TEST]
    test = [name for name in names if split.get(name, 0) == TEST]
    return _part(folder, train, labels, known), _part(folder, test, labels, known)


def by_attributes(
    name: str,
    asked: Request,
    class_names: tuple[str, ...],
    columns: tuple[str, ...],
    label: Callable[[set[str]], int | None],
) -> Listing:
    """Return the images whose attributes determine a class, with their people.

    Args:
        columns: the attributes to use.
        label: function of the attributes that an image is marked with; returns its class, or None to leave it out.

    Raises:
        BenchError: files are missing or corrupt, or an attribute is not in the table.
    """
    prepare(name, asked, *LABELLED)
    table = attributes(asked.root)
    if lacking := [column for column in columns if column not in table.columns]:
        raise _corrupt(asked.root / FOLDER / ATTRIBUTES, f"it has no attribute {lacking[0]}")
    places = {column: table.columns.index(column) for column in columns}
    labels: dict[str, int] = {}
    for image, row in table.rows.items():
        found = label({column for column, place in places.items() if row[place] == "1"})
        if found is not None:
            labels[image] = found
    train, test = parts(asked.root, labels, people(asked.root))
    return Listing(_version(name, asked.root), asked.root / FOLDER, class_names, train, test, Look(SIDE))


def by_person(name: str, asked: Request) -> Listing:
    """Return people with at least `asked.argument` images as classes, the others as outsiders. Raises BenchError."""
    prepare(name, asked, PEOPLE)
    folder = asked.root / FOLDER / IMAGES
    there = {entry.name for entry in os.scandir(folder)}
    shown = {folder / image: person for image, person in people(asked.root).items() if image in there}
    version = _version(name, asked.root)
    return identities(version, asked.root / FOLDER, shown, int(asked.argument), Look(SIDE, box=FACE))


def _version(name: str, root: Path) -> str:
    return name if is_whole(root) else f"{name}-subset"


def _part(folder: Path, names: list[str], labels: dict[str, int], known: dict[str, int] | None) -> Part:
    found = None if known is None else [known[name] for name in names]
    return Part([folder / name for name in names], [labels[name] for name in names], found)


def _numbers(file: Path) -> dict[str, int]:
    try:
        return {words[0]: int(words[1]) for words in _lines(file) if words}
    except (ValueError, IndexError) as error:
        raise _corrupt(file, f"its lines are not an image and a number: {error}") from error


def _lines(file: Path) -> Iterator[list[str]]:
    try:
        return (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise _corrupt(file, str(error)) from error


def _corrupt(file: Path, fault: str) -> BenchError:
    return BadData(f"data set 'celeba': {file} is missing or corrupt ({fault}); fetch it again")


def _download(name: str, root: Path) -> None:
    from torchvision.datasets import CelebA

    try:
        CelebA(str(root), split="all", download=True)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        text = " ".join(str(error).split())[:300]
        raise NotFound(
            f"could not download data set '{name}' to {root} ({text}); fetch CelebA elsewhere and name its folder with "
            "--data-root DIR or BENCH_DATA"
        ) from error
