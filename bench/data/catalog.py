"""Data sets by name: the available ones, known facts about them, and their readers."""

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
from bench.data.request import AS_DECLARED, Keep, Reading, Request
from bench.errors import BadData, BadOption, plugin_errors


def names() -> dict[str, str]:
    """Return data set names with one line each. `npz:PATH` and others of `BY_PATH` stand for any path."""
    named = {name: entry.summary for name, entry in plugins.entries(KIND).items()}
    return named | {f"{kind}:PATH": line for kind, line in BY_PATH.items()}


def dataset(name: str) -> Dataset:
    """Return the plug-in called `name`. Raises BenchError for another name; data sets read by path have no plug-in."""
    entry = plugins.find(KIND, name)
    with plugin_errors(f"data set '{name}'"):
        made: Dataset = plugins.class_of(entry, _is_dataset, "one class that extends Dataset")()
        if not isinstance(made.facts, DatasetFacts):
            raise TypeError(f"its `facts` are {made.facts!r}; expected DatasetFacts")
    return made


def facts(name: str) -> DatasetFacts:
    """Return the known facts of a data set, by the name of its `ImageData`, which may be NAME-SOMETHING of plug-in
    NAME.

    In another shape than its own (NAME-rgb-32px), settings for its own shape are left out.

    >>> facts("cifar10-jpeg").shape, facts("npz-my-own").shape, facts("mnist-rgb-32px").shape
    ((3, 32, 32), None, (3, 32, 32))
    """
    base, size, channels = base_name(name), naming.size_in(name), naming.channels_in(name)
    known = dataset(base).facts if base in plugins.entries(KIND) else DatasetFacts()
    if known.shape is None or (size is None and channels is None):
        return known
    shape = (channels or known.shape[0], size or known.shape[1], size or known.shape[2])
    return replace(known, shape=shape, mmd_bandwidth=None)


