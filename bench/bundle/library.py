"""Find the call of timm or torchvision that builds a student, by trying candidates and comparing their outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.bundle.card import given
from bench.bundle.schema import Arguments, Call
from bench.nets import Classifier, own_names
from bench.nets.zoo import choose_patch_size

_MISFITS = (TypeError, ValueError, RuntimeError, AssertionError, IndexError, ZeroDivisionError)
_WITH_HEADS = ("googlenet", "inception_v3")


def library_call(arch: str, model: Classifier, shape: tuple[int, int, int], classes: int) -> Call | None:
    """Return the simplest call whose network takes the student's weights and has equal outputs; None without one.

    Args:
        arch: the name from which `bench.nets.build` made the student.
        model: the student, in eval mode.
    """
    return next((call for call in calls(arch, shape, classes) if builds(call, model, shape)), None)


def calls(arch: str, shape: tuple[int, int, int], classes: int) -> list[Call]:
    """Return candidate calls for a network of that name, the simplest first; [] for a network of this package."""
    if arch in own_names() or arch.startswith("small:"):
        return []
    if arch.startswith("tv:"):
        return _torchvision(arch.removeprefix("tv:"), shape, classes)
    return _timm(arch, shape, classes)


def _timm(name: str, shape: tuple[int, int, int], classes: int) -> list[Call]:
    channels, height, width = shape
    size: dict[str, Any] = {"img_size": height if height == width else (height, width)}
    patch = {"patch_size": choose_patch_size(height, width)}
    base: dict[str, Any] = {"num_classes": classes, "in_chans": channels}
    arguments = [Arguments(**base, **more) for more in ({}, size, size | patch)]
    return [Call(function="timm.create_model", name=name, arguments=each) for each in arguments]


def _torchvision(name: str, shape: tuple[int, int, int], classes: int) -> list[Call]:
    _, height, width = shape
    base: dict[str, Any] = {"num_classes": classes}
    if name in _WITH_HEADS:
        base |= {"aux_logits": False, "init_weights": True}
    more: tuple[dict[str, Any], ...] = ({}, {"image_size": height}, {"input_size": (height, width)})
    arguments = [Arguments(**base, **each) for each in more]
    return [Call(function="torchvision.models.get_model", name=name, arguments=each) for each in arguments]


def builds(call: Call, model: Classifier, shape: tuple[int, int, int]) -> bool:
    """Whether the call's network, with the student's weights, has the student's outputs on normalised images."""
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            network = _make(call).eval()
            network.load_state_dict(model.body.state_dict())
            return torch.allclose(network((images - model.mean) / model.std), model(images), rtol=1e-4, atol=1e-5)
    except _MISFITS:
        # Most architectures refuse most sizes, each with another error: then this is not the call.
        return False


def _make(call: Call) -> nn.Module:
    if call.function == "timm.create_model":
        import timm

        made: nn.Module = timm.create_model(call.name, **given(call))
    else:
        import torchvision

        made = torchvision.models.get_model(call.name, **given(call))
    return made
