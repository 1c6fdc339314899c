"""Classifiers by name: plug-ins, every timm architecture, and torchvision's as `tv:NAME`; nothing is downloaded.

`small:NAME` is a library's network with a stem for small images, as usual on CIFAR-10: the original stem of a network
for 224 pixels reduces 28x28 to 7x7. `160px:NAME` is a linear layer on a timm network, for images that it resizes to
160x160 pixels (`backbone`). `PACKAGE.MODULE:FUNCTION` is a user's own (`users_network`).

A plug-in is a class that extends `SmallNet`: in `classifiers/NAME.py`, in the table NETWORKS of another file of that
folder, or an entry point of the group `bench.networks`. Every network is wrapped in a `Classifier`, which takes images
in [0, 1] and normalises them by public constants.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import plugins
from bench.errors import BadPlugin, BenchError, Incompatible, UnknownName, plugin_errors
from bench.nets import backbone, users_network
from bench.nets.backbone import BackboneName
from bench.nets.small_net import SmallNet
from bench.nets.users_network import is_users_network

KIND = "network"
SMALL_IMAGE = 64
"""Longer side in pixels below which vision transformers get smaller patches."""
FEWEST_PATCHES, MOST_PATCHES = 4, 8
"""Limits of the number of patches along the longer side of a small image, where the size allows it."""
SMALL, TORCHVISION = "small:", "tv:"
"""Prefixes of names: a stem for small images; a network of torchvision."""
_NAME = re.compile(rf"({SMALL})?({TORCHVISION})?[A-Za-z0-9_-]+")
_REGISTERED = re.compile(r"^@register_model\ndef (\w+)\(", re.MULTILINE)
_SHAPE_ERRORS = (RuntimeError, AssertionError, ValueError, IndexError, ZeroDivisionError)
"""Errors of networks that cannot take images of a shape."""

Shape = tuple[int, int, int]


class Classifier(nn.Module):
    """A network that takes images in [0, 1]: `body((x - mean) / std)`.

    Attributes:
        body: maps (n, c, h, w) normalised images to (n, classes) logits.
        mean, std: (1, 1 or c, 1, 1) buffers, saved with the weights; public constants, never taken from the data.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, body: nn.Module, mean: float | Sequence[float] = 0.5, std: float | Sequence[float] = 0.5
    ) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32).reshape(1, -1, 1, 1))

    @staticmethod
    def is_scale(value: Tensor) -> bool:
        """Return whether a tensor has the shape of a mean or a std: one number, or one per channel."""
        return value.ndim == 4 and value.shape[0] == value.shape[2] == value.shape[3] == 1

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load mean and std with one number or one per channel, independently of the shape in this network."""
        for name in ("mean", "std"):
            loaded, own = state_dict.get(f"{prefix}{name}"), getattr(self, name)
            if isinstance(loaded, Tensor) and self.is_scale(loaded) and loaded.shape != own.shape:
                setattr(self, name, own.new_empty(loaded.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, c, h, w) in [0, 1] to (n, classes) logits."""
        return self.body((x - self.mean) / self.std)

    def features(self, x: Tensor) -> Tensor:
        """Map (n, c, h, w) in [0, 1] to (n, d), the input of the classification layer."""
        x = (x - self.mean) / self.std
        if isinstance(self.body, SmallNet):
            return self.body.features(x)
        timm: Any = self.body
        if hasattr(timm, "forward_features") and hasattr(timm, "forward_head"):
            return timm.forward_head(timm.forward_features(x), pre_logits=True).flatten(1)
        with recorded_features(self.body) as features:
            self.body(x)
        return features[-1]


def build(arch: str, shape: Shape, classes: int) -> Classifier:
    """Build a newly initialised classifier, in training mode, on the CPU.

    Weights are drawn from torch's global generator, which the caller seeds.

    Args:
        arch: one of `own_names()`, a timm model name, or "tv:" and a torchvision classification model name; the last
            two may have the prefix "small:", for a stem that fits small images.
        shape: (c, h, w) of one image. It is passed to networks that need the image size; names with `_patchP` get
            smaller patches below 64 pixels (`choose_patch_size`).
        classes: number of classes, at least 2.

    Raises:
        BenchError: an unknown name, a name that would require a download or a file, or a network that cannot take
            images of this size (tested with two black images).
    """
    if is_users_network(arch):
        return _build_users(arch, shape, classes)
    try:
        model = Classifier(make_body(arch, shape, classes))
        logits = _logits_of_black_images(model, shape)
    except _SHAPE_ERRORS as error:
        raise _cannot_take(arch, shape, f"{type(error).__name__}: {error}") from error
    if logits.shape != (2, classes) or not logits.isfinite().all():
        raise _cannot_take(arch, shape, f"it returns {tuple(logits.shape)} or values that are not finite")
    return model


