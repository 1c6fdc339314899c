"""Find the call of timm or torchvision that builds a student, by trying candidates and comparing their outputs."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from bench.bundle.schema import Arguments, Call
from bench.nets import Classifier, own_names
from bench.nets.backbone import BackboneName
from bench.nets.zoo import choose_patch_size

_MISFITS = (TypeError, ValueError, RuntimeError, AssertionError, IndexError, ZeroDivisionError)
_WITH_HEADS = ("googlenet", "inception_v3")
"""Networks of torchvision with auxiliary heads, which are switched off."""


def library_call(arch: str, model: Classifier, shape: tuple[int, int, int], classes: int) -> Call | None:
    """Return the simplest call whose network takes the student's weights and has equal outputs; None if there is none.

    Args:
        arch: the name from which `bench.nets.build` made the student.
        model: the student, in eval mode.
        shape: (c, h, w) of its images.
        classes: number of its classes.
    """
    return next((call for call in calls(arch, shape, classes) if builds(call, model, shape)), None)


def calls(arch: str, shape: tuple[int, int, int], classes: int) -> list[Call]:
    """Return candidate calls for a network of that name, the simplest first; [] for a network of this package."""
    channels, height, width = shape
    if arch in own_names() or arch.startswith("small:") or BackboneName.parse(arch) is not None:
        return []
    if arch.startswith("tv:"):
        name = arch.removeprefix("tv:")
        plain = partial(Arguments, num_classes=classes)
        if name in _WITH_HEADS:
            plain = partial(Arguments, num_classes=classes, aux_logits=False, init_weights=True)
        candidates = [plain(), plain(image_size=height), plain(input_size=(height, width))]
        return [Call(function="torchvision.models.get_model", name=name, arguments=each) for each in candidates]
    size, patch = height if height == width else (height, width), choose_patch_size(height, width)
    plain = partial(Arguments, num_classes=classes, in_chans=channels)
    candidates = [plain(), plain(img_size=size), plain(img_size=size, patch_size=patch)]
    return [Call(function="timm.create_model", name=arch, arguments=each) for each in candidates]


def builds(call: Call, model: Classifier, shape: tuple[int, int, int]) -> bool:
    """Return whether the call's network, with the student's weights, has the student's outputs."""
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            network = make(call).eval()
            network.load_state_dict(model.body.state_dict())
            return torch.allclose(network((images - model.mean) / model.std), model(images), rtol=1e-4, atol=1e-5)
    except _MISFITS:
        # Most architectures refuse most image sizes, with different errors: then this is not the call
        return False


def make(call: Call) -> nn.Module:
    """Build the network of a call, with random weights."""
    network: nn.Module
    if call.function == "timm.create_model":
        import timm

        network = timm.create_model(call.name, **call.arguments.to_json())
    else:
        import torchvision

        network = torchvision.models.get_model(call.name, **call.arguments.to_json())
    return network
