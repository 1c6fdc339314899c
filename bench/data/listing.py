"""A data set of image files as a list: the class and part of each file; and the reader of listed files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import LongTensor, Tensor

from bench.data import marks
from bench.data.decoded import GREY, NOT_SQUARE, Decoded, Look, decode
from bench.data.images import ImageData
from bench.data.marks import Marks
from bench.data.opening import DEEP, FRAMES, TRANSPARENT, TURNED, Source, name_of
from bench.data.request import Request
from bench.data.rows import take
from bench.errors import BadData

_NAMED = 10
"""Number of broken files that an error names."""


@dataclass(frozen=True)
class Part:
    """Images with the class number of each one and, where known, the person on it."""

    files: Sequence[Source]
    labels: Sequence[int]
    people: Sequence[int] | None = None


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
        look: how a file becomes an image; a request for another size changes its side.
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
    look: Look
    outsiders: Sequence[Path] = ()
    hold_out: int = 6
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(listed: Listing, asked: Request) -> ImageData:
    """Read the listed data set; files are decoded once.

    Raises:
        BenchError: files cannot be read, unless the request omits them; or too few are left then.
    """
    parts = [listed.train] + ([] if listed.test is None else [listed.test])
    files = [file for part in parts for file in part.files] + list(listed.outsiders)
    side, channels = asked.size or listed.look.side, asked.channels or listed.look.channels
    look = replace(listed.look, side=side, channels=channels)
    decoded = decode(files, listed.base, look, asked.keep)
    _check_broken(decoded, files, listed.name, asked.skip_broken)
    return _assemble(listed, decoded, files, asked, _conversions(decoded, len(files), look))


def _check_broken(decoded: Decoded, files: Sequence[Source], name: str, skip: bool) -> None:
    if not decoded.broken or skip:
        return
    found = [f"{files[row]} {said}" for row, said in decoded.broken.items()]
    if len(found) == 1:
        raise BadData(f"data set '{name}': {found[0]}, or leave it out with --skip-broken")
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    said = "; ".join(found[:_NAMED]) + more
    raise BadData(
        f"data set '{name}': {len(found)} of {len(files)} image files cannot be read: {said}. "
        "Mend or remove them, or leave them out with --skip-broken"
    )


def _conversions(decoded: Decoded, count: int, look: Look) -> tuple[str, ...]:
    """Return sentences on changes of the images and decisions about them."""
    channels, done, said = decoded.images.shape[1], decoded.done, []
    read = count - len(decoded.broken)
    which = "as declared"
    if look.channels is None:
        colour = read - done.get(GREY, 0)
        are = "is" if colour in (0, 1) else "are"
        which = f"as {colour or 'none'} of {read} images {are} in colour; --channels 1 or 3 declares it"
    said.append(f"{channels} channel{'s' * (channels > 1)}, {which}")
    square = {
        "crop": "cut to their central square; --fit pad or stretch keeps the rest",
        "pad": "padded to squares with black bars",
        "stretch": "stretched to squares",
    }[look.fit]
    low, high = look.pixel_range or (None, None)
    full = "the full range of their format" if low is None else f"{low:g} to {high:g}"
    sentences = {
        NOT_SQUARE: f"not square, {square}" if look.box is None else "",
        TURNED: "turned as their EXIF orientation says",
        TRANSPARENT: "transparent pixels were put on white",
        DEEP: f"of more than 8 bits; {full} became 0 to 255",
        FRAMES: "several frames, of which the first was read",
    }
    said += [f"{done[key]} of {read} images: {text}" for key, text in sentences.items() if text and done.get(key)]
    return (*said, f"resized to {look.side}x{look.side} pixels")


def _assemble(
    listed: Listing, decoded: Decoded, files: Sequence[Source], asked: Request, conversions: tuple[str, ...]
) -> ImageData:
    """Build the parts of the data set, without the broken files."""
    labelled = listed.train if listed.test is None else _joined(listed.train, listed.test)
    labels = torch.tensor(labelled.labels, dtype=torch.int64)
    people = None if labelled.people is None else torch.tensor(labelled.people, dtype=torch.int64)
    sound = torch.ones(len(files), dtype=torch.bool)
    sound[list(decoded.broken)] = False
    is_test = _test_rows(listed, labels, sound, decoded.marks)
    known = sound[: len(labels)]
    train, test = (known & ~is_test).nonzero().flatten(), (known & is_test).nonzero().flatten()
    _check_left(listed, labels, train, test)
    content = "" if asked.keep is None else _content(decoded.marks)
    images = {"train": train, "test": test, "outsiders": sound[len(labels) :].nonzero().flatten() + len(labels)}
    taken = {part: take(decoded.images, rows, asked.keep, content) for part, rows in images.items()}
    found = {part: decoded.marks[rows.numpy()] for part, rows in images.items()}
    return ImageData(
        listed.name,
        taken["train"],
        labels[train],
        taken["test"],
        labels[test],
        listed.class_names,
        train_people=None if people is None else people[train],
        test_people=None if people is None else people[test],
        outsiders=taken["outsiders"] if listed.outsiders else None,
        train_marks=found["train"],
        test_marks=found["test"],
        outsider_marks=found["outsiders"] if listed.outsiders else None,
        left_out=(*listed.left_out, *(name_of(files[row], listed.base) for row in decoded.broken)),
        conversions=(*listed.notes, *conversions),
    )


def _joined(one: Part, other: Part) -> Part:
    people = None if one.people is None or other.people is None else [*one.people, *other.people]
    return Part([*one.files, *other.files], [*one.labels, *other.labels], people)


def _test_rows(listed: Listing, labels: Tensor, sound: Tensor, found: Marks) -> Tensor:
    """Return (n,) bool over all labelled files: the test set."""
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    if listed.test is not None:
        is_test[len(listed.train.labels) :] = True
        return is_test
    for label in range(len(listed.class_names)):
        rows = ((labels == label) & sound[: len(labels)]).nonzero().flatten().tolist()
        is_test[_smallest(rows, marks.keys(found.exact[rows]), len(rows) // listed.hold_out)] = True
    return is_test


def _smallest(rows: Sequence[int], hashes: Iterable[bytes], count: int) -> LongTensor:
    order = sorted(zip(hashes, rows, strict=True))
    return torch.tensor([row for _, row in order[:count]], dtype=torch.int64)  # type: ignore[return-value]


def _check_left(listed: Listing, labels: Tensor, train: Tensor, test: Tensor) -> None:
    empty = sorted(set(range(len(listed.class_names))) - set(labels[train].tolist()))
    if empty or not len(test):
        what = f"no training image of class '{listed.class_names[empty[0]]}'" if empty else "no test image"
        raise BadData(f"data set '{listed.name}': {what} is left of {listed.base}; add images, or mend broken files")


def _content(found: Marks) -> str:
    """Return a name for the images of all rows: the hash of their hashes."""
    return hashlib.sha256(found.exact.tobytes()).hexdigest()
