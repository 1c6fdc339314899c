"""Reading a user's weight file: its container, the prefixes of wrappers, and the part that fits a network.

No file is unpickled without restriction: safetensors contain only numbers, and torch files are read with
`weights_only`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.errors import BadWeights, NotFound
from bench.nets import Classifier
from bench.storage.store import load_tensors

Weights = dict[str, Tensor]

_AVERAGES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema")
CONTAINERS = ("state_dict", "model_state_dict", "module_state_dict", "model", "net", "network", "weights", *_AVERAGES)
"""Keys of a checkpoint that may contain a state dict, in order of preference: of Lightning, Opacus, timm and others."""
_INNER = ("module", "shadow", "shadow_params")
"""Keys nested in a container."""
WRAPPERS = ("module.", "_module.", "model.", "net.", "_orig_mod.", "ema.", "body.")
"""Prefixes that wrappers add to every name: DataParallel, Opacus, Lightning, torch.compile, moving averages."""
_WRAPPED = re.compile(f"(?:{'|'.join(map(re.escape, WRAPPERS))})+")
_ANYWHERE = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Prefixes that also occur within names, if only a part of a network was wrapped."""
_COUNTER = "num_batches_tracked"
"""A BatchNorm buffer that is missing in files of older releases; a network in eval mode does not use it."""
_NAMED = 5
"""Largest number of names of each kind in a message."""


@dataclass(frozen=True)
class Checkpoint:
    """A state dict from a file.

    Attributes:
        weights: {name: tensor}, floating-point numbers as float32.
        container: its key in the file, or "".
        others: further keys of the file that contain a state dict.
        converted: the formats that were converted to float32, such as "float16".
    """

    weights: Weights
    container: str = ""
    others: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """A part of a state dict, compared with a network.

    Attributes:
        target: the `Classifier`, or the bare network inside it (`Classifier.body`).
        weights: the part, with names without the prefix.
        prefix: the prefix that was removed from its names.
        left_out: names of the file without that prefix.
        missing, unexpected, shapes: descriptions of the differences.
    """

    target: nn.Module
    weights: Weights
    prefix: str = ""
    left_out: tuple[str, ...] = ()
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)

    @property
    def complaints(self) -> int:
        """Return the number of names or shapes that differ."""
        return len(self.missing) + len(self.unexpected) + len(self.shapes)

    def describe(self) -> str:
        """Return the first five differences of each kind, as text for an error message."""
        kinds = (("missing", self.missing), ("unexpected", self.unexpected), ("other shape", self.shapes))
        return "; ".join(f"{kind}: {first_names(names)}" for kind, names in kinds if names)


