"""Image files decoded once, in parallel, into one array that is mapped from the store.

The array is a step of the store, named by what it depends on: names, sizes and times of the files, and how they are cut
and resized. So it is there whole or not at all, whatever is killed, and processes that need it at once make it once.
Rows of files that cannot be read are black and named beside the array; whoever asked for it refuses or leaves them out.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
import zlib
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
from bench.data.request import Keep
from bench.data.rows import FILE, mapped
from bench.progress import track

VERSION = 1
"""Of what decoding gives; with another one the files are decoded again."""
INDEX, BROKEN = "index.npz", "broken.json"
BAD_IMAGE = (OSError, EOFError, ValueError, SyntaxError, struct.error, zlib.error, Image.DecompressionBombError)
_PER_TASK = 64

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Look:
    """How an image file becomes an image of the data set.

    Attributes:
        side: of the square image, in pixels.
        channels: 1 = grey, 3 = RGB; None = grey if every file is (PIL modes L and 1), else RGB.
        box: what is cut out of the file's image: left, top, right, bottom in shares of its width and height.
            None = the central square.
        exact: whether a file of another size than side x side is refused.
    """

    side: int
    channels: int | None = 3
    box: Box | None = None
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Decoded:
    """All files as images (n, c, h, w) uint8, black where a file is broken; row to what is wrong with a broken file."""

    images: Tensor
    marks: Marks
    broken: dict[int, str]


def decode(files: Sequence[Path], base: Path, wanted: Look, keep: Keep | None) -> Decoded:
    """The images of files, from the store if they are there; with `keep` None they are decoded each time.

    Args:
        files: below `base`, at least one.
    """

    def make(path: Path) -> None:
        _write(path, files, wanted)

    if keep is not None:
        return _read(keep("decoded", _spec(files, base, wanted), make))
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return _read(Path(folder))  # a mapped file stays readable after its folder is gone


def _spec(files: Sequence[Path], base: Path, wanted: Look) -> dict[str, Any]:
    digest = hashlib.sha256(f"{base.resolve()}\n".encode("utf-8", "surrogateescape"))
    for file in files:
        try:
            stat = os.stat(file)
            said = f"{stat.st_size} {stat.st_mtime_ns}"
        except OSError as error:
            said = str(error.errno)
        digest.update(f"{file.relative_to(base).as_posix()}\0{said}\n".encode("utf-8", "surrogateescape"))
    return {"kind": "decoded", "version": VERSION, "look": asdict(wanted), "files": digest.hexdigest()}


def _write(path: Path, files: Sequence[Path], wanted: Look) -> None:
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        channels = wanted.channels or (1 if all(pool.map(_is_grey, files, chunksize=_PER_TASK)) else 3)
        shape = (len(files), channels, wanted.side, wanted.side)
        found = Marks(np.zeros((len(files), EXACT), np.uint8), np.zeros(len(files), np.uint64))
        broken: dict[int, str] = {}
        with (path / FILE).open("wb") as stream, track("decode images", len(files)) as advance:
            stream.truncate(int(np.prod(shape)))

            def some(start: int) -> int:
                images = np.zeros((len(files[start : start + _PER_TASK]), *shape[1:]), np.uint8)
                for place, file in enumerate(files[start : start + _PER_TASK]):
                    try:
                        image = _open(file, wanted, channels)
                    except _Broken as error:
                        broken[start + place] = str(error)
                        continue
                    images[place] = np.asarray(image).reshape(wanted.side, wanted.side, channels).transpose(2, 0, 1)
                    found.exact[start + place] = marks.exact(images[place])
                    found.look[start + place] = marks.look(image)
                os.pwrite(stream.fileno(), images.data, start * images[0].size)
                return len(images)

            for count in pool.map(some, range(0, len(files), _PER_TASK)):
                advance(count)
            os.fsync(stream.fileno())
    with (path / INDEX).open("wb") as stream:
        np.savez(stream, shape=shape, exact=found.exact, look=found.look)
        os.fsync(stream.fileno())
    (path / BROKEN).write_text(json.dumps({str(row): broken[row] for row in sorted(broken)}), encoding="utf-8")


def _read(path: Path) -> Decoded:
    with np.load(path / INDEX) as index:
        shape, found = tuple(int(n) for n in index["shape"]), Marks(index["exact"], index["look"])
    broken = json.loads((path / BROKEN).read_text(encoding="utf-8"))
    return Decoded(mapped(path / FILE, shape), found, {int(row): said for row, said in broken.items()})


class _Broken(Exception):
    """What is wrong with a file, to stand behind its name."""


def _is_grey(file: Path) -> bool:
    """Whether a file is grey, or no image: that is found out, and said, when it is decoded."""
    try:
        with Image.open(file) as opened:
            return opened.mode in ("L", "1")
    except BAD_IMAGE:
        return True


def _open(file: Path, wanted: Look, channels: int) -> Image.Image:
    """The image of a file, cut, resized and converted. Raises _Broken."""
    if not os.path.isfile(file):
        raise _Broken("is no regular file; remove it")
    try:
        with Image.open(file) as opened:
            if opened.mode.startswith(("I", "F")):
                raise _Broken("has more than 8 bits per pixel; convert it to 8 bits")
            image = opened.convert("L" if opened.mode in ("L", "1") else "RGB")
    except BAD_IMAGE as error:
        text = " ".join(str(error).split())
        raise _Broken(f"is not a readable image ({text[:300]}); mend or remove it") from error
    if wanted.exact and image.size != (wanted.side, wanted.side):
        raise _Broken(f"is {image.width}x{image.height}, expected {wanted.side}x{wanted.side}; unpack it again")
    return _resized(_cut(image, wanted.box), wanted.side).convert("L" if channels == 1 else "RGB")


def _cut(image: Image.Image, box: Box | None) -> Image.Image:
    if box is not None:
        width, height = image.size
        left, top, right, bottom = (
            round(share * length) for share, length in zip(box, (width, height) * 2, strict=True)
        )
        return image.crop((left, top, right, bottom))
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _resized(image: Image.Image, side: int) -> Image.Image:
    return image if image.size == (side, side) else image.resize((side, side), Image.Resampling.BILINEAR)
