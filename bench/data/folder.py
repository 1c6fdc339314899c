"""Image files in one folder per class: the user's own (`imagefolder:PATH`) and unpacked published sets.

A user's folder may contain a training part and a test part, each with one folder per class, or only the classes.
`find_tree` finds the parts by their names; of classes without parts a sixth of the files is held out, or of the groups
if the group of each file is known (`bench.data.groups`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.data import groups
from bench.data.dataset import Decoding, Listing, Part, Request
from bench.data.naming import FILE_SIDE
from bench.errors import BadData, NotFound

if TYPE_CHECKING:
    from bench.data.images import ImageData

PART_WORDS = {
    "train": ("train", "training", "trainset", "train_set", "training_set"),
    "test": ("test", "testing", "tests", "testset", "test_set", "testing_set"),
    "val": ("val", "valid", "validation", "dev", "eval", "valset", "val_set", "validation_set"),
}
"""Folder names of the parts, in any case and with - or _."""
HELD_OUT = "no folder for the test: a sixth of each class's files is held out, by the hash of their names"
GROUPS_HELD_OUT = "no folder for the test: a sixth of the groups is held out, by the hash of their names"
_CLUTTER = {
    *("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin", "lost+found", "icon\r"),
    "system volume information",
}
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_UNPACKED_SIDE = 32
_NAMED = 10
"""Number of empty folders that an error names."""

Classes = dict[str, list[Path]]
"""Class name to its files, both sorted."""
GroupOf = Callable[[Path], str]
"""Function that returns the name of an image file's group."""


@dataclass(frozen=True)
class Tree:
    """The folders to read.

    Attributes:
        train: the training part, with one folder per class.
        test: the test part, likewise; None = a part of `train` is held out.
        notes: sentences on decisions and on folders that are not read.
    """

    train: Path
    test: Path | None
    notes: tuple[str, ...] = ()


def load_folder(path: Path, name: str, request: Request) -> ImageData:
    """Read the images below `path`, made square as the request says and resized bilinearly.

    `find_tree` says which folders are the parts. Without a test part the folders in `path` are the classes, and of each
    class's n files the n // 6 with the smallest sha256 of "<class>/<file>" are the test set; if the files have groups,
    a sixth of the groups is. Classes are numbered by sorted name. The images are grey (c = 1) if every file is stored
    so, else RGB (c = 3), unless the request says.

    Raises:
        BenchError: no such folder, train without test, fewer than 2 classes, a class without training images, no test
            images, a test class unknown to train, a file that is not an image, or one without a group where others
            have one.
    """
    from bench.data.image_files import read_listing

    if not os.path.isdir(path):
        raise NotFound(f"data set '{name}': no folder {path}; expected PATH/{{train,test}}/CLASS/* or PATH/CLASS/*")
    try:
        tree = find_tree(path, name)
    except OSError as error:
        raise BadData(f"data set '{name}': cannot list {path} ({error.strerror}); check the path") from error
    train, group_of = scan(tree.train, name), find_groups(path, name, request.reading.groups)
    if tree.test is not None:
        test = rename_like(train, scan(tree.test, name))
    else:
        test = {class_name: held_out_files(files, path, group_of) for class_name, files in train.items()}
        train = {class_name: sorted(set(files) - set(test[class_name])) for class_name, files in train.items()}
    empty = [class_name for class_name, files in train.items() if not files]
    if empty and request.skip_broken:
        train, test = ({c: files for c, files in part.items() if c not in empty} for part in (train, test))
    check_classes(train, test, path, name)
    class_names, reading = tuple(train), request.reading
    training, testing = list_part(train, class_names), list_part(test, class_names)
    if group_of is not None:
        files = [[group_of(cast(Path, file)) for file in part.files] for part in (training, testing)]
        of_training, of_testing = groups.number_groups(files)
        training, testing = replace(training, groups=of_training), replace(testing, groups=of_testing)
    note = HELD_OUT if group_of is None else GROUPS_HELD_OUT
    listed = Listing(
        name,
        path,
        class_names,
        training,
        testing,
        Decoding(FILE_SIDE, channels=None, fit=reading.fit, pixel_range=reading.pixel_range),
        left_out=tuple(f"{(tree.train / class_name).relative_to(path).as_posix()}/" for class_name in empty),
        notes=tree.notes if tree.test is not None else (*tree.notes, note),
    )
    return read_listing(listed, request)


