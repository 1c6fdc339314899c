"""Convert the values that a user passes to the Python interface into the names, files and texts of settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from bench.data.dataset import AS_DECLARED, Fit, Reading
from bench.data.own import OwnDataset
from bench.errors import BadOption, BadWeights, plugin_errors, unknown
from bench.seeds import LARGEST_SEED

if TYPE_CHECKING:
    from torch import nn

    from bench.interface.teacher_weights import Normalisation

Option = str | int | float | bool
Options = Mapping[str, Option]
Texts = tuple[tuple[str, str], ...]
Scale = float | Sequence[float]
"""One number, or one number per channel."""
TEACHERS = "teachers"
"""Folder below `out` for the weights of networks that were passed as values; the file name is a content hash."""


@dataclass(frozen=True)
class Plugin:
    """A method or an attack: its name, its variant (None = the default one), and its options as texts."""

    name: str
    variant: str | None
    options: Texts


@dataclass(frozen=True)
class Teacher:
    """The network of the teacher; for a trained one also its weights and its normalisation."""

    network: str
    weights: Path | None = None
    normalise: Normalisation | None = None


@dataclass(frozen=True)
class Images:
    """A data set by name, and how its images are read."""

    name: str
    reading: Reading


def as_plugin(kind: str, given: object, variant: str | None, options: Options | None) -> Plugin:
    """Resolve a method or an attack that is given by name, as a class, or as an instance.

    Fields of an instance that differ from their defaults become options; the tier sets the others.

    Args:
        kind: "method" or "attack".

    Raises:
        BadPlugin: a class that is not a method or an attack.
        BadOption: a value of another type, or an option that is given twice.
    """
    texts = as_texts(options)
    if isinstance(given, str):
        return Plugin(given, variant, texts)
    from bench.plugins import add_class

    if isinstance(given, type):
        name, implied = add_class(kind, given)
        return Plugin(name, variant or implied, texts)
    if not dataclasses.is_dataclass(given):
        raise BadOption(f"{kind} is a {type(given).__name__}; expected a name, a class or an instance of one")
    name, implied = add_class(kind, type(given))
    fields = [field for field in dataclasses.fields(given) if field.init]
    changed = {field.name: value for field in fields if (value := getattr(given, field.name)) != field.default}
    if twice := sorted(set(changed) & set(options or {})):
        raise BadOption(f"{kind}_options has {twice[0]}, which {type(given).__name__}(...) has too; give one of them")
    return Plugin(name, variant or implied, as_texts(changed | dict(options or {})))


def as_texts(options: Options | None) -> Texts:
    """Convert options to texts as on the command line, sorted by name. Raises BadOption for a value of another type."""
    given = sorted((options or {}).items())
    for name, value in given:
        if not isinstance(value, str | int | float | bool):
            raise BadOption(f"option {name} is a {type(value).__name__}; expected a number, a string or a boolean")
    return tuple((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in given)


def as_images(
    given: object,
    out: Path,
    fit: Fit,
    pixel_range: tuple[float, float] | None,
    groups: str | os.PathLike[str] | None = None,
) -> Images:
    """Resolve a data set that is given by name, or as a value of `bench.data.from_arrays` and similar functions.

    Raises:
        BadOption: a value of another type; or `fit`, `pixel_range` or `groups` with a data set that already has them.
    """
    if fit not in get_args(Fit):
        raise unknown("fit", fit, get_args(Fit))
    reading = Reading(fit, pixel_range, None if groups is None else Path(os.path.abspath(os.path.expanduser(groups))))
    if isinstance(given, OwnDataset):
        if reading != AS_DECLARED:
            raise BadOption(
                "fit, pixel_range and groups are for data sets by name; give fit, value_range and groups to the value"
            )
        return Images(given.save(out), given.reading)
    if not isinstance(given, str):
        raise BadOption(
            f"dataset is a {type(given).__name__}; expected a name of bench.datasets(), or a value of "
            "bench.data.from_arrays, from_folder, from_torch or from_huggingface"
        )
    return Images(given, reading)


def as_teacher(
    given: object, weights: str | os.PathLike[str] | None, normalise: tuple[Scale, Scale] | None, out: Path
) -> Teacher:
    """Resolve a teacher that is given as the name of a network, or as a trained module, whose weights are saved in
    `out`.

    Raises:
        NotFound: no such file of weights.
        BadWeights: a module without weights.
        BadOption: a value of another type, an invalid normalisation, or weights in addition to a module.
    """
    from bench.interface.teacher_weights import check_normalisation, find_weights, read_normalisation

    scale = None
    if normalise is not None:
        try:
            mean, std = (tuple(map(float, [each] if isinstance(each, int | float) else each)) for each in normalise)
        except (TypeError, ValueError):
            raise BadOption(
                f"teacher_normalise is {normalise!r}; expected (mean, std), each a number or one per channel, as in "
                "(0.1, 0.3)"
            ) from None
        scale = check_normalisation("teacher_normalise", mean, std)
    if isinstance(given, str):
        if weights is None and scale is not None:
            raise BadOption("teacher_normalise is for trained teachers; give teacher_weights, or leave it out")
        file = find_weights(None if weights is None else Path(weights))
        if scale is None and file is not None:
            scale = read_normalisation(file)
        return Teacher(given, file, scale)
    from torch import nn

    if not isinstance(given, nn.Module):
        raise BadOption(f"teacher is a {type(given).__name__}; expected the name of a network or an nn.Module")
    if weights is not None:
        raise BadOption("teacher_weights is for a network by name; load them into the module, or leave them out")
    return _save_teacher(given, scale, out)


def _save_teacher(network: nn.Module, scale: Normalisation | None, out: Path) -> Teacher:
    """Save the weights of a trained module, without wrappers, in a file that is named by their content."""
    from bench import teachers
    from bench.data.own import write_once
    from bench.nets import Classifier, users_network

    network = _without_wrappers(network)
    if isinstance(network, Classifier):
        if scale is not None:
            raise BadOption("teacher_normalise: this teacher normalises images itself; leave it out")
        mean, std = network.mean.flatten().tolist(), network.std.flatten().tolist()
        scale = (mean[0], std[0]) if len(mean) == 1 else (tuple(mean), tuple(std))
        network = network.body
    if not network.state_dict():
        raise BadWeights(f"the teacher, a {type(network).__name__}, has no weights; give a trained network")
    with plugin_errors(f"teacher, a {type(network).__name__}", "give a module that copy.deepcopy can copy"):
        name = users_network.add_value(network)
    weights = out / TEACHERS / f"{name.partition('#')[2]}.safetensors"
    write_once(weights, lambda path: teachers.save(path, network))
    return Teacher(name, weights, scale or (0.0, 1.0))


def _without_wrappers(network: nn.Module) -> nn.Module:
    """Return the network inside the wrappers of `torch.compile` and of data-parallel training."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    if isinstance(network, DataParallel | DistributedDataParallel):
        return _without_wrappers(network.module)
    compiled = getattr(network, "_orig_mod", None)
    return network if compiled is None else _without_wrappers(compiled)


def check_seed(seed: object) -> None:
    """Raise BadOption for a seed out of range."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise BadOption(f"seed is {seed!r}; expected a whole number from 0 to {LARGEST_SEED}")


def check_choices(**given: tuple[Any, Sequence[str]]) -> None:
    """Raise UnknownName for an argument whose value is not allowed.

    Args:
        given: name of an argument to its value and the allowed values.
    """
    for name, (value, known) in given.items():
        if value not in known:
            raise unknown(name, str(value), known)
