"""Read a data set of image files: decode every file once, in parallel, and divide the images into their parts.

The decoded images are one array in the store, which is mapped into memory. Its key covers everything that it depends
on: names, sizes and times of the files, and how they are cropped and resized. The store guarantees that the array is
complete or absent, even if processes are killed, and that concurrent processes compute it once. Rows of unreadable
files are black and listed next to the array; the reader refuses or omits them. Two hashes of every image are kept, by
which duplicates are found.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bench.data.dataset import Decoding, Keep, Listing, Request, Source
from bench.data.images import FILE, ImageData, map_images, select_images
from bench.data.opening import DEEP, FRAMES, TRANSPARENT, TURNED, Broken, is_grey, name_of, open_image
from bench.errors import BadData
from bench.progress import track
from bench.workers import cores

VERSION = 2
"""Version of the decoding; a new version decodes all files again."""
INDEX, BROKEN, DONE = "index.npz", "broken.json", "done.json"
GREY, NOT_SQUARE = "grey", "not square"
"""Properties of files that are counted in addition to the changes of single images (`bench.data.opening`)."""
_PER_TASK = 64
_NAMED = 10
"""Number of broken files that an error names."""
_HASH_BYTES = 16
_DIFFERENCE_SIZE = (9, 8)
"""Width and height to which an image is reduced for its difference hash."""


@dataclass(frozen=True, eq=False)
class ImageHashes:
    """Hashes of n images.

    Attributes:
        pixels: (n, 16) uint8, the first bytes of the SHA-256 of the pixels; equal for exact duplicates.
        difference: (n,) uint64, difference hashes, which mostly survive re-encoding; equal for most near-duplicates.
    """

    pixels: NDArray[np.uint8]
    difference: NDArray[np.uint64]

    def __getitem__(self, rows: NDArray[np.int64]) -> ImageHashes:
        return ImageHashes(self.pixels[rows], self.difference[rows])

    def keys(self) -> list[bytes]:
        """Return the hashes of the pixels as keys of a set."""
        return [row.tobytes() for row in self.pixels]


def pixel_key(image: NDArray[np.uint8]) -> bytes:
    """Return the 16-byte hash of an image's pixels in their stored order, (c, h, w)."""
    return hashlib.sha256(np.ascontiguousarray(image).data).digest()[:_HASH_BYTES]


def pixel_keys(images: Tensor) -> list[bytes]:
    """Return `pixel_key` of each of (n, c, h, w) uint8 images."""
    return [pixel_key(image) for image in images.numpy()]


def difference_hash(image: Image.Image) -> np.uint64:
    """Return 64 bits: whether each of 8x9 grey cells is brighter than its left neighbour (dHash)."""
    small = np.asarray(image.convert("L").resize(_DIFFERENCE_SIZE), dtype=np.int16)
    return np.packbits(small[:, 1:] > small[:, :-1]).view(">u8").astype(np.uint64)[0]


@dataclass(frozen=True, eq=False)
class Decoded:
    """The decoded files of a data set.

    Attributes:
        images: (n, c, h, w) uint8, black where a file is broken.
        hashes: hashes of all images.
        broken: row of each broken file to its fault.
        done: name of a change or a property of files to the number of files that have it.
    """

    images: Tensor
    hashes: ImageHashes
    broken: dict[int, str]
    done: dict[str, int]


def read_listing(listed: Listing, request: Request) -> ImageData:
    """Read the listed data set, without its broken files.

    Raises:
        BenchError: files cannot be read, unless the request omits them; or too few are left then.
    """
    parts = [listed.train] if listed.test is None else [listed.train, listed.test]
    files = [*(file for part in parts for file in part.files), *listed.outsiders]
    side, channels = request.size or listed.decoding.side, request.channels or listed.decoding.channels
    decoding = replace(listed.decoding, side=side, channels=channels)
    decoded = decode(files, listed.base, decoding, request.keep)
    if decoded.broken and not request.skip_broken:
        raise broken_files_error(decoded.broken, files, listed.name)

    labels = torch.tensor([label for part in parts for label in part.labels], dtype=torch.int64)
    numbers = [number for part in parts for number in part.groups or ()]
    groups = torch.tensor(numbers, dtype=torch.int64) if all(part.groups is not None for part in parts) else None
    is_intact = torch.ones(len(files), dtype=torch.bool)
    is_intact[list(decoded.broken)] = False
    intact = is_intact[: len(labels)]
    is_test = find_test_rows(listed, labels, intact, decoded.hashes)
    train, test = (intact & ~is_test).nonzero().flatten(), (intact & is_test).nonzero().flatten()
    others = is_intact[len(labels) :].nonzero().flatten() + len(labels)
    empty = sorted(set(range(len(listed.class_names))) - set(labels[train].tolist()))
    if empty or not len(test):
        lost = f"no training image of class '{listed.class_names[empty[0]]}'" if empty else "no test image"
        raise BadData(f"data set '{listed.name}': {lost} is left of {listed.base}; add images, or repair broken files")

    content = "" if request.keep is None else hashlib.sha256(decoded.hashes.pixels.tobytes()).hexdigest()
    images = [select_images(decoded.images, rows, request.keep, content) for rows in (train, test, others)]
    hashes = [decoded.hashes[rows.numpy()] for rows in (train, test, others)]
    return ImageData(
        *(listed.name, images[0], labels[train], images[1], labels[test], listed.class_names),
        train_groups=None if groups is None else groups[train],
        test_groups=None if groups is None else groups[test],
        outsiders=images[2] if listed.outsiders else None,
        train_hashes=hashes[0],
        test_hashes=hashes[1],
        outsider_hashes=hashes[2] if listed.outsiders else None,
        left_out=(*listed.left_out, *(name_of(files[row], listed.base) for row in decoded.broken)),
        conversions=(*listed.notes, *describe_changes(decoded, len(files), decoding)),
    )