def make_body(arch: str, shape: Shape, classes: int) -> nn.Module:
    """Build the unwrapped network of a classifier, without testing it. Raises BenchError for an unknown name."""
    return _factory(arch)(shape, classes)


def _build_users(arch: str, shape: Shape, classes: int) -> Classifier:
    """Build a user's own network, which may raise or return anything. Arguments and errors as for `build`."""
    model = Classifier(users_network.make(arch, shape, classes))
    with plugin_errors(f"--teacher {arch}, given two images of {'x'.join(map(str, shape))}", users_network.ADVICE):
        logits: object = _logits_of_black_images(model, shape)
    if not isinstance(logits, Tensor) or logits.shape != (2, classes) or not logits.isfinite().all():
        found = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise BadPlugin(
            f"--teacher {arch}: its network returns {found} for two images; expected finite logits of shape "
            f"{(2, classes)}; {users_network.ADVICE}"
        )
    with plugin_errors(f"--teacher {arch}, features of two images", users_network.ADVICE), torch.no_grad():
        try:
            model.eval().features(torch.zeros(2, *shape))
        except Incompatible as error:
            raise BadPlugin(f"--teacher {arch}: {error}; {users_network.ADVICE}") from error
    return model.train()


def own_names() -> list[str]:
    """Return the names of the plug-ins."""
    return list(plugins.entries(KIND))


def check(arch: str) -> None:
    """Check that `build` knows the name, without building anything. Raises BenchError with up to five similar names."""
    own = own_names()
    if arch in own:
        return
    if is_users_network(arch):
        return users_network.check_named(arch)
    if (name := BackboneName.parse(arch)) is not None:
        return name.check()
    if not _NAME.fullmatch(arch):
        raise UnknownName(
            f"'{arch}' is not a network name: give {', '.join(own)}, a timm name without the '.tag' of "
            "pretrained weights, tv:NAME, or small: before one of these two; "
            "nothing is downloaded or read from a path (own weights: --teacher-weights)"
        )
    named = arch.removeprefix(SMALL)
    if named not in _names_in_timm_source() and named not in _library_names():
        close = difflib.get_close_matches(arch, [*own, *sorted(_library_names())], n=5, cutoff=0.5)
        hint = f" Close: {', '.join(close)}." if close else ""
        raise UnknownName(f"no network called '{arch}'.{hint} Known: {', '.join(own)}, timm's names, and tv:NAME")


@cache
def _factory(arch: str) -> Callable[[Shape, int], nn.Module]:
    """Return the factory of the network with this name. Raises BenchError as `check`."""
    check(arch)
    if arch in own_names():
        expected = "one class that extends SmallNet"
        return plugins.class_of(plugins.find(KIND, arch), lambda cls: issubclass(cls, SmallNet), expected)
    if (name := BackboneName.parse(arch)) is not None:
        return partial(backbone.BackboneLinear, name)
    if arch.startswith(SMALL):
        return partial(_with_small_stem, _factory(arch.removeprefix(SMALL)))
    if arch.startswith(TORCHVISION):
        return partial(_from_torchvision, arch.removeprefix(TORCHVISION))
    return partial(_from_timm, arch)


@cache
def _names_in_timm_source() -> frozenset[str]:
    """Return the names that timm's source registers, read without the import, which takes seconds.

    Empty if the files have another form; `check` then imports timm.
    """
    timm = importlib.util.find_spec("timm")
    folders = (timm.submodule_search_locations or []) if timm else []
    files = [file for folder in folders for file in Path(folder, "models").glob("*.py")]
    return frozenset(name for file in files for name in _REGISTERED.findall(file.read_text(encoding="utf-8")))


@cache
def _library_names() -> frozenset[str]:
    """Return the names of timm and, with their prefix, of torchvision."""
    import timm
    import torchvision

    tv = torchvision.models.list_models(module=torchvision.models)
    return frozenset(timm.list_models()) | {f"{TORCHVISION}{name}" for name in tv}


