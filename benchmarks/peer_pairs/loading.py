"""A folder of JPEG files to one tensor: `imagefolder:PATH`, first and later runs, and torchvision's ImageFolder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from bench import data
from bench.pipeline.material import kept_in
from peer_pairs._pair import Different, Pair

FILES, CLASSES, SIDE, WANTED, BATCH = 1200, 6, 96, 64, 64


def pairs(work: Path) -> Iterator[Pair]:
    """Yield a first run, which decodes, and a later one, which maps the stored images. `work` is an empty folder."""
    folder, out = work / "images", work / "runs"
    write(folder)

    def ours() -> Tensor:
        found = data.load(f"imagefolder:{folder}@{WANTED}", keep=kept_in(out))
        return torch.cat([found.train_images, found.test_images])

    def theirs() -> Tensor:
        from torchvision import transforms
        from torchvision.datasets import ImageFolder

        look = transforms.Compose([transforms.Resize(WANTED), transforms.PILToTensor()])
        parts = [DataLoader(ImageFolder(str(folder / part), look), batch_size=BATCH) for part in ("train", "test")]
        return torch.cat([images for loader in parts for images, _ in loader])

    def check(mine: Tensor, other: Tensor) -> None:
        if not torch.equal(mine, other):
            raise Different(f"images {tuple(mine.shape)} and {tuple(other.shape)} are not the same, pixel by pixel")

    peer = "torchvision, ImageFolder + DataLoader"
    yield Pair("image folder, first run", peer, ours, theirs, check, 2.0, lambda: shutil.rmtree(out, True))
    yield Pair("image folder, later runs", peer, ours, theirs, check, 2.0)


def write(folder: Path) -> None:
    """Write random square JPEG files in class folders, and a tenth of the training files again as test images."""
    rng = np.random.default_rng(0)
    for number in range(FILES + FILES // 10):
        part = "train" if number < FILES else "test"
        path = folder / part / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(small).resize((SIDE, SIDE)).save(path, quality=90)
