"""Load finished models as networks from images in [0, 1] to logits; code in files runs only with permission.

| given | needs | runs code of the file |
|---|---|---|
| .safetensors, torch file of a state dict | a network's name | no |
| ONNX (.onnx) | onnxruntime, extra `onnx` | no: a graph of known operators |
| TorchScript, torch.export (.pt2) | --trust-code | yes |
| folder of `bench export` | nothing | no |
| Python callable | the Python interface | it is the user's own code |
| pickle | refused | it would |
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench import nets
from bench.data import QUERY_BATCH, batch_size_for
from bench.errors import BenchError
from bench.escape import visible
from bench.nets import Classifier
from bench.nets.users_network import is_users_network
from bench.progress import reporter
from bench.teachers.weights import Normalisation, load_user

Shape = tuple[int, int, int]
PICKLES = (".pkl", ".pickle", ".joblib", ".sav", ".dill")
NORMALISATIONS: dict[str, Normalisation] = {
    "0,1 (pixels in [0, 1])": (0.0, 1.0),
    "0.5,0.5 (pixels in [-1, 1])": (0.5, 0.5),
    "0.485/0.456/0.406,0.229/0.224/0.225 (ImageNet)": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
WEIGHTS, ASSUMED = "weights of", "no mean and std are known"
"""The first words of a kind of weights, and words of the notice that a normalisation was assumed."""
BATCH = QUERY_BATCH
"""Images of 32x32 pixels per query."""
BETTER = 0.1
"""Gain of accuracy from which on another normalisation is considered the right one."""


@dataclass(frozen=True)
class ModelGiven:
    """A finished model as a user names it.

    Attributes:
        source: a path, or a callable from (n, c, h, w) float32 images to (n, classes) logits or probabilities.
        network: name of the network, if the source is weights; "PACKAGE.MODULE:FUNCTION" is imported.
        classes: number of outputs; None = the largest label + 1, or as the file says.
        normalise: (mean, std) on pixels in [0, 1]; None = as the weights say, else none for programs.
        trust_code: whether TorchScript and torch.export files may be run.
        is_bundle: whether the source is a folder of `bench export`.
    """

    source: Path | Callable[..., Any]
    network: str | None = None
    classes: int | None = None
    normalise: Normalisation | None = None
    trust_code: bool = False
    is_bundle: bool = False


@dataclass(frozen=True)
class Loaded:
    """A model ready to be queried.

    Attributes:
        module: (n, c, h, w) in [0, 1] to (n, classes) logits, in eval mode, frozen.
        classes: its number of outputs.
        kind: the kind of model in words.
        said: sentences on how it was read.
        is_assumed: whether its normalisation was assumed: neither the user nor the file gave one.
    """

    module: nn.Module
    classes: int
    kind: str
    said: tuple[str, ...] = ()
    is_assumed: bool = True


class _Notices:
    """Collects the notices of reading weights."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, stage: str, done: int, total: int) -> None:
        """As `bench.progress.Reporter`."""

    def notice(self, line: str) -> None:
        """As `bench.progress.Reporter`."""
        self.lines.append(_own_options(line))


class _Logits(nn.Module):
    """Adapts a model that returns probabilities: returns their logarithms as logits."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities; probabilities below the smallest normal float32 count as that."""
        return self.body(x).clamp_min(torch.finfo(torch.float32).tiny).log()


class _Called(nn.Module):
    """Adapts a callable: a module whose output is a float32 tensor."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the callable."""
        found = self.function(x)
        return torch.as_tensor(np.asarray(found) if not isinstance(found, Tensor) else found).float().cpu()


