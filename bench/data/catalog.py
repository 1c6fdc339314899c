"""Names of data sets: what exists, what a name means, and the way to its reader."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from bench import plugins
from bench.data.dataset import Dataset, DatasetFacts
from bench.data.images import ImageData
from bench.errors import BenchError, unknown

KIND = "data set"
_BY_PATH = {
    "imagefolder": "PATH/{train,test or val}/CLASS/* or PATH/CLASS/* (1/6 held out); PATH@64 sets the size, default 32",
    "npz": "a NumPy archive with {train,test}_{images,labels}, the layout of MedMNIST; val_* joins the training set",
}
_DEFAULT_SIZE = 32
_SIZES = range(8, 257)


@dataclass(frozen=True)
class _Source:
    """A parsed data set name; path is "" for the named sets."""

    kind: str
    path: str = ""
    size: int = _DEFAULT_SIZE


def names() -> dict[str, str]:
    """Data set name -> one line about it. `imagefolder:PATH` and `npz:PATH` stand for any path."""
    named = {name: entry.summary for name, entry in plugins.entries(KIND).items()}
    return named | {f"{kind}:PATH": line for kind, line in _BY_PATH.items()}


def dataset(name: str) -> Dataset:
    """The plug-in called `name`. Raises BenchError for another name; `imagefolder:PATH` and `npz:PATH` have none."""
    return plugins.class_of(plugins.find(KIND, name), _is_dataset, "one class that extends Dataset")()


def facts(name: str) -> DatasetFacts:
    """What is known of a data set, by the name of its `ImageData`, which may be NAME-SOMETHING of the plug-in NAME.

    >>> facts("cifar10-jpeg").shape, facts("npz-my-own").shape
    ((3, 32, 32), None)
    """
    base = base_name(name)
    return dataset(base).facts if base in plugins.entries(KIND) else DatasetFacts()


def base_name(name: str) -> str:
    """The plug-in that the name of an `ImageData` is a version of; the name itself where there is none.

    >>> base_name("cifar10-jpeg"), base_name("npz-my-own")
    ('cifar10', 'npz-my-own')
    """
    known, parts = plugins.entries(KIND), name.split("-")
    starts = ("-".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((start for start in starts if start in known), name)


def _is_dataset(cls: type) -> bool:
    return issubclass(cls, Dataset)


def check(name: str) -> None:
    """Refuse a name that no reader answers to; touches no file.

    Raises:
        BenchError: unknown name, empty path, or an image size outside 8 to 256.
    """
    _parse(name)


def slug(name: str) -> str:
    """File-name-safe label, [a-z0-9_-], at most 64 characters: "mnist", "npz-<stem>", "imagefolder-<dirname>[-<size>]".

    The loaded `ImageData.name` is the same, except "cifar10-jpeg" where CIFAR-10 comes from JPEG files.

    Raises:
        BenchError: as `check`.

    >>> slug("npz:/data/Path MNIST.npz"), slug("imagefolder:chest-xray@64")
    ('npz-path-mnist', 'imagefolder-chest-xray-64')
    """
    source = _parse(name)
    if not source.path:
        return source.kind
    location = os.path.abspath(os.path.expanduser(source.path))
    label = Path(location).stem if source.kind == "npz" else Path(location).name
    safe = re.sub(r"[^a-z0-9_]+", "-", label.lower()).strip("-")
    safe = safe or hashlib.sha256(label.encode()).hexdigest()[:8]
    size = "" if source.size == _DEFAULT_SIZE else f"-{source.size}"
    return f"{source.kind}-{safe}"[: 64 - len(size)] + size


def load(name: str, root: Path | None = None, download: bool = False) -> ImageData:
    """Read a data set into memory.

    Args:
        name: one of `names()`, with PATH filled in; a relative PATH is seen from the working directory.
        root: folder below which data sets lie, mnist, fmnist and cifar10 in torchvision's layout; default $BENCH_DATA,
            else ~/.cache/dp-distill-bench.
        download: fetch what is missing into `root`; torchvision does so for mnist, fmnist and cifar10.

    Raises:
        BenchError: unknown name; missing, corrupt or unsuitable files, naming the file and what would do.
    """
    source = _parse(name)
    path = Path(os.path.expanduser(source.path))
    if source.kind == "npz":
        from bench.data.npz import load_npz

        return load_npz(path, slug(name))
    if source.kind == "imagefolder":
        from bench.data.folder import load_folder

        return load_folder(path, source.size, slug(name))
    return dataset(source.kind).load(root_folder(root), download)


def root_folder(root: Path | None) -> Path:
    """The folder below which data sets lie: the one given, $BENCH_DATA, or ~/.cache/dp-distill-bench."""
    given = str(root) if root is not None else os.environ.get("BENCH_DATA") or "~/.cache/dp-distill-bench"
    return Path(os.path.expanduser(given))


def _parse(name: str) -> _Source:
    if name in plugins.entries(KIND):
        return _Source(name)
    kind, colon, path = name.partition(":")
    if not colon or kind not in _BY_PATH:
        raise unknown("data set", name, names())
    if kind == "npz":
        source = _Source(kind, path)
    else:
        match = re.fullmatch(r"(.*)@([0-9]+)", path, re.DOTALL)
        source = _Source(kind, match[1], int(match[2])) if match else _Source(kind, path)
    if not source.path:
        raise BenchError(f"data set '{name}' names no path: write {kind}:PATH")
    if source.size not in _SIZES:
        raise BenchError(f"data set '{name}' asks for size {source.size}: expected {_SIZES[0]} to {_SIZES[-1]} pixels")
    return source