def base_name(name: str) -> str:
    """Return the plug-in name of a data set's name; the name itself if no plug-in matches.

    >>> base_name("cifar10-jpeg"), base_name("npz-my-own")
    ('cifar10', 'npz-my-own')
    """
    known, parts = plugins.entries(KIND), name.split("-")
    starts = ("-".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((start for start in starts if start in known), name)


def is_own(name: str) -> bool:
    """Whether a data set is the user's own, by its typed name or by that of its `ImageData`.

    >>> is_own("npz:/data/mine.npz"), is_own("imagefolder-xray-64px"), is_own("mnist")
    (True, True, False)
    """
    return name.replace(":", "-").partition("-")[0] in BY_PATH


def typed(name: str) -> str:
    """Return the typed name of a data set that records call `name`; PATH stands for the place of a user's own data.

    >>> typed("cifar10-jpeg"), typed("celeba-id-subset-25-rgb-32px"), typed("imagefolder-xray-64px")
    ('cifar10', 'celeba-id:25@32@rgb', 'imagefolder:PATH/xray@64')
    """
    kind, _, rest = name.partition("-")
    base, size, channels = base_name(name), naming.size_in(name), naming.channels_in(name)
    colour = next((word for word, number in naming.CHANNELS.items() if number == channels), "")
    shape = (f"@{size}" if size is not None else "") + (f"@{colour}" if colour else "")
    if kind in BY_PATH:
        path = _without(rest, size, colour) + (".npz" if kind == "npz" else "")
        return f"{kind}:PATH/{path}{shape}"
    if base not in plugins.entries(KIND):
        return name
    words = _without(name.removeprefix(base), size, colour).strip("-").split("-")
    arguments = [word for word in words if word and word not in dataset(base).versions]
    argument = f":{'-'.join(arguments)}" if arguments else ""
    return f"{base}{argument}{shape}"


def _without(name: str, size: int | None, colour: str) -> str:
    """Return a record's name without its words for the images' shape."""
    return name.removesuffix(f"-{size}px").removesuffix(f"-{colour}")


def _is_dataset(cls: type) -> bool:
    return issubclass(cls, Dataset)


def check(name: str) -> None:
    """Refuse a name without a reader; touches no file.

    Raises:
        BenchError: unknown name, empty path, an argument that the data set does not take, or an image size outside 8
            to 256.
    """
    _parse(name)


def slug(name: str) -> str:
    """Return a file-name-safe label, [a-z0-9_-], at most 64 characters: "mnist", "mnist-32px", "mnist-rgb",
    "npz-<stem>", "imagefolder-<dirname>[-<size>px]".

    The loaded `ImageData.name` is the same, or also has the version of the data set found there: "cifar10-jpeg",
    "celeba-g-subset".

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
    reading: Reading = AS_DECLARED,
) -> ImageData:
    """Read a data set.

    Args:
        name: one of `names()`, with PATH or an argument filled in, and @SIZE, @grey or @rgb after it for images of
            another shape; a relative PATH starts at the working directory.
        root: folder of the data sets, most of them in torchvision's layout; default $BENCH_DATA, else
            ~/.cache/dp-distill-bench.
        download: fetch what is missing into `root`, where torchvision can.
        skip_broken: leave out image files that cannot be read and classes without any, instead of refusing them.
        keep: store for decoded images, which this run and later ones map into memory; None = do not keep them.
        reading: how a user's own images are read; refused for published data sets.

    Raises:
        BenchError: unknown name; missing, corrupt or unsuitable files; the message names the file and a remedy.
    """
    parsed = _parse(name)
    shape = (parsed.size, parsed.channels)
    asked = Request(root_folder(root), download, parsed.argument, *shape, skip_broken, keep, reading)
    if parsed.kind in BY_PATH:
        found = _load_path(parsed, asked)
    elif reading != AS_DECLARED:
        raise BadOption(f"data set '{name}': --fit and --pixel-range are for images of your own; leave them out")
    else:
        found = _read(parsed.kind, asked)
        found = replace(found, name=_label(parsed, found.name))
    channels, side, _ = found.shape
    wanted = (parsed.channels or channels, parsed.size or side)
    if wanted != (channels, side):
        from bench.data.resizing import in_shape

        found = in_shape(found, *wanted)
    if wanted[0] != channels:
        how = "grey is repeated in 3 channels" if channels == 1 else "colours become grey by their luma (ITU-R BT.601)"
        found = replace(found, conversions=(*found.conversions, how))
    return found


def _read(kind: str, asked: Request) -> ImageData:
    """Read a data set with its plug-in. Raises BenchError if the plug-in fails, or reads other images than it
    declares."""
    plugin = dataset(kind)
    with plugin_errors(f"data set '{kind}'", "fix its plug-in, or the files that it reads"):
        found = plugin.read(asked)
    if plugins.find(KIND, kind).file is None and (fault := unlike(kind, plugin.facts, found, asked)):
        raise BadData(f"data set '{kind}' of another package {fault}; fix the plug-in (CONTRIBUTING.md)")
    return found


def _load_path(parsed: Name, asked: Request) -> ImageData:
    path, name = Path(os.path.expanduser(parsed.argument)), naming.path_label(parsed)
    if parsed.kind == "imagefolder":
        from bench.data.folder import load_folder

        return load_folder(path, name, asked)
    if parsed.kind == "hf":
        from bench.data.tables import load_tables

        return load_tables(path, name, asked)
    from bench.data.array_files import load_arrays

    return load_arrays(parsed.kind, path, name, asked.reading)


def _label(parsed: Name, base: str) -> str:
    plugin = dataset(parsed.kind)
    own = None if plugin.facts.shape is None else plugin.facts.shape[:2]
    return naming.label(base, parsed, plugin.usual, own)


def root_folder(root: Path | None) -> Path:
    """Return the folder of the data sets: the given one, $BENCH_DATA, or ~/.cache/dp-distill-bench."""
    given = str(root) if root is not None else os.environ.get("BENCH_DATA") or "~/.cache/dp-distill-bench"
    return Path(os.path.expanduser(given))


def _parse(name: str) -> Name:
    """Parse a name, adding the default argument if there is none. Raises BenchError."""
    parsed = naming.parse(name, names())
    if parsed.kind in BY_PATH:
        return parsed
    plugin = dataset(parsed.kind)
    argument = parsed.argument or plugin.usual
    if argument and not plugin.takes:
        raise BadOption(f"data set '{name}': {parsed.kind} takes no argument; write --dataset {parsed.kind}")
    if plugin.takes and not argument:
        raise BadOption(f"data set '{name}' lacks its argument: write {parsed.kind}:ARGUMENT, {plugin.takes}")
    try:
        plugin.check_argument(argument)
    except ValueError as error:
        raise BadOption(f"data set '{name}': {error}") from None
    return replace(parsed, argument=argument)