def find_groups(path: Path, name: str, file: Path | None) -> GroupOf | None:
    """Return a function that gives the group of each image file below `path`; None if the groups are not known.

    Args:
        file: the CSV file of groups; None = `groups.csv` in the folder, if it is there.

    Raises:
        BenchError: a file that `bench.data.groups.read_groups` refuses.
    """
    chosen = path / groups.FILE if file is None else file
    if file is None and not chosen.is_file():
        return None
    problem = f"data set '{name}'"
    known = groups.read_groups(chosen, problem)

    def group_of(image: Path) -> str:
        relative = image.relative_to(path).as_posix()
        if relative not in known:
            raise BadData(f"{problem}: {chosen} has no line for {relative}; give every image file a group")
        return known[relative]

    return group_of


def load_unpacked(tree: Path, name: str, class_names: tuple[str, ...], request: Request) -> ImageData:
    """Read a published set of colour images, (3, 32, 32), unpacked to files: tree/{train,test}/<class>/*.

    Pixels depend on the JPEG decoder, so that the fingerprint may differ between machines.

    Raises:
        BenchError: other classes than `class_names`, an empty class, or a file that is not a 32x32 image.
    """
    from bench.data.image_files import read_listing

    parts: list[Part] = []
    for folder in ("train", "test"):
        classes = scan(tree / folder, name)
        if tuple(classes) != class_names or not all(classes.values()):
            raise BadData(
                f"data set '{name}': expected images in each of {', '.join(class_names)} under {tree / folder}; "
                f"unpack the whole archive again"
            )
        parts.append(list_part(classes, class_names))
    train, test = parts
    listed = Listing(name, tree, class_names, train, test, Decoding(_UNPACKED_SIDE, exact=True))
    return read_listing(listed, replace(request, size=None))


def find_tree(path: Path, name: str) -> Tree:
    """Find the parts and classes in a user's folder.

    A folder with the name of a part is a part if it has class folders, if there is another part, or if it is the
    only folder. Otherwise it is a class, as the other folders are.

    Raises:
        BenchError: several folders of one part, a test without a training part, or the reverse.
    """
    folders, notes = subfolders(path), []
    loose = [entry.name for entry in os.scandir(path) if entry.name.lower().endswith(_IMAGE_SUFFIXES)]
    if count := len([file for file in loose if not is_clutter(file)]):
        notes.append(f"{count} image files of {path} are in no class folder and not read")
    parts: dict[str, str] = {}
    for folder in folders:
        part = part_of(folder)
        if part in parts:
            both = f"{parts[part]}/ and {folder}/"
            raise BadData(f"data set '{name}': {path} has {both}, which mean the same part; keep one")
        if part is not None:
            parts[part] = folder
    others = [folder for folder in folders if part_of(folder) is None]
    if len(parts) == 1 and others and not subfolders(path / next(iter(parts.values()))):
        notes.append(f"{next(iter(parts.values()))}/ is a class: it has no class folders")
        parts = {}
    if not parts:
        inner = subfolders(path / folders[0]) if len(folders) == 1 else []
        if len(inner) > 1:  # archives are often unpacked into a folder around the data set
            raise BadData(
                f"data set '{name}': {path} has one folder, {folders[0]}/, with {len(inner)} folders in it; "
                f"give that one, {path / folders[0]}"
            )
        return Tree(path, None, tuple(notes))
    if "train" not in parts:
        raise BadData(
            f"data set '{name}': {path} has {_listed(parts.values())} and no folder for training; add train/, or give "
            "the folder above the classes"
        )
    if others:
        notes.append(f"{_listed(others)} not read: neither training nor test")
    return _tree_of_parts(path, parts, notes, name)


def _tree_of_parts(path: Path, parts: dict[str, str], notes: list[str], name: str) -> Tree:
    """Return the tree of a training part and a test part: test, or val if test has no class folders."""
    train = path / parts["train"]
    if not subfolders(train):
        raise BadData(f"data set '{name}': {train} has no class folders; put its images into {train}/CLASS/")
    candidates = [parts[part] for part in ("test", "val") if part in parts]
    labelled = [folder for folder in candidates if subfolders(path / folder)]
    notes += [f"{folder}/ has no class folders and is not read" for folder in candidates if folder not in labelled]
    if not labelled:
        fault = f"{_listed(candidates)} without class folders" if candidates else "neither test/ nor val/"
        raise BadData(
            f"data set '{name}': {path} has {parts['train']}/ but {fault}; add one, with the classes of "
            f"{parts['train']}/"
        )
    notes += [f"{folder}/ is not read: {labelled[0]}/ is the test part" for folder in labelled[1:]]
    if (parts["train"], labelled[0]) != ("train", "test"):
        notes.append(f"{parts['train']}/ is the training part, {labelled[0]}/ the test part")
    return Tree(train, path / labelled[0], tuple(notes))


