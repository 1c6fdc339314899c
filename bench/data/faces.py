"""Data sets of faces: people as classes (CelebA, LFW), and the files of CelebA.

CelebA (Liu et al., ICCV 2015) is read in torchvision's layout: celeba/img_align_celeba/*.jpg, aligned images of 178x218
pixels, and text files next to it. The official partition (list_eval_partition.txt) is used if all 202,599 images are
there; its validation part joins the training set. Fewer images are called a subset, whose test part is chosen by the
hash of the pixels.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bench.data.dataset import Decoding, FileDataset, Listing, Part, Request, not_found
from bench.errors import BadData, BenchError, NotFound

HELD_OUT = 5
"""One in this many images of each person is held out, by the hash of its pixels."""
FOLDER, IMAGES = "celeba", "img_align_celeba"
ATTRIBUTES, PEOPLE, PARTITION = "list_attr_celeba.txt", "identity_CelebA.txt", "list_eval_partition.txt"
LABELLED = (ATTRIBUTES, PEOPLE)
ALL = 202_599
TEST = 2
"""Number of the test part in the partition; 0 is training, 1 is validation."""
FACE = (24 / 178, 50 / 218, 152 / 178, 178 / 218)
"""128x128 pixels of the 178x218 of an aligned image, around the face; the central square keeps the hair."""
SIDE = 64
LICENCE = "non-commercial research; no image may be passed on or published"


class PeopleDataset(FileDataset):
    """A data set NAME:N whose classes are the people with at least N images; images of all others are outsiders."""

    usual = "20"

    def check_argument(self, argument: str) -> None:
        """Raise ValueError for an invalid N, or one too small to hold out an image of every person."""
        if not argument.isascii() or not argument.isdigit() or int(argument) < HELD_OUT:
            raise ValueError(
                f"N is '{argument}'; expected a whole number of at least {HELD_OUT}, the images of a person"
            )


def list_people(
    name: str, base: Path, shown: Mapping[Path, int], fewest: int, decoding: Decoding, most: int | None = None
) -> Listing:
    """List the people of `shown` (file to person) with at least `fewest` images as classes, the others as outsiders.

    Classes are in the order of the people's numbers and named after them: "person 7". Of a person with more than `most`
    images, `most` are kept, chosen by the hash of their files' names, as the first names often show one event; the
    others are not used at all.

    Raises:
        BenchError: fewer than two people have at least `fewest` images.
    """
    by_person = defaultdict(list)
    for file, person in shown.items():
        by_person[person].append(file)
    chosen = sorted(person for person, files in by_person.items() if len(files) >= fewest)
    if len(chosen) < 2:
        raise BadData(
            f"data set '{name}': {len(chosen)} people have at least {fewest} images in {base}; give a smaller N"
        )

    def name_hash(file: Path) -> str:
        return sha256(file.relative_to(base).as_posix().encode()).hexdigest()

    numbers = {person: number for number, person in enumerate(chosen)}
    kept = (file for person in chosen for file in sorted(by_person[person], key=name_hash)[:most])
    files = sorted(kept, key=Path.as_posix)
    others = sorted((file for file, person in shown.items() if person not in numbers), key=Path.as_posix)
    part = Part(files, [numbers[shown[file]] for file in files], [shown[file] for file in files])
    class_names = tuple(f"person {person}" for person in chosen)
    return Listing(name, base, class_names, part, None, decoding, outsiders=others, hold_out=HELD_OUT)


def missing_files(root: Path, *tables: str) -> list[Path]:
    """Return those of CelebA's folder of images and its `tables` that are missing below `root`."""
    folder = root / FOLDER
    found = [] if os.path.isdir(folder / IMAGES) else [folder / IMAGES]
    return found + [folder / name for name in tables if not os.path.isfile(folder / name)]


