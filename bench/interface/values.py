"""Values that a user passes to the Python interface, as names, files and texts that settings hold."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from bench.data.own import OwnDataset
from bench.data.request import AS_DECLARED, Fit, Reading
from bench.errors import BadOption, BadWeights, plugin_errors, unknown
from bench.seeds import LARGEST_SEED

if TYPE_CHECKING:
    from torch import nn

    from bench.storage.specs import Numbers

Option = str | int | float | bool
Options = Mapping[str, Option]
Texts = tuple[tuple[str, str], ...]
Scale = float | Sequence[float]
"""One number, or one a channel."""
TEACHERS = "teachers"
"""Folder below `out` where networks that were passed as values are kept, each named by its content."""


@dataclass(frozen=True)
class Plugin:
    """A method or an attack: its name, its variant (None = the default one), and options as they are typed."""

    name: str
    variant: str | None
    options: Texts


@dataclass(frozen=True)
class Teacher:
    """The teacher's network, and the weights and normalisation of one that is trained already."""

    network: str
    weights: Path | None = None
    normalise: tuple[Numbers, Numbers] | None = None


@dataclass(frozen=True)
class Images:
    """The name of a data set and how its images are read."""

    name: str
    reading: Reading


def as_plugin(kind: str, given: object, variant: str | None, options: Options | None) -> Plugin:
    """A method or an attack by name, as a class, or as an instance.

    Of an instance, the fields that are not at their defaults are options; the tier sets the others.

    Raises:
        BadPlugin: a class that is neither a method nor an attack.
        BadOption: something else, or an option that is given twice.
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
    fields = {f.name: getattr(given, f.name) for f in dataclasses.fields(given) if f.init}
    usual = {f.name: f.default for f in dataclasses.fields(given)}
    own = {name: value for name, value in fields.items() if value != usual[name]}
    if twice := sorted(set(own) & set(options or {})):
        raise BadOption(f"{kind}_options has {twice[0]}, which {type(given).__name__}(...) has too; give one of them")
    return Plugin(name, variant or implied, as_texts(own | dict(options or {})))


def as_texts(options: Options | None) -> Texts:
    """Options as the command line has them, sorted by name. Raises BadOption for a value that is none."""
    given = sorted((options or {}).items())
    for name, value in given:
        if not isinstance(value, str | int | float | bool):
            raise BadOption(f"option {name} is a {type(value).__name__}; expected a number, a string or a boolean")
    return tuple((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in given)


def as_images(given: object, out: Path, fit: Fit, pixel_range: tuple[float, float] | None) -> Images:
    """A data set by name, or as a value that `bench.data.from_arrays` and its like made.

    Raises:
        BadOption: something else, or a reading next to a value, which has its own.
    """
    if fit not in get_args(Fit):
        raise unknown("fit", fit, get_args(Fit))
    reading = Reading(fit, pixel_range)
    if isinstance(given, OwnDataset):
        if reading != AS_DECLARED:
            raise BadOption("fit and pixel_range are for data sets by name; give fit and value_range to the value")
        return Images(given.located(out), given.reading)
    if not isinstance(given, str):
        raise BadOption(
            f"dataset is a {type(given).__name__}; expected a name of bench.datasets(), or a value of "
            "bench.data.from_arrays, from_folder, from_torch or from_huggingface"
        )
    return Images(given, reading)


def as_teacher(
    given: object, weights: str | os.PathLike[str] | None, normalise: tuple[Scale, Scale] | None, out: Path
) -> Teacher:
    """A network by name, with weights in a file if it is trained already; or a trained module, whose weights are kept.

    Raises:
        NotFound: no such file of weights.
        BadWeights: a module without weights.
        BadOption: something else; a normalisation that is none; or weights next to a module.
    """
    scale = None if normalise is None else _as_scale(normalise)
    if isinstance(given, str):
        return _named_teacher(given, weights, scale)
    from torch import nn

    if not isinstance(given, nn.Module):
        raise BadOption(f"teacher is a {type(given).__name__}; expected the name of a network or an nn.Module")
    if weights is not None:
        raise BadOption("teacher_weights is for a network by name; load them into the module, or leave them out")
    return _given_teacher(given, scale, out)


def _named_teacher(name: str, weights: str | os.PathLike[str] | None, scale: tuple[Numbers, Numbers] | None) -> Teacher:
    from bench.interface.teacher_weights import normalisation, weights_file

    if weights is None and scale is not None:
        raise BadOption("teacher_normalise is for trained teachers; give teacher_weights, or leave it out")
    file = weights_file(None if weights is None else Path(weights))
    return Teacher(name, file, scale or normalisation(None, file))


def _given_teacher(network: nn.Module, scale: tuple[Numbers, Numbers] | None, out: Path) -> Teacher:
    from bench import teachers
    from bench.data.own.datasets import write_once
    from bench.nets import Classifier, users_network

    network = _unwrapped(network)
    if isinstance(network, Classifier):
        if scale is not None:
            raise BadOption("teacher_normalise: this teacher normalises images itself; leave it out")
        scale = _numbers(network.mean.flatten().tolist()), _numbers(network.std.flatten().tolist())
        network = network.body
    if not network.state_dict():
        raise BadWeights(f"the teacher, a {type(network).__name__}, has no weights; give a trained network")
    with plugin_errors(f"teacher, a {type(network).__name__}", "give a module that copy.deepcopy can copy"):
        name = users_network.add_value(network)
    weights = out / TEACHERS / f"{name.partition('#')[2]}.safetensors"
    write_once(weights, lambda path: teachers.save(path, network))
    return Teacher(name, weights, scale or (0.0, 1.0))


def _unwrapped(network: nn.Module) -> nn.Module:
    """The network inside the wrappers of `torch.compile` and of parallel training."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    if isinstance(network, DataParallel | DistributedDataParallel):
        return _unwrapped(network.module)
    compiled = getattr(network, "_orig_mod", None)
    return network if compiled is None else _unwrapped(compiled)


def _as_scale(given: tuple[Scale, Scale]) -> tuple[Numbers, Numbers]:
    from bench.interface.teacher_weights import checked

    try:
        mean, std = (tuple(map(float, [each] if isinstance(each, int | float) else each)) for each in given)
    except (TypeError, ValueError):
        raise BadOption(
            f"teacher_normalise is {given!r}; expected (mean, std), each a number or one a channel, as in (0.13, 0.31)"
        ) from None
    return checked("teacher_normalise", mean, std)


def _numbers(values: list[float]) -> Numbers:
    return values[0] if len(values) == 1 else tuple(values)


def check_seed(seed: object) -> None:
    """Raise BadOption for a seed out of range."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise BadOption(f"seed is {seed!r}; expected a whole number from 0 to {LARGEST_SEED}")


def check_choices(**given: tuple[Any, Sequence[str]]) -> None:
    """Raise UnknownName for a value that is none of its choices: name to value and choices."""
    for name, (value, known) in given.items():
        if value not in known:
            raise unknown(name, str(value), known)