def load_model(given: ModelGiven, shape: Shape, labels: Tensor) -> Loaded:
    """Load a model and try it on two images.

    Args:
        shape: (c, h, w) of the images.
        labels: (n,) int64 labels of the members; the largest gives the number of outputs if the file does not.

    Raises:
        BenchError: a file that cannot be read without running its code, weights that do not fit, a model that cannot
            take these images, or with fewer outputs than classes.
    """
    classes = given.classes or max(2, int(labels.max()) + 1)
    module, kind, said = _open(given, shape, classes)
    module.eval().requires_grad_(False)
    outputs = _try(module, shape, kind)
    if bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < 1e-3).all()):
        module = _Logits(module).eval()
        said = (*said, "the outputs are probabilities; their logarithms are taken as logits")
    if int(labels.max()) >= outputs.shape[1]:
        raise BenchError(f"the model has {outputs.shape[1]} outputs, and the largest label is {int(labels.max())}")
    is_known = given.normalise is not None or given.is_bundle
    is_known |= kind.startswith(WEIGHTS) and not any(ASSUMED in line for line in said)
    return Loaded(module, int(outputs.shape[1]), kind, said, not is_known)


def _open(given: ModelGiven, shape: Shape, classes: int) -> tuple[nn.Module, str, tuple[str, ...]]:
    source = given.source
    if not isinstance(source, Path):
        return _normalised(_Called(source), given.normalise), "Python callable", ()
    if given.is_bundle:
        from bench import bundle

        return bundle.load(source), "bundle", ()
    if not source.is_file():
        raise BenchError(f"no model file at '{source}'; give weights with --network, .onnx, or --bundle DIR")
    suffix = source.suffix.lower()
    if suffix in PICKLES:
        raise BenchError(
            f"'{source}' is a pickle, which can run any code when it is opened, so that it is never opened; save the "
            "weights as .safetensors, or the model as .onnx"
        )
    if suffix == ".onnx":
        from bench.assess.onnx import OnnxModel

        return _normalised(OnnxModel(source, shape), given.normalise), "ONNX", ()
    program = _program_kind(source)
    if program is not None:
        return _normalised(_run_program(source, program, given.trust_code), given.normalise), program, ()
    return _weights(given, source, shape, classes)


def _normalised(body: nn.Module, normalise: Normalisation | None) -> nn.Module:
    mean, std = (0.0, 1.0) if normalise is None else normalise
    return Classifier(body, mean, std)


def _program_kind(path: Path) -> str | None:
    """Return "TorchScript" or "torch.export" by the names in a file's archive; None for any other file."""
    if path.suffix.lower() == ".pt2":
        return "torch.export"
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.endswith("/constants.pkl") for name in names):
        return "TorchScript"
    return "torch.export" if any("/models/" in f"/{name}" and name.endswith(".json") for name in names) else None


def _run_program(path: Path, kind: str, trusted: bool) -> nn.Module:
    if not trusted:
        raise BenchError(
            f"'{path}' is a program of {kind}, and loading it runs code that is written into the file; give "
            "--trust-code for a file that you made yourself, else save the weights as .safetensors, or .onnx"
        )
    try:
        if kind == "TorchScript":
            return torch.jit.load(path, map_location="cpu")
        return _Exported(torch.export.load(path).module())
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BenchError(f"'{path}' cannot be loaded as {kind} ({visible(said)}); export it again") from error


class _Exported(nn.Module):
    """Adapts a module of torch.export, which cannot switch between training and eval mode."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self._program = [program]  # in a list, so that it is not registered as a child

    def forward(self, x: Tensor) -> Tensor:
        """Return the program's outputs."""
        found: Tensor = self._program[0](x)
        return found


def _weights(given: ModelGiven, path: Path, shape: Shape, classes: int) -> tuple[nn.Module, str, tuple[str, ...]]:
    if given.network is None:
        raise BenchError(
            f"'{path}' holds weights, and no network is named; give --network NAME of timm, tv:NAME of torchvision, or "
            "PACKAGE.MODULE:FUNCTION of your own"
        )
    notices = _Notices()
    token = reporter.set(notices)
    try:
        arch = nets.identify(given.network)
        module = nets.build(arch, shape, classes)
        load_user(path, module, arch, given.normalise, shape)
        if not is_users_network(arch):  # a user's own code may flatten by a view, which needs the usual layout
            module.to(memory_format=torch.channels_last)
    except BenchError as error:
        raise BenchError(_own_options(str(error))) from error
    finally:
        reporter.reset(token)
    return module, f"{WEIGHTS} {visible(given.network)}", tuple(notices.lines)


