"""Data sets by name: the available ones, known facts about them, and their readers."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from bench import plugins
from bench.data import naming
from bench.data.dataset import AS_DECLARED, Dataset, DatasetFacts, Keep, Reading, Request
from bench.data.images import ImageData
from bench.data.naming import BY_PATH, KIND, Name
from bench.errors import BadData, BadOption, plugin_errors

_SAFE_NAME = re.compile(r"[a-z0-9_-]{1,64}")
"""Pattern of a data set's name, which becomes part of file names."""


def names() -> dict[str, str]:
    """Return {name: one line of description} of all data sets; in `npz:PATH` and the like, PATH stands for any path."""
    named = {name: entry.summary for name, entry in plugins.entries(KIND).items()}
    return named | {f"{kind}:PATH": line for kind, line in BY_PATH.items()}


def dataset(name: str) -> Dataset:
    """Return the plug-in called `name`. Raises BenchError for other names, also for those of data sets read by path."""
    entry = plugins.find(KIND, name)
    with plugin_errors(f"data set '{name}'"):
        made: Dataset = plugins.class_of(entry, is_dataset, "one class that extends Dataset")()
        if not isinstance(made.facts, DatasetFacts):
            raise TypeError(f"its `facts` are {made.facts!r}; expected DatasetFacts")
    return made


def is_dataset(cls: type) -> bool:
    """Return whether a class is a data set. It is a named function because `plugins.class_of` caches by it."""
    return issubclass(cls, Dataset)


def facts(name: str) -> DatasetFacts:
    """Return the known facts of the data set with this `ImageData.name`; all facts are unknown if no plug-in has it.

    The name may be that of a plug-in with more words. If these change the images' shape, as in NAME-rgb-32px, settings
    for the original shape are left out.

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
    """Return whether a data set is the user's own, by its name on the command line or by that of its `ImageData`.

    >>> is_own("npz:/data/mine.npz"), is_own("imagefolder-xray-64px"), is_own("mnist")
    (True, True, False)
    """
    return name.replace(":", "-").partition("-")[0] in BY_PATH


def typed(name: str) -> str:
    """Return the command-line name of the data set that records call `name`.

    PATH replaces the folder of a user's own data, which records do not contain.

    >>> typed("cifar10-jpeg"), typed("celeba-id-subset-25-rgb-32px"), typed("imagefolder-xray-64px")
    ('cifar10', 'celeba-id:25@32@rgb', 'imagefolder:PATH/xray@64')
    """
    kind, _, rest = name.partition("-")
    base, size, channels = base_name(name), naming.size_in(name), naming.channels_in(name)
    colour = next((word for word, number in naming.CHANNELS.items() if number == channels), "")
    shape = (f"@{size}" if size is not None else "") + (f"@{colour}" if colour else "")
    ending = (f"-{colour}" if colour else "") + (f"-{size}px" if size is not None else "")
    if kind in BY_PATH:
        return f"{kind}:PATH/{rest.removesuffix(ending)}{'.npz' if kind == 'npz' else ''}{shape}"
    if base not in plugins.entries(KIND):
        return name
    words = name.removeprefix(base).removesuffix(ending).strip("-").split("-")
    arguments = [word for word in words if word and word not in dataset(base).versions]
    argument = f":{'-'.join(arguments)}" if arguments else ""
    return f"{base}{argument}{shape}"


def check(name: str) -> None:
    """Check that a data set name can be read by some plug-in or by path; opens no file.

    Raises:
        BenchError: unknown name, empty path, an argument that the data set does not take, or an image size outside 8
            to 256.
    """
    _parse(name)


def slug(name: str) -> str:
    """Return a label of a data set name that file names can contain: [a-z0-9_-], at most 64 characters.

    Examples: "mnist", "mnist-32px", "mnist-rgb", "npz-<stem>", "imagefolder-<dirname>[-<size>px]".

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
    request = Request(root_folder(root), download, parsed.argument, *shape, skip_broken, keep, reading)
    if reading.groups is not None and parsed.kind != "imagefolder":
        raise BadOption(
            f"data set '{name}': --groups is for image folders; arrays have the key groups (or train_groups and "
            "test_groups), and published data sets have their own groups or none"
        )
    if parsed.kind in BY_PATH:
        found = _load_path(parsed, request)
    elif reading != AS_DECLARED:
        raise BadOption(f"data set '{name}': --fit and --pixel-range are for images of your own; leave them out")
    else:
        plugin = dataset(parsed.kind)
        with plugin_errors(f"data set '{parsed.kind}'", "fix its plug-in, or the files that it reads"):
            found = plugin.read(request)
        is_foreign = plugins.find(KIND, parsed.kind).file is None  # contract tests check this project's own data sets
        if is_foreign and (fault := contract_violation(parsed.kind, plugin.facts, found, request)):
            raise BadData(f"data set '{parsed.kind}' of another package {fault}; fix the plug-in (CONTRIBUTING.md)")
        found = replace(found, name=_label(parsed, found.name))
    channels, side, _ = found.shape
    wanted = (parsed.channels or channels, parsed.size or side)
    if wanted != (channels, side):
        from bench.data.arrays import reshape_data

        found = reshape_data(found, *wanted)
    if wanted[0] != channels:
        how = "grey is repeated in 3 channels" if channels == 1 else "colours become grey by their luma (ITU-R BT.601)"
        found = replace(found, conversions=(*found.conversions, how))
    return found


def _load_path(parsed: Name, request: Request) -> ImageData:
    path, name = Path(os.path.expanduser(parsed.argument)), naming.path_label(parsed)
    if parsed.kind == "imagefolder":
        from bench.data.folder import load_folder

        return load_folder(path, name, request)
    if parsed.kind == "hf":
        from bench.data.tables import load_tables

        return load_tables(path, name, request)
    from bench.data.array_files import load_arrays

    return load_arrays(parsed.kind, path, name, request.reading)


def contract_violation(name: str, facts: DatasetFacts, found: object, request: Request) -> str:
    """Describe how the images that a plug-in has read violate the contract of `Dataset`; "" if they do not.

    Args:
        name: the plug-in's name. facts: its facts.
        found: the return value of its `read`. request: the argument of that call.
    """
    if not isinstance(found, ImageData):
        return f"reads {type(found).__name__}; expected ImageData"
    if not (found.name == name or found.name.startswith(f"{name}-")) or not _SAFE_NAME.fullmatch(found.name):
        return f"reads images called '{found.name}'; expected '{name}', or '{name}-' and letters, digits, - and _"
    channels, height, width = found.shape
    if channels not in (1, 3) or height != width:
        return f"reads images of {channels}x{height}x{width}; expected 1 or 3 channels, and as many rows as columns"
    if facts.class_names and tuple(found.class_names) != facts.class_names:
        return f"reads {found.classes} classes that are not those of its facts, {', '.join(facts.class_names)}"
    is_own_shape = request.size is None and request.channels is None
    if is_own_shape and facts.shape is not None and found.shape != facts.shape:
        return f"reads images of {channels}x{height}x{width}; its facts say {'x'.join(map(str, facts.shape))}"
    return ""


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
        raise BadOption(f"data set '{name}' needs an argument: write {parsed.kind}:ARGUMENT, {plugin.takes}")
    try:
        plugin.check_argument(argument)
    except ValueError as error:
        raise BadOption(f"data set '{name}': {error}") from None
    return replace(parsed, argument=argument)
