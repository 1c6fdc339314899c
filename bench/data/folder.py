"""Trees of image files, one folder per class: the user's own (`imagefolder:PATH`) and published sets unpacked."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bench.data.images import ImageData
from bench.errors import BenchError

_UNPACKED_SIDE = 32
_BAD_IMAGE = (OSError, EOFError, ValueError, SyntaxError, struct.error, zlib.error, Image.DecompressionBombError)

Classes = dict[str, list[Path]]


def load_folder(path: Path, size: int, name: str) -> ImageData:
    """Images below `path`, cut to their central square and resized bilinearly to size x size.

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
        train, test = _scan(path / "train", name), _scan(_test_folder(path, name), name)
    else:
        train, test = _hold_out(_scan(path, name), path)
    _check_classes(train, test, path, name)
    class_names = tuple(train)
    train_images, train_labels = _read_all(train, class_names, size, name)
    test_images, test_labels = _read_all(test, class_names, size, name)
    channels = max(image.shape[0] for image in (train_images[0], test_images[0]))
    return ImageData(
        name,
        train_images.expand(-1, channels, -1, -1).contiguous(),
        train_labels,
        test_images.expand(-1, channels, -1, -1).contiguous(),
        test_labels,
        class_names,
    )


def load_unpacked(tree: Path, name: str, class_names: tuple[str, ...]) -> ImageData:
    """A published set of colour images, (3, 32, 32), unpacked to files: tree/{train,test}/<class>/*.

    Pixels depend on the JPEG decoder, so the fingerprint may differ between machines.

    Raises:
        BenchError: other classes than `class_names`, an empty class, or a file that is not a 32x32 image.
    """
    parts: dict[str, tuple[Tensor, Tensor]] = {}
    for part in ("train", "test"):
        classes = _scan(tree / part, name)
        if tuple(classes) != class_names or not all(classes.values()):
            raise BenchError(
                f"data set '{name}': expected images in each of {', '.join(class_names)} under {tree / part}; "
                f"unpack the whole archive again"
            )
        images, labels = _read_all(classes, class_names, None, name)
        parts[part] = images.expand(-1, 3, -1, -1).contiguous(), labels
    return ImageData(name, *parts["train"], *parts["test"], class_names=class_names)


def _test_folder(path: Path, name: str) -> Path:
    for part in ("test", "val"):
        if os.path.isdir(path / part):
            return path / part
    raise BenchError(f"data set '{name}': {path} has train/ but neither test/ nor val/; add one, with train's classes")


def _scan(folder: Path, name: str) -> Classes:
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
        order = sorted(files, key=lambda file: hashlib.sha256(file.relative_to(path).as_posix().encode()).digest())
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


def _read_all(classes: Classes, order: tuple[str, ...], size: int | None, name: str) -> tuple[Tensor, Tensor]:
    """(n, c, h, w) uint8 with c = 1 if all are grey, else 3; and (n,) labels, the class's place in `order`."""
    files = [(file, order.index(class_name)) for class_name, found in classes.items() for file in found]
    arrays = [_read(file, size, name) for file, _ in files]
    if any(array.ndim == 3 for array in arrays):
        arrays = [array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2) for array in arrays]
        images = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    else:
        images = torch.from_numpy(np.stack(arrays))[:, None]
    return images, torch.tensor([label for _, label in files], dtype=torch.int64)


def _read(file: Path, size: int | None, name: str) -> np.ndarray:
    """(h, w) of a grey file, else (h, w, 3); size None insists on that of unpacked sets."""
    if not os.path.isfile(file):
        raise BenchError(f"data set '{name}': {file} is no regular file; remove it")
    try:
        with Image.open(file) as opened:
            if opened.mode.startswith(("I", "F")):
                raise BenchError(f"data set '{name}': {file} has more than 8 bits per pixel; convert it to 8 bits")
            image = opened.convert("L" if opened.mode in ("L", "1") else "RGB")
    except _BAD_IMAGE as error:
        text = " ".join(str(error).split())
        raise BenchError(
            f"data set '{name}': {file} is not a readable image ({text[:300]}); mend or remove it"
        ) from error
    if size is not None:
        image = _square(image, size)
    elif image.size != (_UNPACKED_SIDE, _UNPACKED_SIDE):
        raise BenchError(f"data set '{name}': {file} is {image.width}x{image.height}, expected 32x32; unpack it again")
    return np.asarray(image, dtype=np.uint8)


def _square(image: Image.Image, size: int) -> Image.Image:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    centre = image.crop((left, top, left + side, top + side))
    return centre if side == size else centre.resize((size, size), Image.Resampling.BILINEAR)