def _own_options(text: str) -> str:
    """Replace the options of `bench run` in a message of `bench.teachers` by those of this command."""
    for theirs, ours in (("--teacher-normalise", "--normalise"), ("--teacher-weights", "--model")):
        text = text.replace(theirs, ours)
    return text.replace("--teacher", "--network")


def _try(module: nn.Module, shape: Shape, kind: str) -> Tensor:
    """Query the module on two images of noise. Raises BenchError if it fails or returns wrong outputs."""
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    said = f"the model ({kind}) given two images of {'x'.join(map(str, shape))}"
    try:
        with torch.no_grad():
            found: object = module(images)
    except BenchError:
        raise
    except Exception as error:  # a user's model may raise anything
        first = (str(error).splitlines() or [""])[0][:200]
        raise BenchError(
            f"{said} fails ({type(error).__name__}: {visible(first)}); check --size and --channels"
        ) from error
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2 or found.shape[1] < 2:
        shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise BenchError(f"{said} gives {shown}; expected (2, classes) with at least 2 classes")
    if not bool(found.isfinite().all()):
        raise BenchError(f"{said} gives NaN or infinite outputs; check the weights and --normalise")
    return found


def query(
    module: nn.Module, images: Tensor, batch: int = BATCH, step: Callable[[int], object] = lambda _: None
) -> Tensor:
    """Return (n, classes) float32 logits of (n, c, h, w) uint8 images. Raises BenchError if one is not finite."""
    parts = []
    with torch.no_grad():
        for some in images.split(batch_size_for(images, batch)):
            parts.append(module(some.float() / 255).float())
            step(len(some))
    logits = torch.cat(parts)
    bad = int((~logits.isfinite().all(1)).sum())
    if bad:
        raise BenchError(
            f"the model gives NaN or infinite outputs for {bad} of {len(images)} images; check its weights"
        )
    return logits


def check_normalisation(loaded: Loaded, images: Tensor, labels: Tensor) -> str:
    """Refuse a model whose accuracy is at least 10 points higher with another normalisation than the assumed one.

    A network that was trained for a short time may be more accurate with another normalisation than its own. So if the
    user or the file gives a normalisation, the better one is only reported.

    Args:
        images: (n, c, h, w) uint8 members, some hundred.

    Returns:
        A sentence on a better normalisation than the given one; "" if there is none.

    Raises:
        BenchError: the message names the better normalisation.
    """
    inner = loaded.module.body if isinstance(loaded.module, _Logits) else loaded.module
    if not isinstance(inner, Classifier):
        return ""
    mean, std = inner.mean, inner.std
    right = _accuracy(inner, images, labels)
    for name, (other_mean, other_std) in NORMALISATIONS.items():
        if images.shape[1] != 3 and isinstance(other_mean, Sequence):
            continue
        inner.mean, inner.std = (torch.as_tensor(each).float().reshape(1, -1, 1, 1) for each in (other_mean, other_std))
        better = _accuracy(inner, images, labels)
        inner.mean, inner.std = mean, std
        if better > right + BETTER:
            said = f"the model's accuracy on members is {right:.1%}, and {better:.1%} with --normalise {name}"
            if not loaded.is_assumed:
                return f"Of {len(labels)} members, {said}."
            raise BenchError(f"{said}: its images were probably normalised in this way; give the right --normalise")
    return ""


def _accuracy(module: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        found = torch.cat(
            [module(some.float() / 255).argmax(1) for some in images.split(batch_size_for(images, BATCH))]
        )
    return float((found == labels).double().mean())