def _from_timm(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build a timm network for images of this shape.

    Raises:
        ValueError: its patches do not cover the image.
    """
    import timm

    channels, height, width = shape
    size: dict[str, Any] = {"img_size": height if height == width else (height, width)}
    options = [size, {}]
    if re.search(r"_patch\d", name) and max(height, width) < SMALL_IMAGE:
        options.insert(0, {**size, "patch_size": choose_patch_size(height, width)})

    def make(**extra: Any) -> nn.Module:
        return timm.create_model(name, pretrained=False, in_chans=channels, num_classes=classes, **extra)

    body = _first_accepted(make, options)
    embed = next((layer for layer in body.modules() if isinstance(layer, timm.layers.PatchEmbed)), None)
    if (
        embed is not None
        and not embed.dynamic_img_pad
        and (height % embed.patch_size[0] or width % embed.patch_size[1])
    ):
        raise ValueError(f"patches of {embed.patch_size[0]} pixels do not cover the image")
    return body


def _from_torchvision(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build a torchvision network; its first convolution is replaced if the images do not have three channels."""
    import torchvision

    channels, height, width = shape
    options: list[dict[str, Any]] = [{"image_size": height}, {"input_size": (height, width)}, {}]
    fixed: dict[str, Any] = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}

    def make(**extra: Any) -> nn.Module:
        return torchvision.models.get_model(name, weights=None, num_classes=classes, **fixed, **extra)

    body = _first_accepted(make, options)
    if channels != 3:
        path, old = _first_convolution(body)
        kernel, stride = (old.kernel_size[0], old.kernel_size[1]), (old.stride[0], old.stride[1])
        padding = old.padding if isinstance(old.padding, str) else (old.padding[0], old.padding[1])
        new = nn.Conv2d(channels, old.out_channels, kernel, stride, padding, bias=old.bias is not None)
        body.set_submodule(path, new)
    return body


def _first_accepted(make: Callable[..., nn.Module], options: list[dict[str, Any]]) -> nn.Module:
    """Build with the first of the options that the architecture's constructor accepts."""
    for extra in options[:-1]:
        try:
            return make(**extra)
        except TypeError:
            continue
    return make(**options[-1])


def choose_patch_size(height: int, width: int) -> int:
    """Choose a vision transformer's patch size for an image size.

    The smallest one that divides both sides and makes 4 to 8 patches along the longer one; if there is none, as for 26
    pixels, the largest that makes more than 8.

    >>> [choose_patch_size(side, side) for side in (16, 28, 32, 48, 26)]
    [2, 4, 4, 6, 2]
    """
    longer = max(height, width)
    sides = [p for p in range(1, min(height, width) + 1) if height % p == 0 == width % p]
    fits = [p for p in sides if FEWEST_PATCHES <= longer // p <= MOST_PATCHES]
    return fits[0] if fits else max((p for p in sides if longer // p > MOST_PATCHES), default=1)


def _with_small_stem(make: Callable[[Shape, int], nn.Module], shape: Shape, classes: int) -> nn.Module:
    """Build the network with a first convolution of 3x3 pixels and stride 1, for small images.

    If the images are so small that later maps would be empty, the last max-pooling is removed too.

    Raises:
        ValueError: its first convolution is a patch embedding.
    """
    body = make(shape, classes)
    path, first = _first_convolution(body)
    if first.kernel_size == first.stride:
        raise ValueError("it splits the image into patches and has no stem")
    if first.stride != (1, 1) or first.kernel_size != (3, 3):
        stem = nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=first.bias is not None)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        body.set_submodule(path, stem)
    pools = [path for path, layer in body.named_modules() if isinstance(layer, nn.MaxPool2d)]
    if pools:
        try:
            _logits_of_black_images(Classifier(body), shape)
        except _SHAPE_ERRORS:
            body.set_submodule(pools[-1], nn.Identity())
    return body


def _first_convolution(body: nn.Module) -> tuple[str, nn.Conv2d]:
    """Return the first convolution and its path in the network."""
    return next((path, layer) for path, layer in body.named_modules() if isinstance(layer, nn.Conv2d))


def _logits_of_black_images(model: Classifier, shape: Shape) -> Tensor:
    """Return the (2, classes) logits of two black images; the model is left in training mode."""
    model.eval()
    with torch.no_grad():
        logits = model(torch.zeros(2, *shape))
    model.train()
    return logits


def _cannot_take(arch: str, shape: Shape, reason: str) -> BenchError:
    """Return the error for images of a shape that a network cannot take; only the reason's first line is kept."""
    size = "x".join(map(str, shape))
    reason = (reason.splitlines() or [""])[0][:160]
    return Incompatible(
        f"the network '{arch}' cannot take {size} images ({reason}): choose another one, such as resnet18, "
        "or a data set of larger images"
    )


@contextmanager
def recorded_features(module: nn.Module) -> Iterator[list[Tensor]]:
    """Record the penultimate features of every forward pass of `module`: a context manager that yields their list.

    Features are the differentiable input (n, d) of the last linear layer or, in a network without any, of the last
    convolution, whose input is averaged over its positions.

    Raises:
        BenchError: the network has neither.
    """
    layers: list[nn.Module] = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    layers = layers or [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    if not layers:
        raise Incompatible(
            "the network has neither a linear nor a convolutional layer to take features from; use an attack without "
            "features, such as gmi"
        )
    features: list[Tensor] = []

    def record(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        features.append(x.mean((2, 3)) if x.ndim == 4 else x.flatten(1))

    handle = layers[-1].register_forward_pre_hook(record)
    try:
        yield features
    finally:
        handle.remove()
