"""Find the folders of a user's training, test and validation parts, and of the classes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BadData

PART_WORDS = {
    "train": ("train", "training", "trainset", "train_set", "training_set"),
    "test": ("test", "testing", "tests", "testset", "test_set", "testing_set"),
    "val": ("val", "valid", "validation", "dev", "eval", "valset", "val_set", "validation_set"),
}
"""Folder names of the parts, in any case and with - or _."""
_CLUTTER = frozenset(
    ("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin", "lost+found", "icon\r")
)
_SYSTEM = "system volume information"
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class Tree:
    """The folders to read: training and test part, each with one folder per class; or only `train`, of which a part is
    held out. `notes` are sentences on decisions and on folders that are not read."""

    train: Path
    test: Path | None
    notes: tuple[str, ...] = ()


def is_clutter(name: str) -> bool:
    """Whether a file or folder is hidden, or created by an operating system or file manager."""
    return name.startswith(".") or name.lower() in _CLUTTER or name.lower() == _SYSTEM


def find_tree(path: Path, name: str) -> Tree:
    """Find the parts and classes in a user's folder.

    A folder with the name of a part is a part if it has class folders, if there is another part, or if it is the
    only folder. Otherwise it is a class, as the other folders are.

    Raises:
        BenchError: several folders of one part, a test without a training part, or the reverse.
    """
    folders, notes = subfolders(path), _files_beside(path)
    parts = _parts(folders, path, name)
    others = [folder for folder in folders if part_of(folder) is None]
    if len(parts) == 1 and others and not subfolders(path / next(iter(parts.values()))):
        notes.append(f"{next(iter(parts.values()))}/ is a class: it has no class folders")
        parts = {}
    if not parts:
        _check_one_level_down(path, folders, name)
        return Tree(path, None, tuple(notes))
    if "train" not in parts:
        raise BadData(
            f"data set '{name}': {path} has {_listed(parts.values())} and no folder for training; add train/, or give "
            "the folder above the classes"
        )
    if others:
        notes.append(f"{_listed(others)} not read: neither training nor test")
    return _with_test(path, parts, notes, name)


def part_of(folder: str) -> str | None:
    """Return the part that a folder's name means; None for any other name."""
    word = folder.lower().replace("-", "_").replace(" ", "_")
    return next((part for part, words in PART_WORDS.items() if word in words), None)


def subfolders(path: Path) -> list[str]:
    """List the folders in a folder, sorted, without clutter. Raises OSError."""
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not is_clutter(entry.name))


def _parts(folders: list[str], path: Path, name: str) -> dict[str, str]:
    """Return the folder of each part by its name."""
    found: dict[str, str] = {}
    for folder in folders:
        part = part_of(folder)
        if part is None:
            continue
        if part in found:
            raise BadData(
                f"data set '{name}': {path} has {found[part]}/ and {folder}/, which mean the same part; keep one"
            )
        found[part] = folder
    return found


def _with_test(path: Path, parts: dict[str, str], notes: list[str], name: str) -> Tree:
    """Return the tree of a training part and a test part: test, or val if test has no class folders."""
    train = path / parts["train"]
    if not subfolders(train):
        raise BadData(f"data set '{name}': {train} has no class folders; put its images into {train}/CLASS/")
    candidates = [parts[part] for part in ("test", "val") if part in parts]
    labelled = [folder for folder in candidates if subfolders(path / folder)]
    notes += [f"{folder}/ has no class folders and is not read" for folder in candidates if folder not in labelled]
    if not labelled:
        lack = f"{_listed(candidates)} without class folders" if candidates else "neither test/ nor val/"
        raise BadData(
            f"data set '{name}': {path} has {parts['train']}/ but {lack}; add one, with the classes of "
            f"{parts['train']}/"
        )
    notes += [f"{folder}/ is not read: {labelled[0]}/ is the test part" for folder in labelled[1:]]
    if (parts["train"], labelled[0]) != ("train", "test"):
        notes.append(f"{parts['train']}/ is the training part, {labelled[0]}/ the test part")
    return Tree(train, path / labelled[0], tuple(notes))


def _check_one_level_down(path: Path, folders: list[str], name: str) -> None:
    """Refuse the parent folder of the data set; archives are often unpacked into one."""
    if len(folders) != 1:
        return
    inner = subfolders(path / folders[0])
    if len(inner) > 1:
        raise BadData(
            f"data set '{name}': {path} holds one folder, {folders[0]}/, with {len(inner)} folders in it; "
            f"give that one, {path / folders[0]}"
        )


def _files_beside(path: Path) -> list[str]:
    """Return a sentence about image files outside the class folders."""
    found = [entry.name for entry in os.scandir(path) if entry.name.lower().endswith(_IMAGE_SUFFIXES)]
    count = len([name for name in found if not is_clutter(name)])
    return [f"{count} image files of {path} are in no class folder and not read"] if count else []


def _listed(folders: Iterable[str]) -> str:
    return " and ".join(f"{folder}/" for folder in folders)
