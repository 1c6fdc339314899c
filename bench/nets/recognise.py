"""Guess the architecture of a weight file from the names and shapes of its tensors.

Candidates are built without memory (torch's meta device), those of the same family first, for a few seconds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from bench.errors import BenchError
from bench.nets.zoo import SMALL, TORCHVISION, make_body, own_names

Shape = tuple[int, int, int]
Sizes = Mapping[str, tuple[int, ...]]

SECONDS = 4.0
"""Time limit for building candidates, in seconds."""
LEAST = 0.9
"""Share of the tensors that must agree."""
USUAL: Shape = (3, 224, 224)

_OF_OURS = {"head.weight", "head.bias"}
"""Tensor names that all networks of this project have."""
_RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "wide_resnet50_2", "resnext50_32x4d", "resnet152")
_VITS = tuple(f"vit_{size}_patch{patch}_224" for patch in (16, 32) for size in ("tiny", "small", "base", "large"))
_EFFICIENT = ("efficientnet_b0", "mobilenetv3_large_100", "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b1")
_VGGS = tuple(f"vgg{depth}{norm}" for norm in ("", "_bn") for depth in (16, 11, 19, 13))
_TORCHVISION_VGGS = tuple(f"{TORCHVISION}{name}" for name in (*_VGGS, "alexnet"))
_SEQUENTIAL = tuple(f"{TORCHVISION}{name}" for name in ("mobilenet_v2", "efficientnet_b0", "mobilenet_v3_small"))
FAMILIES = {
    "layer1.0.conv1.weight": _RESNETS,
    "blocks.0.attn.qkv.weight": _VITS,
    "blocks.0.0.conv_dw.weight": _EFFICIENT,
    "stages.0.blocks.0.conv_dw.weight": tuple(f"convnext_{size}" for size in ("tiny", "small", "base", "nano", "atto")),
    "features.denseblock1.denselayer1.norm1.weight": ("densenet121", "densenet169", "densenet201"),
    "layers.0.blocks.0.attn.qkv.weight": tuple(f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base")),
    "encoder.layers.encoder_layer_0.ln_1.weight": (f"{TORCHVISION}vit_b_16", f"{TORCHVISION}vit_b_32"),
    "s1.b1.conv1.conv.weight": ("regnety_002", "regnety_004", "regnety_008", "regnetx_002", "regnetx_004"),
    "classifier.6.weight": _TORCHVISION_VGGS,
    "pre_logits.fc1.weight": _VGGS,
    "features.0.0.weight": _SEQUENTIAL,
}
"""Characteristic tensor name of a family -> timm and torchvision networks of that family, the most common first."""


def likely_network(weights: Mapping[str, Tensor], shape: Shape | None = None, first: str = "") -> str | None:
    """Return the architecture name of the weights, or None if no known one is similar enough.

    The numbers of classes and of colour channels may differ.

    Args:
        weights: with names without wrapper prefixes.
        shape: (c, h, w) of the images, on which the layers of some networks depend.
        first: name of a network to try before all others.
    """
    given = {name: tuple(value.shape) for name, value in weights.items()}
    until, best, name = time.monotonic() + SECONDS, LEAST, None
    for candidate in itertools.chain([first] if first else [], _candidates(given)):
        if (share := _agreement(given, _sizes(candidate, shape or USUAL))) > best:
            best, name = share, candidate
        if best == 1 or time.monotonic() > until:
            break
    return name


def _candidates(given: Sizes) -> Iterator[str]:
    """Yield candidate networks: this project's, then those of the same family."""
    if given.keys() >= _OF_OURS:
        yield from own_names()
    for mark, names in FAMILIES.items():
        if mark in given:
            yield from names
            yield from (f"{SMALL}{name}" for name in names)


def _sizes(arch: str, shape: Shape) -> Sizes:
    """Return {name: shape} of a network's tensors.

    Empty if it cannot take such images or be built on the meta device.
    """
    for images in (shape, USUAL):
        try:
            with torch.device("meta"):
                return {name: tuple(value.shape) for name, value in make_body(arch, images, 10).state_dict().items()}
        except (BenchError, RuntimeError, ValueError, AssertionError, TypeError, NotImplementedError):
            continue
    return {}


def _agreement(given: Sizes, known: Sizes) -> float:
    """Return the share of all names that both have, with shapes that agree except in classes and colours."""
    last = set(list(given)[-2:])
    alike = sum(_is_alike(size, known[name], name in last) for name, size in given.items() if name in known)
    return alike / max(1, len(given.keys() | known.keys()))


def _is_alike(one: tuple[int, ...], other: tuple[int, ...], is_last: bool) -> bool:
    """Return whether two shapes agree, except for the outputs of the last layer or the channels of the first."""
    if len(one) != len(other):
        return False
    unlike = [place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    is_first = unlike == [1] and len(one) == 4 and {one[1], other[1]} <= {1, 3, 4}
    return not unlike or is_first or (unlike == [0] and is_last)
