"""MedMNIST, 28x28 (or 64, 128, 224) medical images: medmnist:NAME, such as medmnist:pathmnist; counts differ by NAME"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts, not_found
from bench.data.images import ImageData
from bench.data.request import Request
from bench.errors import BadOption, NotFound

KNOWN = (
    *("pathmnist", "dermamnist", "octmnist", "pneumoniamnist", "breastmnist", "bloodmnist", "tissuemnist"),
    *("organamnist", "organcmnist", "organsmnist"),
)
"""The flat sets with one class per image; the grades of RetinaMNIST are ordered, ChestMNIST has several labels."""
LARGE = (64, 128, 224)
"""Sizes besides 28 that are published, as NAME_64.npz."""


class MedMnist(Dataset):
    """Standardised medical images (Yang et al., Scientific Data 2023), in the archives of the package `medmnist`."""

    facts = DatasetFacts(
        is_public=True,
        layout="medmnist/NAME.npz or NAME.npz (package medmnist); at 64, 128 and 224 pixels NAME_64.npz and so on",
        licence="CC BY 4.0; dermamnist CC BY-NC 4.0",
    )
    takes = "which one, such as pathmnist"

    def check_argument(self, argument: str) -> None:
        """Raise ValueError for an unknown set."""
        if argument not in KNOWN:
            raise ValueError(f"no set called '{argument}'; expected one of {', '.join(KNOWN)}")

    def missing(self, root: Path) -> list[Path]:
        """Return a pattern if none of the sets exists."""
        there = any(os.path.isfile(path) for name in KNOWN for path in _places(root, f"{name}.npz"))
        return [] if there else [root / "medmnist" / "NAME.npz"]

    def load(self, root: Path, download: bool) -> ImageData:
        """Always raise BenchError: the name must say which of the sets to read."""
        raise BadOption(f"data set 'medmnist' lacks its argument: write medmnist:NAME, {self.takes}")

    def read(self, asked: Request) -> ImageData:
        """Read the archive of the requested size, else the one of 28 pixels. Raises BenchError."""
        from bench.data.array_files import load_npz

        file = f"{asked.argument}{f'_{asked.size}' if asked.size in LARGE else ''}.npz"
        found = [path for path in _places(asked.root, file) if os.path.isfile(path)]
        if not found and asked.download:
            found = [_fetch(asked, asked.root / "medmnist" / file)]
        if not found:
            raise not_found("medmnist", file, asked.root / "medmnist", "use --download with the package medmnist")
        return replace(load_npz(found[0], f"medmnist-{asked.argument}"), name="medmnist")


def _places(root: Path, file: str) -> list[Path]:
    return [root / "medmnist" / file, root / file]


def _fetch(asked: Request, file: Path) -> Path:
    """Download the archive with the package `medmnist`. Raises BenchError."""
    try:
        import medmnist  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise NotFound(
            f"could not download data set 'medmnist' to {file}: the package medmnist is not installed; install it, or "
            "fetch the archive elsewhere"
        ) from None
    file.parent.mkdir(parents=True, exist_ok=True)
    size = asked.size if asked.size in LARGE else None
    try:
        getattr(medmnist, medmnist.INFO[asked.argument]["python_class"])(
            split="train", download=True, root=str(file.parent), **({"size": size} if size else {})
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise NotFound(f"could not download data set 'medmnist' to {file} ({error})") from error
    return file
