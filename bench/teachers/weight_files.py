"""Read a user's weight file: its container, the prefixes of wrappers, and the part that fits a network.

No file is ever unpickled freely: safetensors hold numbers only, and torch files are read with `weights_only`.
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
"""Keys of a checkpoint that hold a state dict, the preferred first: of Lightning, Opacus, timm and others."""
_INNER = ("module", "shadow", "shadow_params")
"""Keys below a container."""
WRAPPERS = ("module.", "_module.", "model.", "net.", "_orig_mod.", "ema.", "body.")
"""Prefixes that wrappers put before every name: DataParallel, Opacus, Lightning, torch.compile, moving averages."""
_WRAPPED = re.compile(f"(?:{'|'.join(map(re.escape, WRAPPERS))})+")
_ANYWHERE = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Prefixes that also occur inside of names, where only a part of a network was wrapped."""
_COUNTER = "num_batches_tracked"
"""A buffer of batch normalisation that files of older releases lack; a network in eval mode does not read it."""
_NAMED = 5
"""Names that a message lists of each kind."""


@dataclass(frozen=True)
class Checkpoint:
    """A state dict of a file.

    Attributes:
        weights: name to tensor, floating-point numbers as float32.
        container: its key in the file, or "".
        others: further keys of the file that hold a state dict too.
        converted: the formats that were converted to float32, such as "float16".
    """

    weights: Weights
    container: str = ""
    others: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """A part of a state dict with the network that it may be of.

    Attributes:
        target: the `Classifier`, or the bare network inside it.
        weights: the part, without the prefix.
        prefix: the part that was removed from its names.
        left_out: names of the file that are not below the prefix.
        missing, unexpected, shapes: what does not fit, in words.
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
        """How many names or shapes differ."""
        return len(self.missing) + len(self.unexpected) + len(self.shapes)

    def in_words(self) -> str:
        """The first five of each kind of difference."""
        kinds = (("missing", self.missing), ("unexpected", self.unexpected), ("other shape", self.shapes))
        return "; ".join(f"{kind}: {some(names)}" for kind, names in kinds if names)


def some(names: list[str] | tuple[str, ...]) -> str:
    """The first five names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def read_file(path: Path, safetensors: bool) -> object:
    """The content of a weight file. Raises BenchError for a file that cannot be read without running its code."""
    if not path.is_file():
        raise NotFound(f"no weights file at '{path}': give the path of a .safetensors or torch file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load_tensors(path) if safetensors else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the bytes may come from anyone; the readers raise a dozen kinds, which all mean this
        kinds = [] if safetensors else _code_in(path)
        why = f"it holds objects of code, {some(kinds)}, which is not run" if kinds else type(error).__name__
        raise BadWeights(
            f"cannot read weights from '{path}' ({why}): give a .safetensors file, or a torch file "
            "that holds a state dict of tensors and nothing else (torch.save(model.state_dict(), FILE))"
        ) from error


def _code_in(path: Path) -> list[str]:
    """The classes and functions that unpickling the file would call, read without running it."""
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # a damaged file, or one of the old format: the first error says so
        return []


def checkpoint(path: Path, read: object) -> Checkpoint:
    """The state dict in what was read, itself or below one of `CONTAINERS`. Raises BenchError if there is none."""
    found = dict(_state_dicts(read))
    if not found:
        raise BadWeights(
            f"'{path}' holds no state dict: expected names with dense tensors, plain or under {', '.join(CONTAINERS)}; "
            "write it with torch.save(model.state_dict(), FILE)"
        )
    container, *others = found
    weights = found[container]
    formats = {value.dtype for value in weights.values() if value.is_floating_point()} - {torch.float32}
    numbers = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    converted = tuple(sorted(str(kind).removeprefix("torch.") for kind in formats))
    return Checkpoint(numbers, container, tuple(others), converted)


def _state_dicts(read: object, name: str = "", depth: int = 3) -> Iterator[tuple[str, Weights]]:
    """Every state dict with the keys that lead to it, the preferred first."""
    if not isinstance(read, Mapping) or not read or depth == 0:
        return
    if all(isinstance(key, str) and _is_dense(value) for key, value in read.items()):
        yield name, dict(read)
        return
    for key in (*CONTAINERS, *(_INNER if name else ())):
        yield from _state_dicts(read.get(key), f"{name}.{key}" if name else key, depth - 1)


def _is_dense(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_complex())
    )


def best_fit(path: Path, state: Weights, module: Classifier) -> Fit:
    """The part of a state dict that fits the `Classifier` or the bare network inside it; else the nearest part.

    Raises:
        BenchError: several parts fit, none of which is plainly meant.
    """
    fits = [
        fit
        for names in (state, _unwrapped_inside(state))
        for prefix in _prefixes(names, module)
        for fit in _fits_below(prefix, names, module)
    ]
    exact = [fit for fit in fits if not fit.complaints]
    plain = [fit for fit in exact if "ema" not in fit.prefix.split(".")] or exact
    if len({fit.prefix.removesuffix("body.") for fit in plain}) > 1 and not _are_same(plain):
        prefixes = some([f"'{fit.prefix}'" for fit in plain])
        raise BadWeights(
            f"'{path}' holds {len(plain)} networks that fit, below {prefixes}: give a file that holds one of them"
        )
    return min(plain or fits, key=lambda fit: fit.complaints)


def _are_same(fits: list[Fit]) -> bool:
    first, *rest = (fit.weights for fit in fits)
    return all(
        other.keys() == first.keys() and all(torch.equal(first[name], other[name]) for name in first) for other in rest
    )


def _unwrapped_inside(state: Weights) -> Weights:
    """Without the prefixes of wrapped layers inside of names, unless two names would become one."""
    renamed = {name: name for name in state}
    for wrapper in _ANYWHERE:
        renamed = {name: new.replace(f".{wrapper}", ".") for name, new in renamed.items()}
    return state if len(set(renamed.values())) < len(state) else {renamed[name]: state[name] for name in state}


def _prefixes(state: Weights, module: Classifier) -> list[str]:
    """Prefixes that the bare network's names may have: that of its first one, and every chain of wrappers."""
    first = next(iter(module.body.state_dict()), "")
    found = {name.removesuffix(first) for name in state if name == first or name.endswith(f".{first}")}
    found |= {match[0] for name in state if (match := _WRAPPED.match(name))}
    return sorted({"", *found}, key=lambda prefix: (len(prefix), prefix))


def _fits_below(prefix: str, state: Weights, module: Classifier) -> Iterator[Fit]:
    """The names below a prefix as those of the bare network; where mean and std are there too, of the `Classifier`."""
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
    """Names that are missing, names that the network does not have, and tensors of another shape or kind, in words."""
    own = module.state_dict()
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    shared = [(name, value, state[name]) for name, value in own.items() if name in state]
    shapes = [
        f"{name} is {tuple(given.shape)} for {tuple(value.shape)}"
        for name, value, given in shared
        if given.shape != value.shape and not _is_scale(module, name, given)
    ]
    kinds = [
        f"{name} holds {str(given.dtype).removeprefix('torch.')} for {str(value.dtype).removeprefix('torch.')}"
        for name, value, given in shared
        if given.shape == value.shape and given.is_floating_point() != value.is_floating_point()
    ]
    return missing, unexpected, shapes + kinds


def _is_scale(module: nn.Module, name: str, given: Tensor) -> bool:
    """Whether it is the mean or the std of a `Classifier`, which may be one number or one a channel."""
    return isinstance(module, Classifier) and name in ("mean", "std") and Classifier.is_scale(given)
