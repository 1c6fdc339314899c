"""Linear classifiers on a timm network: `160px:NAME` resizes images to 160x160 pixels and pools features of NAME.

The timm network ("backbone") has no classification layer. It is always in eval mode, so that batch normalisation uses
stored statistics and an image's features depend only on that image. Weights are random: `bench.teachers` loads
pretrained ones from a file, and nothing is downloaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.errors import BadOption, Incompatible, UnknownName, did_you_mean
from bench.nets.small_net import SmallNet

SMALLEST, LARGEST = 32, 512
"""Limits of the side to which images are resized, in pixels."""
PART = 32
"""Number of images that the backbone processes at once without gradients, which bounds the memory."""
_NAME = re.compile(r"(?P<size>[0-9]{2,3})px:(?P<timm>[A-Za-z0-9_.-]+)")

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class BackboneName:
    """A timm network and the side in pixels to which images are resized for it."""

    timm: str
    size: int

    def __str__(self) -> str:
        """Return the name for `bench.nets.build`, such as "160px:vit_base_patch16_224"."""
        return f"{self.size}px:{self.timm}"

    @classmethod
    def parse(cls, arch: str) -> Self | None:
        """Parse a network's name; None for a name of another form."""
        match = _NAME.fullmatch(arch)
        return None if match is None else cls(match["timm"], int(match["size"]))

    def check(self) -> None:
        """Raise BenchError for a network that timm does not have, or a size out of range."""
        if not SMALLEST <= self.size <= LARGEST:
            raise BadOption(f"{self}: images of {self.size} pixels; expected {SMALLEST} to {LARGEST}")
        import timm

        name, _, tag = self.timm.partition(".")
        if not timm.is_model(name):
            hint = did_you_mean(name, timm.list_models())
            raise UnknownName(f"timm has no network called '{name}'{hint}; see `timm.list_models()`")
        tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{name}.*")] if tag else []
        if tag and tag not in tags:
            raise UnknownName(
                f"timm has no weights '{tag}' of {name}{did_you_mean(tag, tags)}; leave '.{tag}' out, or correct it"
            )


class BackboneLinear(SmallNet):
    """A linear layer on a timm network's pooled features, scaled to norm sqrt(d).

    `trunk` is `ResizedImages`, the timm network without its classification layer, and `NormalisedRows`.

    Args:
        name: the timm network and the image size.
        shape: (c, h, w) of the images, c 1 or 3; grey images are repeated in three channels.
        classes: number of classes.

    Raises:
        BenchError: an unknown network, images of other channels, or a network that cannot take images of this size.
    """

    def __init__(self, name: BackboneName, shape: Shape, classes: int) -> None:
        from bench.nets.classifiers.wavelet_nets import NormalisedRows

        super().__init__()
        name.check()
        if shape[0] not in (1, 3):
            raise Incompatible(f"the network {name} takes images of 1 or 3 channels, not {shape[0]}")
        backbone = make_backbone(name)
        config: Any = backbone.pretrained_cfg
        resized = ResizedImages(shape, name.size, config["mean"], config["std"])
        self.trunk = nn.Sequential(resized, backbone, NormalisedRows()).eval()
        with torch.no_grad():
            try:
                features = self.trunk(torch.zeros(1, *shape))
            except (RuntimeError, AssertionError, ValueError) as error:
                raise _cannot_take(name, error) from error
        if features.ndim != 2 or not features.isfinite().all():
            raise Incompatible(f"the network {name} has features of shape {tuple(features.shape)}; take another one")
        self.head = nn.Linear(features.shape[1], classes)

    @property
    def backbone(self) -> nn.Module:
        """The timm network without its classification layer."""
        return self.trunk[1]

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the linear layer; the backbone stays in eval mode."""
        super().train(mode)
        self.trunk.eval()
        return self

    def features(self, x: Tensor) -> Tensor:
        """Return (n, d) features; without gradients they are computed for `PART` images at a time."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or len(x) <= PART:
            return super().features(x)
        return torch.cat([super(BackboneLinear, self).features(part) for part in x.split(PART)])


class ResizedImages(nn.Module):
    """Maps (n, c, h, w) in [-1, 1] to (n, 3, size, size), resized bicubically and normalised by mean and std.

    Resizing with antialiasing, as timm does for validation, is linear in rows and in columns: two products with public
    matrices, which also per-sample gradients and exported programs can compute.
    """

    rows: Tensor
    columns: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, shape: Shape, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        constants = {
            "rows": resizing(shape[1], size),
            "columns": resizing(shape[2], size).T,
            "mean": torch.tensor(mean).view(-1, 1, 1),
            "std": torch.tensor(std).view(-1, 1, 1),
        }
        for name, value in constants.items():
            self.register_buffer(name, value.contiguous(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Resize; grey images are repeated in three channels."""
        return ((self.rows @ x @ self.columns + 1) / 2 - self.mean) / self.std


def resizing(pixels: int, size: int) -> Tensor:
    """Return (size, pixels): the matrix that resizes a column of pixels bicubically, with antialiasing."""
    eye = torch.eye(pixels)[None, None]
    return F.interpolate(eye, size=(size, pixels), mode="bicubic", align_corners=False, antialias=True)[0, 0]


def make_backbone(name: BackboneName) -> nn.Module:
    """Build the timm network without its classification layer, with random weights, in channels-last layout.

    Raises:
        BenchError: it cannot be built for this image size.
    """
    import timm

    make = partial(timm.create_model, name.timm, pretrained=False, num_classes=0)
    try:
        network: nn.Module = make(img_size=name.size)
    except TypeError:  # a convolutional network, which takes any size
        network = make()
    except (RuntimeError, AssertionError, ValueError) as error:
        raise _cannot_take(name, error) from error
    return network.to(memory_format=torch.channels_last)


def _cannot_take(name: BackboneName, error: Exception) -> Incompatible:
    reason = (str(error).splitlines() or [""])[0][:120]
    return Incompatible(
        f"the network {name.timm} cannot take images of {name.size}x{name.size} pixels ({reason}): give another size, "
        "such as 224, or another network"
    )
