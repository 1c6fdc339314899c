"""Saving and loading weights: ours are safetensors of the whole `Classifier`; a user's may be of the bare network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from bench.errors import BadWeights, BenchError
from bench.nets import Classifier
from bench.nets.recognise import Shape, likely_network
from bench.progress import notify
from bench.teachers.weight_files import (
    Checkpoint,
    Fit,
    Weights,
    best_fit,
    checkpoint,
    differences,
    first_names,
    read_file,
)

Normalisation = tuple[float | Sequence[float], float | Sequence[float]]


def save(path: Path, module: nn.Module) -> None:
    """Write a module's parameters and buffers as safetensors, each under its own name even if two share memory."""
    contiguous = torch.contiguous_format
    state = module.state_dict()
    save_file({name: value.detach().cpu().clone(memory_format=contiguous) for name, value in state.items()}, path)


def load(path: Path, module: nn.Module) -> None:
    """Load weights written by `save` into a module of the same architecture, in place.

    Raises:
        BenchError: a missing file, not safetensors, or other names or shapes than the module's.
    """
    state = checkpoint(path, read_file(path, safetensors=True)).weights
    fit = Fit(module, state, "", (), *differences(module, state))
    if fit.complaints:
        raise _misfit(path, fit, "build the network for the same name, image shape and classes as when it was saved")
    module.load_state_dict(state)


def load_user(
    path: Path, module: Classifier, arch: str, normalise: Normalisation | None = None, shape: Shape | None = None
) -> None:
    """Load a user's own weights into a newly built classifier, in place.

    Accepted are `.safetensors` files and torch files with a state dict, plain or in a checkpoint of Lightning, Opacus,
    timm or the usual keys, of the `Classifier` or of its bare network, with or without wrapper prefixes. Names and
    shapes must then match exactly.

    Args:
        arch: the name the module was built from, for the error messages.
        normalise: (mean, std) that the network was trained with, on images in [0, 1], each one number or one per
            channel. By default the network receives (x - 0.5) / 0.5, unless the file is of a `Classifier` with its own
            values.
        shape: (c, h, w) of one image, used in the error message to name the weights' likely network.

    Raises:
        BenchError: a missing file, not a weights file, a pickle that would run code, other names or shapes, values that
            are not finite, or an invalid normalisation.
    """
    found = checkpoint(path, read_file(path, safetensors=path.suffix.lower() == ".safetensors"))
    fit = best_fit(path, found.weights, module)
    broken = [name for name, value in fit.weights.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise BadWeights(
            f"the weights in '{path}' have NaN or infinite values ({first_names(broken)}): give a file without"
        )
    if fit.complaints:
        likely = likely_network(fit.weights, shape, arch)
        if likely == arch:
            advice = (
                f"they are of '{arch}' for another number of classes, channels or pixels; give weights or data that fit"
            )
        else:
            meant = f"they look like those of '{likely}': give --teacher {likely}" if likely else "give their --teacher"
            advice = (
                f"{meant} (now '{arch}'), for as many classes and channels as the data set has; --channels 1 or 3 "
                "changes the images"
            )
        raise _misfit(path, fit, advice)
    if isinstance(fit.target, Classifier):
        _require_scales(path, fit.weights, shape)
    fit.target.load_state_dict(fit.weights)
    _report(path, found, fit)
    if normalise is not None:
        mean, std = (torch.as_tensor(value, dtype=torch.float32).reshape(1, -1, 1, 1) for value in normalise)
        is_finite = bool(mean.isfinite().all() and std.isfinite().all())
        if not is_finite or mean.shape != std.shape or (std <= 0).any():
            raise BadWeights(
                "a normalisation is a mean and a positive std, one number or one a channel, not "
                f"{normalise[0]} and {normalise[1]}"
            )
        module.mean, module.std = (value.to(module.mean.device) for value in (mean, std))
    elif fit.target is module.body:
        notify(f"{path}: no mean and std are known for it, 0.5 and 0.5 are used; --teacher-normalise sets others")


def _misfit(path: Path, fit: Fit, advice: str) -> BenchError:
    return BadWeights(
        f"the {len(fit.weights)} tensors in '{path}' do not fit the network's {len(fit.target.state_dict())}, "
        f"{fit.complaints} names or shapes differ ({fit.describe()}): {advice}"
    )


def _require_scales(path: Path, state: Weights, shape: Shape | None) -> None:
    """Refuse a file's normalisation if it is invalid or has another number of channels."""
    mean, std = state["mean"], state["std"]
    channels = {mean.shape[1], std.shape[1]} - {1}
    if (std <= 0).any() or (shape is not None and not channels <= {shape[0]}):
        raise BadWeights(
            f"'{path}' has a mean of {mean.shape[1]} and a std of {std.shape[1]} numbers, the smallest "
            f"{float(std.min()):g}; expected one number or one a channel, and a std above 0"
        )


def _report(path: Path, found: Checkpoint, fit: Fit) -> None:
    """Report the changes that were made to a file's content so that it fits."""
    if found.others:
        notify(f"{path}: '{found.container}' is used; not used: {first_names(found.others)}")
    if fit.prefix.removesuffix("body."):
        notify(f"{path}: the prefix '{fit.prefix}' was removed from the names")
    if fit.left_out:
        count = len(fit.left_out)
        notify(
            f"{path}: {count} tensors belong to no layer of the network and are not used: {first_names(fit.left_out)}"
        )
    if found.converted:
        notify(f"{path}: numbers of {', '.join(found.converted)} were converted to float32")