def first_names(names: list[str] | tuple[str, ...]) -> str:
    """Return the first five names and the number of further ones, as text."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def read_file(path: Path, safetensors: bool) -> object:
    """Read a weight file. Raises BenchError for a file that cannot be read without running its code."""
    if not path.is_file():
        raise NotFound(f"no weights file at '{path}': give the path of a .safetensors or torch file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load_tensors(path) if safetensors else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the file may hold any bytes; the readers raise a dozen types of error for a bad one
        kinds = [] if safetensors else code_in(path)
        why = f"it has objects of code, {first_names(kinds)}, which is not run" if kinds else type(error).__name__
        raise BadWeights(
            f"cannot read weights from '{path}' ({why}): give a .safetensors file, or a torch file "
            "that has a state dict of tensors and nothing else (torch.save(model.state_dict(), FILE))"
        ) from error


def code_in(path: Path) -> list[str]:
    """Return the classes and functions that unpickling the file would call, found without running it."""
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # a damaged file, or one of the old format: the first error reports it
        return []


def checkpoint(path: Path, read: object) -> Checkpoint:
    """Return the state dict of a read file, at the top level or in one of `CONTAINERS`. Raises BenchError if none."""
    found = dict(find_state_dicts(read))
    if not found:
        raise BadWeights(
            f"'{path}' has no state dict: expected names with dense tensors, plain or under {', '.join(CONTAINERS)}; "
            "write it with torch.save(model.state_dict(), FILE)"
        )
    container, *others = found
    weights = found[container]
    formats = {value.dtype for value in weights.values() if value.is_floating_point()} - {torch.float32}
    numbers = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    converted = tuple(sorted(str(kind).removeprefix("torch.") for kind in formats))
    return Checkpoint(numbers, container, tuple(others), converted)


def find_state_dicts(read: object, name: str = "", depth: int = 3) -> Iterator[tuple[str, Weights]]:
    """Yield every state dict with the keys that lead to it, in order of preference."""
    if not isinstance(read, Mapping) or not read or depth == 0:
        return
    if all(isinstance(key, str) and _is_dense(value) for key, value in read.items()):
        yield name, dict(read)
        return
    for key in (*CONTAINERS, *(_INNER if name else ())):
        yield from find_state_dicts(read.get(key), f"{name}.{key}" if name else key, depth - 1)


def _is_dense(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_complex())
    )


def best_fit(path: Path, state: Weights, module: Classifier) -> Fit:
    """Return the part of a state dict that fits the `Classifier` or its bare network; else the closest part.

    Raises:
        BenchError: several parts fit, and none is clearly intended.
    """
    renamed = {name: name for name in state}
    for wrapper in _ANYWHERE:
        renamed = {name: new.replace(f".{wrapper}", ".") for name, new in renamed.items()}
    is_unique = len(set(renamed.values())) == len(state)  # else two names would become equal
    unwrapped = {renamed[name]: state[name] for name in state} if is_unique else state
    fits = [
        fit
        for names in (state, unwrapped)
        for prefix in candidate_prefixes(names, module)
        for fit in fits_below(prefix, names, module)
    ]
    exact = [fit for fit in fits if not fit.complaints]
    plain = [fit for fit in exact if "ema" not in fit.prefix.split(".")] or exact
    first, *others = [fit.weights for fit in plain] or [{}]
    are_same = all(
        other.keys() == first.keys() and all(torch.equal(first[name], other[name]) for name in first)
        for other in others
    )
    if len({fit.prefix.removesuffix("body.") for fit in plain}) > 1 and not are_same:
        prefixes = first_names([f"'{fit.prefix}'" for fit in plain])
        raise BadWeights(
            f"'{path}' has {len(plain)} networks that fit, below {prefixes}: give a file that has one of them"
        )
    return min(plain or fits, key=lambda fit: fit.complaints)


def candidate_prefixes(state: Weights, module: Classifier) -> list[str]:
    """Return possible prefixes of the bare network's names, shortest first.

    They are the text before its first tensor's name, and every chain of wrapper prefixes that a name begins with.
    """
    first = next(iter(module.body.state_dict()), "")
    found = {name.removesuffix(first) for name in state if name == first or name.endswith(f".{first}")}
    found |= {match[0] for name in state if (match := _WRAPPED.match(name))}
    return sorted({"", *found}, key=lambda prefix: (len(prefix), prefix))


def fits_below(prefix: str, state: Weights, module: Classifier) -> Iterator[Fit]:
    """Yield fits of the names below a prefix to the bare network and, with mean and std, to the `Classifier`."""
    whole = prefix.removesuffix("body.")
    if prefix.endswith("body.") and {f"{whole}mean", f"{whole}std"} <= state.keys():
        yield _fit(whole, state, module)
    yield _fit(prefix, state, module.body)


def _fit(prefix: str, state: Weights, target: nn.Module) -> Fit:
    part = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    own = target.state_dict()
    absent = {name: value for name, value in own.items() if name not in part}
    if all(name.endswith(_COUNTER) for name in absent):
        part |= absent
    left = tuple(name for name in state if not name.startswith(prefix))
    return Fit(target, part, prefix, left, *differences(target, part))


def differences(module: nn.Module, state: Weights) -> tuple[list[str], list[str], list[str]]:
    """Describe missing names, names that the network does not have, and tensors of another shape or dtype.

    The mean and std of a `Classifier` may be one number or one per channel.
    """
    own = module.state_dict()
    scales = ("mean", "std") if isinstance(module, Classifier) else ()
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    shared = [(name, value, state[name]) for name, value in own.items() if name in state]
    shapes = [
        f"{name} is {tuple(given.shape)} for {tuple(value.shape)}"
        for name, value, given in shared
        if given.shape != value.shape and not (name in scales and Classifier.is_scale(given))
    ]
    kinds = [
        f"{name} has {str(given.dtype).removeprefix('torch.')} for {str(value.dtype).removeprefix('torch.')}"
        for name, value, given in shared
        if given.shape == value.shape and given.is_floating_point() != value.is_floating_point()
    ]
    return missing, unexpected, shapes + kinds
