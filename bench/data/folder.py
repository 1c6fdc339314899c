"""Image files in one folder per class: the user's own (`imagefolder:PATH`) and unpacked published sets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.data.decoded import Look
from bench.data.folder_parts import find_tree, is_clutter, subfolders
from bench.data.images import ImageData
from bench.data.listing import Listing, Part, read
from bench.data.naming import FILE_SIDE
from bench.data.request import Request
from bench.errors import BadData, NotFound

_UNPACKED_SIDE = 32
HELD_OUT = "no folder for the test: a sixth of each class's files is held out, by the hash of their names"
_NAMED = 10
"""Number of empty folders that an error names."""

Classes = dict[str, list[Path]]


def load_folder(path: Path, name: str, asked: Request) -> ImageData:
    """Read the images below `path`, made square as the request says and resized bilinearly.

    `find_tree` says which folders are the parts. Without a test part the folders in `path` are the classes, and of each
    class's n files the n // 6 with the smallest sha256 of "<class>/<file>" are the test set. Classes are numbered by
    sorted name. The images are grey (c = 1) if every file is stored so, else RGB (c = 3), unless the request says.

    Raises:
        BenchError: no such folder, train without test, fewer than 2 classes, a class without training images, no test
            images, a test class unknown to train, or a file that is not an image.
    """
    if not os.path.isdir(path):
        raise NotFound(f"data set '{name}': no folder {path}; expected PATH/{{train,test}}/CLASS/* or PATH/CLASS/*")
    try:
        tree = find_tree(path, name)
    except OSError as error:
        raise BadData(f"data set '{name}': cannot list {path} ({error.strerror}); check the path") from error
    if tree.test is not None:
        train, test = scan(tree.train, name), scan(tree.test, name)
        test = _named_as(train, test)
    else:
        train, test = _hold_out(scan(path, name), path)
    empty = [class_name for class_name, files in train.items() if not files]
    if empty and asked.skip_broken:
        train, test = ({c: files for c, files in part.items() if c not in empty} for part in (train, test))
    _check_classes(train, test, path, name)
    class_names = tuple(train)
    reading = asked.reading
    listed = Listing(
        name,
        path,
        class_names,
        part(train, class_names),
        part(test, class_names),
        Look(FILE_SIDE, channels=None, fit=reading.fit, pixel_range=reading.pixel_range),
        left_out=tuple(f"{(tree.train / class_name).relative_to(path).as_posix()}/" for class_name in empty),
        notes=tree.notes if tree.test is not None else (*tree.notes, HELD_OUT),
    )
    return read(listed, asked)


def load_unpacked(tree: Path, name: str, class_names: tuple[str, ...], asked: Request) -> ImageData:
    """Read a published set of colour images, (3, 32, 32), unpacked to files: tree/{train,test}/<class>/*.

    Pixels depend on the JPEG decoder, so that the fingerprint may differ between machines.

    Raises:
        BenchError: other classes than `class_names`, an empty class, or a file that is not a 32x32 image.
    """
    parts: list[Part] = []
    for folder in ("train", "test"):
        classes = scan(tree / folder, name)
        if tuple(classes) != class_names or not all(classes.values()):
            raise BadData(
                f"data set '{name}': expected images in each of {', '.join(class_names)} under {tree / folder}; "
                f"unpack the whole archive again"
            )
        parts.append(part(classes, class_names))
    look = Look(_UNPACKED_SIDE, exact=True)
    return read(Listing(name, tree, class_names, parts[0], parts[1], look), replace(asked, size=None))


def part(classes: Classes, order: Sequence[str]) -> Part:
    """Return the files of classes, class by class; a label is the class's position in `order`."""
    numbers = {name: number for number, name in enumerate(order)}
    files = [(file, numbers[name]) for name, found in classes.items() for file in found]
    return Part([file for file, _ in files], [label for _, label in files])


def scan(folder: Path, name: str) -> Classes:
    """Return the files of each class at any depth, both sorted; hidden files and clutter are left out."""
    try:
        return {class_name: _files(folder / class_name) for class_name in subfolders(folder)}
    except OSError as error:
        raise BadData(f"data set '{name}': cannot list {folder} ({error.strerror}); check the path") from error


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for base, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not is_clutter(name)]
        found += [Path(base, name) for name in files if not is_clutter(name)]
    return sorted(found, key=Path.as_posix)


def _named_as(train: Classes, test: Classes) -> Classes:
    """Rename test classes to the training classes' names if they differ only in case."""
    names: dict[str, list[str]] = {}
    for class_name in train:
        names.setdefault(class_name.casefold(), []).append(class_name)
    renamed: Classes = {}
    for class_name, files in test.items():
        same = [class_name] if class_name in train else names.get(class_name.casefold(), [])
        known = same[0] if len(same) == 1 and (same[0] == class_name or same[0] not in test) else class_name
        renamed[known] = files
    return renamed


def _refuse(error: OSError) -> None:
    raise error


def _hold_out(classes: Classes, path: Path) -> tuple[Classes, Classes]:
    train: Classes = {}
    test: Classes = {}
    for class_name, files in classes.items():
        order = sorted(files, key=lambda file: hashlib.sha256(os.fsencode(file.relative_to(path).as_posix())).digest())
        held_out = len(files) // 6
        test[class_name], train[class_name] = sorted(order[:held_out]), sorted(order[held_out:])
    return train, test


def _check_classes(train: Classes, test: Classes, path: Path, name: str) -> None:
    if len(train) < 2:
        raise BadData(f"data set '{name}': {len(train)} class folder(s) for training in {path}, expected 2 or more")
    if not any(train.values()):
        raise BadData(f"data set '{name}': no images for training in {path}; expected image files in class folders")
    empty = [f"'{class_name}'" for class_name, files in train.items() if not files]
    if empty:
        which = f"class{'es' * (len(empty) > 1)} {', '.join(empty[:_NAMED])}"
        more = f" and {len(empty) - _NAMED} more" if len(empty) > _NAMED else ""
        them = "them" if len(empty) > 1 else "it"
        raise BadData(
            f"data set '{name}': no training images in {which}{more} of {path}; remove or fill {them}, or leave {them} "
            "out with --skip-broken"
        )
    extra = sorted(set(test) - set(train))
    if extra:
        raise BadData(f"data set '{name}': test class '{extra[0]}' of {path} has no training folder; add or remove it")
    if not any(test.values()):
        raise BadData(
            f"data set '{name}': no test images in {path}; fill PATH/test, or give a class 6 files to hold one out"
        )