def find_test_rows(listed: Listing, labels: Tensor, intact: Tensor, hashes: ImageHashes) -> Tensor:
    """Return (n,) bool, which of all labelled files are the test set.

    These are the official test part or, if there is none, the images of each class with the smallest hashes.
    """
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    if listed.test is not None:
        is_test[len(listed.train.labels) :] = True
        return is_test
    for label in range(len(listed.class_names)):
        rows = ((labels == label) & intact).nonzero().flatten()
        order = sorted(zip(hashes[rows.numpy()].keys(), rows.tolist(), strict=True))
        chosen = [row for _, row in order[: len(rows) // listed.hold_out]]
        is_test[torch.tensor(chosen, dtype=torch.int64)] = True
    return is_test


def broken_files_error(broken: dict[int, str], files: Sequence[Source], name: str) -> BadData:
    """Return the error that names the first ten unreadable files."""
    faults = [f"{files[row]} {fault}" for row, fault in broken.items()]
    if len(faults) == 1:
        return BadData(f"data set '{name}': {faults[0]}, or leave it out with --skip-broken")
    more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
    return BadData(
        f"data set '{name}': {len(faults)} of {len(files)} image files cannot be read: {'; '.join(faults[:_NAMED])}"
        f"{more}. Repair or remove them, or leave them out with --skip-broken"
    )


def describe_changes(decoded: Decoded, count: int, decoding: Decoding) -> list[str]:
    """Return sentences on changes of the images and decisions about them."""
    channels, done = decoded.images.shape[1], decoded.done
    read = count - len(decoded.broken)
    reason = "as declared"
    if decoding.channels is None:
        colour = read - done.get(GREY, 0)
        are = "is" if colour in (0, 1) else "are"
        reason = f"as {colour or 'none'} of {read} images {are} in colour; --channels 1 or 3 declares it"
    square = {
        "crop": "cut to their central square; --fit pad or stretch keeps the rest",
        "pad": "padded to squares with black bars",
        "stretch": "stretched to squares",
    }[decoding.fit]
    low_high = decoding.pixel_range
    full = "the full range of their format" if low_high is None else f"{low_high[0]:g} to {low_high[1]:g}"
    changes = {
        NOT_SQUARE: f"not square, {square}" if decoding.box is None else "",
        TURNED: "turned as their EXIF orientation says",
        TRANSPARENT: "transparent pixels were put on white",
        DEEP: f"of more than 8 bits; {full} became 0 to 255",
        FRAMES: "several frames, of which the first was read",
    }
    return [
        f"{channels} channel{'s' * (channels > 1)}, {reason}",
        *(f"{done[key]} of {read} images: {text}" for key, text in changes.items() if text and done.get(key)),
        f"resized to {decoding.side}x{decoding.side} pixels",
    ]


def decode(files: Sequence[Source], base: Path, decoding: Decoding, keep: Keep | None) -> Decoded:
    """Return the images of files, from the store if they are there; with `keep` None they are decoded each time.

    Args:
        files: at least one file below `base`; or images stored inside such files.
    """

    def make(path: Path) -> None:
        decode_files(path, files, decoding)

    if keep is None:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            return _read_decoded(Path(folder))  # a mapped file stays readable after its folder was removed
    digest = hashlib.sha256(f"{base.resolve()}\n".encode("utf-8", "surrogateescape"))
    for file in files:
        if isinstance(file, Path):
            try:
                stat = os.stat(file)
                version = f"{stat.st_size} {stat.st_mtime_ns}"
            except OSError as error:
                version = str(error.errno)
        else:
            version = file.version
        digest.update(f"{name_of(file, base)}\0{version}\n".encode("utf-8", "surrogateescape"))
    spec: dict[str, object] = {"kind": "decoded", "version": VERSION}
    spec |= {"look": asdict(decoding), "files": digest.hexdigest()}
    return _read_decoded(keep("decoded", spec, make))


def _read_decoded(path: Path) -> Decoded:
    with np.load(path / INDEX) as index:
        shape, hashes = tuple(int(n) for n in index["shape"]), ImageHashes(index["exact"], index["look"])
    broken = json.loads((path / BROKEN).read_text(encoding="utf-8"))
    done = json.loads((path / DONE).read_text(encoding="utf-8"))
    return Decoded(map_images(path / FILE, shape), hashes, {int(row): fault for row, fault in broken.items()}, done)


def decode_files(path: Path, files: Sequence[Source], decoding: Decoding) -> None:
    """Decode files in parallel; write the array, its hashes, the broken files and the changes to the folder `path`."""
    hashes = ImageHashes(np.zeros((len(files), _HASH_BYTES), np.uint8), np.zeros(len(files), np.uint64))
    broken: dict[int, str] = {}
    changes: Counter[str] = Counter()
    with ThreadPoolExecutor(cores()) as pool:
        channels = decoding.channels or (1 if _all_grey(files, pool) else 3)
        shape = (len(files), channels, decoding.side, decoding.side)
        with (path / FILE).open("wb") as stream, track("decode images", len(files)) as advance:
            stream.truncate(int(np.prod(shape)))

            def decode_batch(start: int) -> Counter[str]:
                counts: Counter[str] = Counter()
                batch = files[start : start + _PER_TASK]
                images = np.zeros((len(batch), *shape[1:]), np.uint8)
                for row, file in enumerate(batch):
                    try:
                        image, found = decode_file(file, decoding, channels)
                    except Broken as error:
                        broken[start + row] = str(error)
                        continue
                    counts.update(found)
                    images[row] = np.asarray(image).reshape(decoding.side, decoding.side, channels).transpose(2, 0, 1)
                    hashes.pixels[start + row] = np.frombuffer(pixel_key(images[row]), np.uint8)
                    hashes.difference[start + row] = difference_hash(image)
                os.pwrite(stream.fileno(), images.data, start * images[0].size)
                return counts

            starts = range(0, len(files), _PER_TASK)
            for start, counts in zip(starts, pool.map(decode_batch, starts), strict=True):
                changes.update(counts)
                advance(min(_PER_TASK, len(files) - start))
            os.fsync(stream.fileno())
    with (path / INDEX).open("wb") as stream:
        np.savez(stream, shape=shape, exact=hashes.pixels, look=hashes.difference)
        os.fsync(stream.fileno())
    (path / DONE).write_text(json.dumps(changes, sort_keys=True), encoding="utf-8")
    (path / BROKEN).write_text(json.dumps({str(row): broken[row] for row in sorted(broken)}), encoding="utf-8")


def _all_grey(files: Sequence[Source], pool: ThreadPoolExecutor) -> bool:
    """Return whether all files are stored as grey; it opens files only up to the first batch with a coloured one."""
    batches = (files[start : start + _PER_TASK] for start in range(0, len(files), _PER_TASK))
    return all(all(pool.map(is_grey, batch)) for batch in batches)


def decode_file(file: Source, decoding: Decoding, channels: int) -> tuple[Image.Image, list[str]]:
    """Open a file's image, crop, resize and convert it; return it with its counted changes. Raises Broken."""
    opened = open_image(file, decoding.pixel_range)
    image, counted, side = opened.image, list(opened.done), decoding.side
    if decoding.exact and image.size != (side, side):
        raise Broken(f"is {image.width}x{image.height}, expected {side}x{side}; unpack it again")
    if image.width != image.height:
        counted.append(NOT_SQUARE)
    if opened.is_grey and decoding.channels is None:
        counted.append(GREY)
    if decoding.box is not None:
        scale = image.size * 2
        left, top, right, bottom = (round(share * length) for share, length in zip(decoding.box, scale, strict=True))
        image = image.crop((left, top, right, bottom))
    elif decoding.fit != "stretch" and image.width != image.height:
        square = min(image.size) if decoding.fit == "crop" else max(image.size)
        left, top = (image.width - square) // 2, (image.height - square) // 2
        image = image.crop((left, top, left + square, top + square))  # pixels outside of the image are black
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    return image.convert("L" if channels == 1 else "RGB"), counted