def list_by_attributes(
    name: str,
    request: Request,
    class_names: tuple[str, ...],
    columns: tuple[str, ...],
    label: Callable[[set[str]], int | None],
) -> Listing:
    """List CelebA's images whose attributes determine a class, with their people.

    Args:
        columns: the attributes to use.
        label: function of the attributes that an image is marked with; returns its class, or None to leave it out.

    Raises:
        BenchError: files are missing or corrupt, or an attribute is not in the table.
    """
    require_files(name, request, *LABELLED)
    root, folder = request.root, request.root / FOLDER
    table = read_attributes(root)
    if unknown := [column for column in columns if column not in table.columns]:
        raise _corrupt(folder / ATTRIBUTES, f"it has no attribute {unknown[0]}")
    position = {column: table.columns.index(column) for column in columns}
    labels: dict[str, int] = {}
    for image, row in table.rows.items():
        found = label({column for column in columns if row[position[column]] == "1"})
        if found is not None:
            labels[image] = found
    people = read_numbers(folder / PEOPLE)
    present = {entry.name for entry in os.scandir(folder / IMAGES)}
    names = sorted(image for image in labels if image in present and image in people)

    def part(images: list[str]) -> Part:
        files = [folder / IMAGES / image for image in images]
        return Part(files, [labels[image] for image in images], [people[image] for image in images])

    if not is_whole(root):
        return Listing(f"{name}-subset", folder, class_names, part(names), None, Decoding(SIDE))
    partition = read_numbers(folder / PARTITION)
    train = part([image for image in names if partition.get(image, 0) != TEST])
    test = part([image for image in names if partition.get(image, 0) == TEST])
    return Listing(name, folder, class_names, train, test, Decoding(SIDE))


def list_by_person(name: str, request: Request) -> Listing:
    """List CelebA's people with at least `request.argument` images as classes, the others as outsiders.

    Raises:
        BenchError: files are missing or corrupt, or fewer than two such people.
    """
    require_files(name, request, PEOPLE)
    folder = request.root / FOLDER
    present = {entry.name for entry in os.scandir(folder / IMAGES)}
    people = read_numbers(folder / PEOPLE)
    shown = {folder / IMAGES / image: person for image, person in people.items() if image in present}
    version = name if is_whole(request.root) else f"{name}-subset"
    return list_people(version, folder, shown, int(request.argument), Decoding(SIDE, box=FACE))


def require_files(name: str, request: Request, *tables: str) -> None:
    """Download CelebA if requested, and raise BenchError if the folder of images or a table is missing."""
    root = request.root
    if request.download and missing_files(root, *tables):
        from torchvision.datasets import CelebA

        try:
            CelebA(str(root), split="all", download=True)
        except (OSError, RuntimeError, ValueError, ImportError) as error:
            text = " ".join(str(error).split())[:300]
            raise NotFound(
                f"could not download data set '{name}' to {root} ({text}); fetch CelebA elsewhere and name its folder "
                "with --data-root DIR or BENCH_DATA"
            ) from error
    if missing_files(root, *tables):
        raise not_found(name, f"{IMAGES}/*.jpg, {', '.join(tables)}", root / FOLDER)


def is_whole(root: Path) -> bool:
    """Return whether all 202,599 images and the official partition of CelebA are below `root`."""
    folder = root / FOLDER
    if not os.path.isfile(folder / PARTITION):
        return False
    return sum(entry.name.endswith(".jpg") for entry in os.scandir(folder / IMAGES)) == ALL


@dataclass(frozen=True)
class Table:
    """A text file about images: `rows` maps an image's name to the words of its line; `columns` names the words."""

    rows: dict[str, list[str]]
    columns: tuple[str, ...]


def read_attributes(root: Path) -> Table:
    """Read CelebA's forty attributes of every image, each "1" or "-1". Raises BenchError for a corrupt file."""
    file = root / FOLDER / ATTRIBUTES
    lines = _words_of_lines(file)
    count, columns = next(lines, []), tuple(next(lines, []))
    if len(count) != 1 or not count[0].isdigit() or not columns:
        raise _corrupt(file, "its first lines are not a count and the names of attributes")
    rows = {words[0]: words[1:] for words in lines if words}
    if len(rows) != int(count[0]) or any(len(row) != len(columns) for row in rows.values()):
        raise _corrupt(file, f"it announces {count[0]} lines of {len(columns)} attributes and has others")
    return Table(rows, columns)


def read_numbers(file: Path) -> dict[str, int]:
    """Read a file of lines with an image's name and a number, such as that of its person: {name: number}.

    Raises BenchError for a corrupt file.
    """
    try:
        return {words[0]: int(words[1]) for words in _words_of_lines(file) if words}
    except (ValueError, IndexError) as error:
        raise _corrupt(file, f"its lines are not an image and a number: {error}") from error


def _words_of_lines(file: Path) -> Iterator[list[str]]:
    try:
        return (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise _corrupt(file, str(error)) from error


def _corrupt(file: Path, fault: str) -> BenchError:
    return BadData(f"data set 'celeba': {file} is missing or corrupt ({fault}); fetch it again")