def _listed(folders: Iterable[str]) -> str:
    return " and ".join(f"{folder}/" for folder in folders)


def part_of(folder: str) -> str | None:
    """Return the part that a folder's name denotes, "train", "test" or "val"; None for any other name."""
    word = folder.lower().replace("-", "_").replace(" ", "_")
    return next((part for part, words in PART_WORDS.items() if word in words), None)


def is_clutter(name: str) -> bool:
    """Return whether a file or folder is hidden, or was created by an operating system or file manager."""
    return name.startswith(".") or name.lower() in _CLUTTER


def subfolders(path: Path) -> list[str]:
    """List the folders in a folder, sorted, without clutter. Raises OSError."""
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not is_clutter(entry.name))


def scan(folder: Path, name: str) -> Classes:
    """Return the files of each class at any depth, both sorted; hidden files and clutter are left out."""

    def refuse(error: OSError) -> None:
        raise error

    classes: Classes = {}
    try:
        for class_name in subfolders(folder):
            found: list[Path] = []
            for base, folders, files in os.walk(folder / class_name, onerror=refuse):
                folders[:] = [each for each in folders if not is_clutter(each)]
                found += [Path(base, each) for each in files if not is_clutter(each)]
            classes[class_name] = sorted(found, key=Path.as_posix)
    except OSError as error:
        raise BadData(f"data set '{name}': cannot list {folder} ({error.strerror}); check the path") from error
    return classes


def list_part(classes: Classes, order: Sequence[str]) -> Part:
    """Return the files of classes, class by class; a label is the class's position in `order`."""
    numbers = {name: number for number, name in enumerate(order)}
    files = [(file, numbers[name]) for name, found in classes.items() for file in found]
    return Part([file for file, _ in files], [label for _, label in files])


def rename_like(train: Classes, test: Classes) -> Classes:
    """Return the test classes, renamed to the training classes' names where these differ only in case."""
    names: dict[str, list[str]] = {}
    for class_name in train:
        names.setdefault(class_name.casefold(), []).append(class_name)
    renamed: Classes = {}
    for class_name, files in test.items():
        same = [class_name] if class_name in train else names.get(class_name.casefold(), [])
        known = same[0] if len(same) == 1 and (same[0] == class_name or same[0] not in test) else class_name
        renamed[known] = files
    return renamed


def held_out_files(files: Sequence[Path], base: Path, group_of: GroupOf | None = None) -> list[Path]:
    """Return the sixth of a class's files with the smallest SHA-256 of their names below `base`, sorted.

    If the files have groups, return those of the groups that are held out.
    """
    if group_of is not None:
        return [file for file in files if groups.is_held_out(group_of(file))]
    order = sorted(files, key=lambda file: hashlib.sha256(os.fsencode(file.relative_to(base).as_posix())).digest())
    return sorted(order[: len(files) // 6])


def check_classes(train: Classes, test: Classes, path: Path, name: str) -> None:
    """Raise BadData if the classes of the two parts differ, or if one has no images for training."""
    if len(train) < 2:
        raise BadData(f"data set '{name}': {len(train)} class folder(s) for training in {path}, expected 2 or more")
    if not any(train.values()):
        raise BadData(f"data set '{name}': no images for training in {path}; expected image files in class folders")
    empty = [f"'{class_name}'" for class_name, files in train.items() if not files]
    if empty:
        more = f" and {len(empty) - _NAMED} more" if len(empty) > _NAMED else ""
        plural, them = ("es", "them") if len(empty) > 1 else ("", "it")
        raise BadData(
            f"data set '{name}': no training images in class{plural} {', '.join(empty[:_NAMED])}{more} of {path}; "
            f"remove or fill {them}, or leave {them} out with --skip-broken"
        )
    extra = sorted(set(test) - set(train))
    if extra:
        raise BadData(f"data set '{name}': test class '{extra[0]}' of {path} has no training folder; add or remove it")
    if not any(test.values()):
        raise BadData(
            f"data set '{name}': no test images in {path}; fill PATH/test, or give a class 6 files to hold one out"
        )
