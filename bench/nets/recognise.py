"""Guess the architecture of a weight file from the names and shapes of its tensors.

Candidate networks are built on torch's meta device, which allocates no memory, for at most `SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from bench.errors import BenchError
from bench.nets.zoo import SMALL, TORCHVISION, make_body, own_names

Shape = tuple[int, int, int]
Shapes = Mapping[str, tuple[int, ...]]

SECONDS = 4.0
"""Time limit for building candidates, in seconds."""
LEAST_AGREEMENT = 0.9
"""Value of `agreement` above which an architecture is recognised."""
USUAL_SHAPE: Shape = (3, 224, 224)

OWN_NAMES = {"head.weight", "head.bias"}
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
    """Guess the name of the architecture that the weights belong to; None if no candidate is similar enough.

    The numbers of classes and of colour channels may differ. Candidates are the network `first`, this project's
    networks, and those of a family that has one of the weights' names.

    Args:
        weights: with names without wrapper prefixes.
        shape: (c, h, w) of the images, on which the layers of some networks depend.
        first: name of a network to try before all others.
    """
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    candidates = [first] if first else []
    if shapes.keys() >= OWN_NAMES:
        candidates += own_names()
    for characteristic, names in FAMILIES.items():
        if characteristic in shapes:
            candidates += [*names, *(f"{SMALL}{name}" for name in names)]
    until, best, found = time.monotonic() + SECONDS, LEAST_AGREEMENT, None
    for candidate in candidates:
        if (share := agreement(shapes, tensor_shapes(candidate, shape or USUAL_SHAPE))) > best:
            best, found = share, candidate
        if best == 1 or time.monotonic() > until:
            break
    return found


def tensor_shapes(arch: str, shape: Shape) -> Shapes:
    """Return {name: shape} of a network's tensors, built for images of `shape` or, if that fails, of `USUAL_SHAPE`.

    The result is empty if the network cannot be built for either on the meta device.
    """
    for images in (shape, USUAL_SHAPE):
        try:
            with torch.device("meta"):
                return {name: tuple(value.shape) for name, value in make_body(arch, images, 10).state_dict().items()}
        except (BenchError, RuntimeError, ValueError, AssertionError, TypeError, NotImplementedError):
            continue
    return {}


def agreement(weights: Shapes, network: Shapes) -> float:
    """Return the share, in [0, 1], of all tensor names of both that occur in both with shapes that agree.

    The outputs of the last layer (classes) and the inputs of the first convolution (colour channels) may differ.
    """
    last_layer = set(list(weights)[-2:])
    agreeing = 0
    for name, one in weights.items():
        other = network.get(name)
        if other is None or len(one) != len(other):
            continue
        differing = [axis for axis, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
        differs_in_classes = differing == [0] and name in last_layer
        differs_in_channels = differing == [1] and len(one) == 4 and {one[1], other[1]} <= {1, 3, 4}
        agreeing += not differing or differs_in_classes or differs_in_channels
    return agreeing / max(1, len(weights.keys() | network.keys()))
