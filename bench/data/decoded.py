"""Decode image files once, in parallel, into one array that is mapped from the store.

The array is a step of the store, named by all that it depends on: names, sizes and times of the files, and how they are
cropped and resized. So it is complete or absent, even if processes are killed, and concurrent processes make it once.
Rows of unreadable files are black and listed next to the array; the caller refuses or omits them.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from bench.data import marks
from bench.data.marks import EXACT, Marks
from bench.data.opening import Broken, PixelRange, Source, is_grey, name_of, open_image
from bench.data.request import Fit, Keep
from bench.data.rows import FILE, mapped
from bench.progress import track

VERSION = 2
"""Version of the decoding; a new version decodes all files again."""
INDEX, BROKEN, DONE = "index.npz", "broken.json", "done.json"
GREY, NOT_SQUARE = "grey", "not square"
"""Counted in addition to the changes of single images (`bench.data.opening`): files with these properties."""
_PER_TASK = 64

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Look:
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
    box: Box | None = None
    exact: bool = False
    fit: Fit = "crop"
    pixel_range: PixelRange | None = None


@dataclass(frozen=True, eq=False)
class Decoded:
    """All files as images (n, c, h, w) uint8, black where a file is broken; the fault of each broken row; and numbers
    of files by change, grey files and non-square files."""

    images: Tensor
    marks: Marks
    broken: dict[int, str]
    done: dict[str, int]


def decode(files: Sequence[Source], base: Path, wanted: Look, keep: Keep | None) -> Decoded:
    """Return the images of files, from the store if they are there; with `keep` None they are decoded each time.

    Args:
        files: at least one file below `base`; or images stored inside such files.
    """

    def make(path: Path) -> None:
        _write(path, files, wanted)

    if keep is not None:
        return _read(keep("decoded", _spec(files, base, wanted), make))
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return _read(Path(folder))  # a mapped file stays readable after its folder was removed


def _spec(files: Sequence[Source], base: Path, wanted: Look) -> dict[str, Any]:
    digest = hashlib.sha256(f"{base.resolve()}\n".encode("utf-8", "surrogateescape"))
    for file in files:
        digest.update(f"{name_of(file, base)}\0{_version(file)}\n".encode("utf-8", "surrogateescape"))
    return {"kind": "decoded", "version": VERSION, "look": asdict(wanted), "files": digest.hexdigest()}


def _version(file: Source) -> str:
    """Return size and time of a file."""
    if not isinstance(file, Path):
        return file.version
    try:
        stat = os.stat(file)
    except OSError as error:
        return str(error.errno)
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _write(path: Path, files: Sequence[Source], wanted: Look) -> None:
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        grey = [] if wanted.channels else list(pool.map(is_grey, files, chunksize=_PER_TASK))
        channels = wanted.channels or (1 if all(grey) else 3)
        shape = (len(files), channels, wanted.side, wanted.side)
        found = Marks(np.zeros((len(files), EXACT), np.uint8), np.zeros(len(files), np.uint64))
        broken: dict[int, str] = {}
        done: Counter[str] = Counter()
        with (path / FILE).open("wb") as stream, track("decode images", len(files)) as advance:
            stream.truncate(int(np.prod(shape)))

            def some(start: int) -> Counter[str]:
                counted: Counter[str] = Counter()
                images = np.zeros((len(files[start : start + _PER_TASK]), *shape[1:]), np.uint8)
                for place, file in enumerate(files[start : start + _PER_TASK]):
                    try:
                        image, found_in = _open(file, wanted, channels)
                    except Broken as error:
                        broken[start + place] = str(error)
                        continue
                    counted.update(found_in)
                    images[place] = np.asarray(image).reshape(wanted.side, wanted.side, channels).transpose(2, 0, 1)
                    found.exact[start + place] = marks.exact(images[place])
                    found.look[start + place] = marks.look(image)
                os.pwrite(stream.fileno(), images.data, start * images[0].size)
                return counted

            for start, counted in zip(starts := range(0, len(files), _PER_TASK), pool.map(some, starts), strict=True):
                done.update(counted)
                advance(min(_PER_TASK, len(files) - start))
            os.fsync(stream.fileno())
    if grey:
        done[GREY] = sum(known for row, known in enumerate(grey) if row not in broken)
    with (path / INDEX).open("wb") as stream:
        np.savez(stream, shape=shape, exact=found.exact, look=found.look)
        os.fsync(stream.fileno())
    (path / DONE).write_text(json.dumps(done, sort_keys=True), encoding="utf-8")
    (path / BROKEN).write_text(json.dumps({str(row): broken[row] for row in sorted(broken)}), encoding="utf-8")


def _read(path: Path) -> Decoded:
    with np.load(path / INDEX) as index:
        shape, found = tuple(int(n) for n in index["shape"]), Marks(index["exact"], index["look"])
    broken = json.loads((path / BROKEN).read_text(encoding="utf-8"))
    done = json.loads((path / DONE).read_text(encoding="utf-8"))
    return Decoded(mapped(path / FILE, shape), found, {int(row): said for row, said in broken.items()}, done)


def _open(file: Source, wanted: Look, channels: int) -> tuple[Image.Image, list[str]]:
    """Open a file's image, crop, resize and convert it; return it with its counted changes. Raises Broken."""
    opened = open_image(file, wanted.pixel_range)
    image, counted = opened.image, list(opened.done)
    if wanted.exact and image.size != (wanted.side, wanted.side):
        raise Broken(f"is {image.width}x{image.height}, expected {wanted.side}x{wanted.side}; unpack it again")
    if image.width != image.height:
        counted.append(NOT_SQUARE)
    return _resized(_cut(image, wanted), wanted.side).convert("L" if channels == 1 else "RGB"), counted


def _cut(image: Image.Image, wanted: Look) -> Image.Image:
    """Crop the box of an image, or make it square."""
    if wanted.box is not None:
        width, height = image.size
        left, top, right, bottom = (
            round(share * length) for share, length in zip(wanted.box, (width, height) * 2, strict=True)
        )
        return image.crop((left, top, right, bottom))
    if wanted.fit == "stretch":
        return image
    side = min(image.size) if wanted.fit == "crop" else max(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))  # pixels outside of the image are black


def _resized(image: Image.Image, side: int) -> Image.Image:
    return image if image.size == (side, side) else image.resize((side, side), Image.Resampling.BILINEAR)
