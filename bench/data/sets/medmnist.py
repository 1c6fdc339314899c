"""MedMNIST, 28x28 (or 64, 128, 224) medical images: medmnist:NAME, such as medmnist:pathmnist; counts differ by NAME

Standardised medical images (Yang et al., Scientific Data 2023), in the archives of the package `medmnist`. The
publisher's parts are used; the validation part joins the training set. Checked: arrays of one shape with one label per
image (`bench.data.array_files`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts, Request, not_found
from bench.data.images import ImageData
from bench.errors import BadOption, NotFound

KNOWN = (
    *("pathmnist", "dermamnist", "octmnist", "pneumoniamnist", "breastmnist", "bloodmnist", "tissuemnist"),
    *("organamnist", "organcmnist", "organsmnist"),
)
"""The flat sets with one class per image; the grades of RetinaMNIST are ordered, ChestMNIST has several labels."""
LARGE = (64, 128, 224)
"""Published sizes other than 28, as NAME_64.npz."""


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
        return [] if any(existing_file(root, f"{name}.npz") for name in KNOWN) else [root / "medmnist" / "NAME.npz"]

    def load(self, root: Path, download: bool) -> ImageData:
        """Always raise BenchError: the name must say which of the sets to read."""
        raise BadOption(f"data set 'medmnist' needs an argument: write medmnist:NAME, {self.takes}")

    def read(self, request: Request) -> ImageData:
        """Read the archive of the requested size, else the one of 28 pixels. Raises BenchError."""
        from bench.data.array_files import load_arrays

        size = request.size if request.size in LARGE else None
        name, root = request.argument, request.root
        file = f"{name}.npz" if size is None else f"{name}_{size}.npz"
        path = existing_file(root, file)
        if path is None and request.download:
            path = download_archive(name, size, root / "medmnist" / file)
        if path is None:
            raise not_found("medmnist", file, root / "medmnist", "use --download with the package medmnist")
        return replace(load_arrays("npz", path, f"medmnist-{name}"), name="medmnist")


def existing_file(root: Path, file: str) -> Path | None:
    """Return the archive in root/medmnist or in root; None if neither has it."""
    return next((path for path in (root / "medmnist" / file, root / file) if os.path.isfile(path)), None)


def download_archive(name: str, size: int | None, file: Path) -> Path:
    """Download the archive with the package `medmnist`. Raises BenchError."""
    try:
        import medmnist  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise NotFound(
            f"could not download data set 'medmnist' to {file}: the package medmnist is not installed; install it, or "
            "fetch the archive elsewhere"
        ) from None
    file.parent.mkdir(parents=True, exist_ok=True)
    options = {} if size is None else {"size": size}
    try:
        reader = getattr(medmnist, medmnist.INFO[name]["python_class"])
        reader(split="train", download=True, root=str(file.parent), **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise NotFound(f"could not download data set 'medmnist' to {file} ({error})") from error
    return file
