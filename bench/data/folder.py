"""Trees of image files, one folder per class: the user's own (`imagefolder:PATH`) and published sets unpacked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.data.decoded import Look
from bench.data.images import ImageData
from bench.data.listing import Listing, Part, read
from bench.data.request import Request
from bench.errors import BenchError

_UNPACKED_SIDE = 32

Classes = dict[str, list[Path]]


def load_folder(path: Path, name: str, asked: Request) -> ImageData:
    """Images below `path`, cut to their central square and resized bilinearly.

    With path/train, the test set is path/test, or path/val where there is no path/test. Otherwise the folders in
    `path` are the classes, and of each class's n files the n // 6 with the smallest sha256 of "<class>/<file>" are the
    test set. Classes are numbered by sorted name. Hidden files and files beside the class folders are left alone. The
    images are grey (c = 1) if every file is (PIL modes L and 1), else RGB (c = 3).

    Raises:
        BenchError: no such folder, train without test, fewer than 2 classes, a class without training images, no test
            images, a test class unknown to train, or a file that is not an 8-bit image.
    """
    if not os.path.isdir(path):
        raise BenchError(f"data set '{name}': no folder {path}; expected PATH/{{train,test}}/CLASS/* or PATH/CLASS/*")
    if os.path.isdir(path / "train"):
        train, test = scan(path / "train", name), scan(_test_folder(path, name), name)
    else:
        train, test = _hold_out(scan(path, name), path)
    _check_classes(train, test, path, name)
    class_names = tuple(train)
    listed = Listing(
        name,
        path,
        class_names,
        part(train, class_names),
        part(test, class_names),
        Look(asked.size or 32, channels=None),
    )
    return read(listed, asked)


def load_unpacked(tree: Path, name: str, class_names: tuple[str, ...], asked: Request) -> ImageData:
    """A published set of colour images, (3, 32, 32), unpacked to files: tree/{train,test}/<class>/*.

    Pixels depend on the JPEG decoder, so the fingerprint may differ between machines.

    Raises:
        BenchError: other classes than `class_names`, an empty class, or a file that is not a 32x32 image.
    """
    parts: list[Part] = []
    for folder in ("train", "test"):
        classes = scan(tree / folder, name)
        if tuple(classes) != class_names or not all(classes.values()):
            raise BenchError(
                f"data set '{name}': expected images in each of {', '.join(class_names)} under {tree / folder}; "
                f"unpack the whole archive again"
            )
        parts.append(part(classes, class_names))
    look = Look(_UNPACKED_SIDE, exact=True)
    return read(Listing(name, tree, class_names, parts[0], parts[1], look), replace(asked, size=None))


def part(classes: Classes, order: Sequence[str]) -> Part:
    """The files of classes, class by class; a label is the class's place in `order`."""
    numbers = {name: number for number, name in enumerate(order)}
    files = [(file, numbers[name]) for name, found in classes.items() for file in found]
    return Part([file for file, _ in files], [label for _, label in files])


def _test_folder(path: Path, name: str) -> Path:
    for part in ("test", "val"):
        if os.path.isdir(path / part):
            return path / part
    raise BenchError(f"data set '{name}': {path} has train/ but neither test/ nor val/; add one, with train's classes")


def scan(folder: Path, name: str) -> Classes:
    """Class name -> its files at any depth, both sorted; hidden ones left out."""
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
        return {class_name: _files(folder / class_name) for class_name in found}
    except OSError as error:
        raise BenchError(f"data set '{name}': cannot list {folder} ({error.strerror}); check the path") from error


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for base, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(base, name) for name in files if not name.startswith(".")]
    return sorted(found, key=Path.as_posix)


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
        raise BenchError(f"data set '{name}': {len(train)} class folder(s) for training in {path}, expected 2 or more")
    if not any(train.values()):
        raise BenchError(f"data set '{name}': no images for training in {path}; expected image files in class folders")
    for class_name, files in train.items():
        if not files:
            raise BenchError(
                f"data set '{name}': no training images in class '{class_name}' of {path}; remove or fill it"
            )
    extra = sorted(set(test) - set(train))
    if extra:
        raise BenchError(
            f"data set '{name}': test class '{extra[0]}' of {path} has no training folder; add or remove it"
        )
    if not any(test.values()):
        raise BenchError(
            f"data set '{name}': no test images in {path}; fill PATH/test, or give a class 6 files to hold one out"
        )
