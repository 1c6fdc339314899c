"""How timm or torchvision builds a student by itself, found by trying and proved by equal answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.nets import Classifier, own_names
from bench.nets.zoo import patch_for

_MISFITS = (TypeError, ValueError, RuntimeError, AssertionError, IndexError, ZeroDivisionError)
_WITH_HEADS = ("googlenet", "inception_v3")


@dataclass(frozen=True)
class Call:
    """`function(name, **arguments)` of a library makes the bare network, whose weights the bundle has."""

    function: str
    name: str
    arguments: dict[str, Any]


def library_call(arch: str, model: Classifier, shape: tuple[int, int, int], classes: int) -> Call | None:
    """The plainest call whose network takes the student's weights and answers as it does; None if there is none.

    Args:
        arch: the name that `bench.nets.build` made the student from.
        model: the student, in eval mode.
    """
    if arch in own_names():
        return None
    calls = (
        _torchvision(arch.removeprefix("tv:"), shape, classes)
        if arch.startswith("tv:")
        else _timm(arch, shape, classes)
    )
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(images)
    seen = (images - model.mean) / model.std
    return next((call for call, make in calls if _same(make, call, model, seen, expected)), None)


def _timm(name: str, shape: tuple[int, int, int], classes: int) -> list[tuple[Call, Callable[..., Any]]]:
    import timm

    channels, height, width = shape
    base = {"num_classes": classes, "in_chans": channels}
    size = {"img_size": height if height == width else [height, width]}
    patch = {"patch_size": patch_for(height, width)}
    return [(Call("timm.create_model", name, base | more), timm.create_model) for more in ({}, size, size | patch)]


def _torchvision(name: str, shape: tuple[int, int, int], classes: int) -> list[tuple[Call, Callable[..., Any]]]:
    import torchvision

    _, height, width = shape
    base: dict[str, Any] = {"num_classes": classes}
    if name in _WITH_HEADS:
        base |= {"aux_logits": False, "init_weights": True}
    more: tuple[dict[str, Any], ...] = ({}, {"image_size": height}, {"input_size": [height, width]})
    make = torchvision.models.get_model
    return [(Call("torchvision.models.get_model", name, base | each), make) for each in more]


def _same(make: Callable[..., Any], call: Call, model: Classifier, seen: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the call's network, with the student's weights, answers the normalised images as the student does."""
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            network = make(call.name, **call.arguments).eval()
            network.load_state_dict(model.body.state_dict())
            return torch.allclose(network(seen), expected, rtol=1e-4, atol=1e-5)
    except _MISFITS:
        # Most architectures refuse most sizes, each in its own words: then this is not the call.
        return False
