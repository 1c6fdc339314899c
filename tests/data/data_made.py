"""Helpers of the tests of data sets: refusals, image files, and a pickle that leaves a trace."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from conftest import refuses
from PIL import Image

from bench import data
from bench.errors import BadData, BenchError

RNG = np.random.default_rng(0)


def refusal(name: str, *values: object, error: type[BenchError] = BadData, root: Path | None = None, **how: Any) -> str:
    """Load a data set, which must raise exactly `error` with one line that has all values; return the line."""
    with refuses(error, *values) as caught:
        data.load(name, root, **how)
    return str(caught.value)


def put(file: Path, value: int | None = None, mode: str = "RGB", size: tuple[int, int] = (32, 32)) -> Path:
    """Write an image of one colour, or of noise; `size` is (width, height)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if value is None:
        image = Image.fromarray(RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    else:
        image = Image.new("RGB", size, (value, value // 2, 255 - value))
    image.convert(mode).save(file)
    return file


class Evil:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def write_evil(file: Path, trap: Path) -> None:
    """Write a pickle that makes the folder `trap` when it is read; the trap is tried once."""
    file.write_bytes(pickle.dumps(Evil(trap)))
    pickle.loads(file.read_bytes())
    assert trap.exists(), "the trap works"
    trap.rmdir()
