"""Public images for the simulator `folder`: image files of a folder, or an array in an .npy or .npz file."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.data.arrays import Array, as_images, make_square, reshape_images
from bench.data.images import images_fingerprint
from bench.data.opening import Broken, open_image
from bench.errors import BadData, NotFound

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
KEYS = ("images", "x", "x_train", "train_images", "data", "arr_0")
"""Names of the array with the images in an .npz file, in the order in which they are looked for."""
LEAST = 2
OPTION = "--method.folder"


@dataclass(frozen=True, eq=False)
class PublicImages:
    """Images, uint8 tensors (c, h, w) of any sizes, and `source`, a digest of their pixels for the run's spec."""

    images: tuple[Tensor, ...]
    source: str

    def resized(self, shape: tuple[int, int, int]) -> Tensor:
        """Return (n, c, h, w) uint8 of this shape, from the central square of each image."""
        return torch.cat([reshape_images(make_square(part, "crop"), shape) for part in self.images])


@lru_cache(maxsize=1)
def read_images(place: str) -> PublicImages:
    """Read the images of a folder, with its subfolders, or of a file; kept for the process.

    Raises:
        BenchError: there is nothing at `place`, a file is not an image, or there are fewer than two images.
    """
    path = Path(place).expanduser()
    if not path.exists():
        raise NotFound(f"{OPTION} {place} does not exist; give a folder of images, an .npy or an .npz file")
    found = read_folder(path) if path.is_dir() else (read_array(path),)
    if sum(map(len, found)) < LEAST:
        raise BadData(f"{OPTION} {place}: {sum(map(len, found))} images; expected at least {LEAST}")
    digests = sorted({images_fingerprint(part) for part in found})
    return PublicImages(found, f"images:{path.name}#{digests[0] if len(digests) == 1 else joined(digests)}")


def read_folder(folder: Path) -> tuple[Tensor, ...]:
    """Return one (1, c, h, w) tensor for each image file, in the order of their paths."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    found = []
    for file in files:
        try:
            image = open_image(file, None).image
        except Broken as error:
            raise BadData(f"{OPTION} {folder}: {file.relative_to(folder)} {error}") from error
        pixels = np.asarray(image)
        found.append(torch.from_numpy(pixels.copy()).view(1, *pixels.shape[:2], -1).permute(0, 3, 1, 2).contiguous())
    return tuple(found)


def read_array(file: Path) -> Tensor:
    """Return the images of an .npy file, or of the array in an .npz file whose name is the first of KEYS."""
    problem = f"{OPTION} {file.name}"
    if file.suffix not in (".npy", ".npz"):
        raise BadData(f"{problem}: expected a folder of image files, an .npy or an .npz file")
    try:
        loaded = np.load(file, allow_pickle=False)
        array = loaded if isinstance(loaded, np.ndarray) else images_of(loaded, problem)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadData(f"{problem} cannot be read ({' '.join(str(error).split())}); give an archive of numpy") from error
    return as_images(array, f"{problem}: images", None).images


def images_of(archive: np.lib.npyio.NpzFile, problem: str) -> Array:
    """Return the array of images in an archive."""
    name = next((key for key in KEYS if key in archive.files), None)
    if name is None:
        raise BadData(f"{problem} has no array of images; expected one called {', '.join(KEYS[:-1])} or {KEYS[-1]}")
    return archive[name]


def joined(digests: list[str]) -> str:
    """Return a digest of several digests."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
