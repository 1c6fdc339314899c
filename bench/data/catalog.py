"""Data sets by name: what exists, what is known of it, and the way to its reader."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from bench import plugins
from bench.data import naming
from bench.data.dataset import Dataset, DatasetFacts
from bench.data.images import ImageData
from bench.data.naming import BY_PATH, KIND, Name
from bench.data.promised import unlike
from bench.data.request import Keep, Request
from bench.errors import BenchError, asking


def names() -> dict[str, str]:
    """Data set name -> one line about it. `imagefolder:PATH` and `npz:PATH` stand for any path."""
    named = {name: entry.summary for name, entry in plugins.entries(KIND).items()}
    return named | {f"{kind}:PATH": line for kind, line in BY_PATH.items()}


def dataset(name: str) -> Dataset:
    """The plug-in called `name`. Raises BenchError for another name; `imagefolder:PATH` and `npz:PATH` have none."""
    entry = plugins.find(KIND, name)
    with asking(f"data set '{name}'"):
        made: Dataset = plugins.class_of(entry, _is_dataset, "one class that extends Dataset")()
        if not isinstance(made.facts, DatasetFacts):
            raise TypeError(f"its `facts` are {made.facts!r}; expected DatasetFacts")
    return made


def facts(name: str) -> DatasetFacts:
    """What is known of a data set, by the name of its `ImageData`, which may be NAME-SOMETHING of the plug-in NAME.

    At another size than its own (NAME-32px), its shape is of that size, and settings made for its own do not hold.

    >>> facts("cifar10-jpeg").shape, facts("npz-my-own").shape, facts("mnist-32px").shape
    ((3, 32, 32), None, (1, 32, 32))
    """
    base, size = base_name(name), naming.size_in(name)
    known = dataset(base).facts if base in plugins.entries(KIND) else DatasetFacts()
    if size is None or known.shape is None:
        return known
    return replace(known, shape=(known.shape[0], size, size), mmd_bandwidth=None)


def base_name(name: str) -> str:
    """The plug-in that the name of an `ImageData` is a version of; the name itself where there is none.

    >>> base_name("cifar10-jpeg"), base_name("npz-my-own")
    ('cifar10', 'npz-my-own')
    """
    known, parts = plugins.entries(KIND), name.split("-")
    starts = ("-".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((start for start in starts if start in known), name)


def is_own(name: str) -> bool:
    """Whether a data set is the user's own, by the name that is typed or by that of its `ImageData`.

    >>> is_own("npz:/data/mine.npz"), is_own("imagefolder-xray-64px"), is_own("mnist")
    (True, True, False)
    """
    return name.replace(":", "-").partition("-")[0] in BY_PATH


def typed(name: str) -> str:
    """What is typed for the data set that records call `name`; PATH stands for where a user's own data lie.

    >>> typed("cifar10-jpeg"), typed("celeba-id-subset-25-32px"), typed("imagefolder-xray-64px")
    ('cifar10', 'celeba-id:25@32', 'imagefolder:PATH/xray@64')
    """
    kind, _, rest = name.partition("-")
    base, size = base_name(name), naming.size_in(name)
    if kind in BY_PATH:
        path = rest.removesuffix(f"-{size}px") + (".npz" if kind == "npz" else "")
        return f"{kind}:PATH/{path}" + (f"@{size}" if size is not None else "")
    if base not in plugins.entries(KIND):
        return name
    words = name.removeprefix(base).removesuffix(f"-{size}px").strip("-").split("-")
    arguments = [word for word in words if word and word not in dataset(base).versions]
    argument = f":{'-'.join(arguments)}" if arguments else ""
    return f"{base}{argument}" + (f"@{size}" if size is not None else "")


def _is_dataset(cls: type) -> bool:
    return issubclass(cls, Dataset)


def check(name: str) -> None:
    """Refuse a name that no reader answers to; touches no file.

    Raises:
        BenchError: unknown name, empty path, an argument that the data set does not take, or an image size outside 8
            to 256.
    """
    _parse(name)


def slug(name: str) -> str:
    """File-name-safe label, [a-z0-9_-], at most 64 characters: "mnist", "mnist-32px", "npz-<stem>",
    "imagefolder-<dirname>[-<size>px]".

    The loaded `ImageData.name` is the same, or has the version of the data set that lies there as a further word:
    "cifar10-jpeg", "celeba-g-subset".

    Raises:
        BenchError: as `check`.

    >>> slug("npz:/data/Path MNIST.npz"), slug("imagefolder:chest-xray@64"), slug("lfw:10@32")
    ('npz-path-mnist', 'imagefolder-chest-xray-64px', 'lfw-10-32px')
    """
    parsed = _parse(name)
    return naming.path_label(parsed) if parsed.kind in BY_PATH else _label(parsed, parsed.kind)


def load(
    name: str,
    root: Path | None = None,
    download: bool = False,
    skip_broken: bool = False,
    keep: Keep | None = None,
) -> ImageData:
    """Read a data set.

    Args:
        name: one of `names()`, with PATH or an argument filled in, and @SIZE behind it for images of another size; a
            relative PATH is seen from the working directory.
        root: folder below which data sets lie, most of them in torchvision's layout; default $BENCH_DATA, else
            ~/.cache/dp-distill-bench.
        download: fetch what is missing into `root`, where torchvision can.
        skip_broken: leave out image files that cannot be read, instead of refusing them.
        keep: where decoded images are kept, to be mapped into memory by this run and later ones; None = nowhere.

    Raises:
        BenchError: unknown name; missing, corrupt or unsuitable files, naming the file and what would do.
    """
    parsed = _parse(name)
    asked = Request(root_folder(root), download, parsed.argument, parsed.size, skip_broken, keep)
    if parsed.kind in BY_PATH:
        found = _load_path(parsed, asked)
    else:
        found = _read(parsed.kind, asked)
        found = replace(found, name=_label(parsed, found.name))
    if parsed.size not in (None, found.shape[1]):
        from bench.data.resizing import at_size

        found = at_size(found, parsed.size)
    return found


def _read(kind: str, asked: Request) -> ImageData:
    """What a plug-in reads. Raises BenchError where it raises anything, or does not read what it says."""
    plugin = dataset(kind)
    with asking(f"data set '{kind}'", "mend its plug-in, or the files that it reads"):
        found = plugin.read(asked)
    if plugins.find(KIND, kind).file is None and (fault := unlike(kind, plugin.facts, found, asked.size)):
        raise BenchError(f"data set '{kind}' of another package {fault}; mend the plug-in (CONTRIBUTING.md)")
    return found


def _load_path(parsed: Name, asked: Request) -> ImageData:
    path, name = Path(os.path.expanduser(parsed.argument)), naming.path_label(parsed)
    if parsed.kind == "npz":
        from bench.data.npz import load_npz

        return load_npz(path, name)
    from bench.data.folder import load_folder

    return load_folder(path, name, asked)


def _label(parsed: Name, base: str) -> str:
    plugin = dataset(parsed.kind)
    own = None if plugin.facts.shape is None else plugin.facts.shape[1]
    return naming.label(base, parsed.argument, plugin.usual, parsed.size, own)


def root_folder(root: Path | None) -> Path:
    """The folder below which data sets lie: the one given, $BENCH_DATA, or ~/.cache/dp-distill-bench."""
    given = str(root) if root is not None else os.environ.get("BENCH_DATA") or "~/.cache/dp-distill-bench"
    return Path(os.path.expanduser(given))


def _parse(name: str) -> Name:
    """The parsed name, with the usual argument where none is given. Raises BenchError."""
    parsed = naming.parse(name, names())
    if parsed.kind in BY_PATH:
        return parsed
    plugin = dataset(parsed.kind)
    argument = parsed.argument or plugin.usual
    if argument and not plugin.takes:
        raise BenchError(f"data set '{name}': {parsed.kind} takes no argument; write --dataset {parsed.kind}")
    if plugin.takes and not argument:
        raise BenchError(f"data set '{name}' lacks its argument: write {parsed.kind}:ARGUMENT, {plugin.takes}")
    try:
        plugin.check_argument(argument)
    except ValueError as error:
        raise BenchError(f"data set '{name}': {error}") from None
    return replace(parsed, argument=argument)
