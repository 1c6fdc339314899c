"""Weight files: ours are safetensors of the whole `Classifier`; a user's may be of the bare network, in two formats.

No file is ever unpickled freely: safetensors hold numbers only, and torch files are read with `weights_only`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bench.errors import BenchError
from bench.nets import Classifier
from bench.progress import say

Weights = dict[str, Tensor]
Normalisation = tuple[float | Sequence[float], float | Sequence[float]]

_CONTAINERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "body.")


def save(path: Path, module: nn.Module) -> None:
    """Write a module's parameters and buffers as safetensors, each under its own name even where two share memory."""
    contiguous = torch.contiguous_format
    state = module.state_dict()
    save_file({name: value.detach().cpu().clone(memory_format=contiguous) for name, value in state.items()}, path)


def load(path: Path, module: nn.Module) -> None:
    """Read what `save` wrote into a module of the same architecture, in place.

    Raises:
        BenchError: no such file, not safetensors, or not exactly this module's names and shapes.
    """
    state = _tensors(path, _read(path, safetensors=True))
    _assign(path, module, state, "build the network for the same name, image shape and classes as when it was saved")


def load_user(path: Path, module: Classifier, arch: str, normalise: Normalisation | None = None) -> None:
    """Read a user's own weights into a freshly built classifier, in place.

    Accepted are `.safetensors` files and torch files holding a state dict, plain or under "state_dict",
    "model_state_dict" or "model", of the `Classifier` or of the bare network inside it, with or without the prefixes
    of DataParallel ("module.") and torch.compile ("_orig_mod."). Names and shapes must match exactly.

    Args:
        arch: the name the module was built from, for the error messages.
        normalise: (mean, std) that the network was trained with, on images in [0, 1], each one number or one a channel.
            Without it the network is fed (x - 0.5) / 0.5, unless the file is of a `Classifier` and brings its own.

    Raises:
        BenchError: no such file, not a weights file, a pickle that would run code, other names or shapes, values that
            are not finite, or an impossible normalisation.
    """
    read = _tensors(path, _read(path, safetensors=path.suffix.lower() == ".safetensors"))
    candidates = [(target, state) for state in _unprefixed(read) for target in (module, module.body)]
    target, state = min(candidates, key=lambda candidate: len(_complaints(*candidate)))
    broken = [name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise BenchError(f"the weights in '{path}' hold NaN or infinite values ({_some(broken)}): give a file without")
    fit = f"give the --teacher that they are of (now '{arch}'), for as many classes and channels as the data set has"
    _assign(path, target, state, f"{fit}; --channels 1 or 3 changes the images")
    if normalise is not None:
        _normalise(module, *normalise)
    elif target is module.body:
        say(f"{path}: no mean and std are known of it, 0.5 and 0.5 are taken; --teacher-normalise gives others")


def _read(path: Path, safetensors: bool) -> object:
    if not path.is_file():
        raise BenchError(f"no weights file at '{path}': give the path of a .safetensors or torch file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load_file(path) if safetensors else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the bytes may come from anyone; the readers raise a dozen kinds, which all mean this
        raise BenchError(
            f"cannot read weights from '{path}' ({type(error).__name__}): give a .safetensors file, or a torch file "
            "that holds a state dict of tensors and nothing else (torch.save(model.state_dict(), FILE))"
        ) from error


def _tensors(path: Path, read: object) -> Weights:
    """The state dict in what was read, itself or one level down."""
    if isinstance(read, Mapping):
        inner = next((read[name] for name in _CONTAINERS if isinstance(read.get(name), Mapping)), read)
        if inner and all(isinstance(name, str) and _plain(value) for name, value in inner.items()):
            return dict(inner)
    raise BenchError(
        f"'{path}' holds no state dict: expected names with dense tensors, plain or under {' or '.join(_CONTAINERS)}; "
        "write it with torch.save(model.state_dict(), FILE)"
    )


def _plain(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_complex())
    )


def _unprefixed(state: Weights) -> Iterator[Weights]:
    """The state dict as it is, then without each prefix that all of its names share."""
    yield state
    while prefix := next((p for p in _PREFIXES if all(name.startswith(p) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
        yield state


def _complaints(module: nn.Module, state: Weights) -> list[str]:
    own = module.state_dict()
    missing = [f"{name} is missing" for name in own if name not in state]
    unexpected = [f"{name} is not in the network" for name in state if name not in own]
    shapes = [
        f"{name} is {tuple(state[name].shape)} for {tuple(value.shape)}"
        for name, value in own.items()
        if name in state and state[name].shape != value.shape
    ]
    return shapes + missing + unexpected


def _assign(path: Path, module: nn.Module, state: Weights, advice: str) -> None:
    complaints = _complaints(module, state)
    if complaints:
        raise BenchError(
            f"the {len(state)} tensors in '{path}' do not fit the network's {len(module.state_dict())}, "
            f"{len(complaints)} names or shapes differ ({_some(complaints)}): {advice}"
        )
    module.load_state_dict(state)


def _normalise(module: Classifier, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
    given = [torch.as_tensor(value, dtype=torch.float32).reshape(1, -1, 1, 1) for value in (mean, std)]
    if not all(value.isfinite().all() for value in given) or given[0].shape != given[1].shape or (given[1] <= 0).any():
        raise BenchError(
            f"a normalisation is a mean and a positive std, one number or one a channel, not {mean} and {std}"
        )
    module.mean, module.std = (value.to(module.mean.device) for value in given)


def _some(items: list[str]) -> str:
    rest = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(items[:3]) + rest
