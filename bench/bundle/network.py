"""The student of a bundle: its weights under the names of its own library, and `model.json`, which describes loading.

A network of timm or torchvision is stored so that this library loads it; any other one is loaded by this package.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from bench import data, nets, teachers
from bench.bundle.contents import check_weights
from bench.bundle.files import WEIGHTS, open_file, read_model
from bench.bundle.finding import AGAIN, Found
from bench.bundle.library import builds, calls, library_call
from bench.bundle.schema import FORMAT, WITHHELD, Accuracy, Input, Model, Normalisation
from bench.bundle.strict_json import Failed
from bench.errors import BenchError
from bench.nets import Classifier


@dataclass(frozen=True)
class Takes:
    """Input and output of a student: (c, h, w) images, number of classes, and class names if they are public."""

    shape: tuple[int, int, int]
    classes: int
    class_names: tuple[str, ...] | None


def takes(found: Found, own_names: bool) -> Takes:
    """Return shape and classes of a run's student.

    Args:
        own_names: also name the classes of a user's own data set.

    Raises:
        BenchError: an older release without them, on a data set that is not a published one.
    """
    where = found.record.spec["release"]["teacher"]["data"]
    facts, kept = data.facts(where["dataset"]), found.result.get("input")
    if kept is not None:
        names = tuple(kept["class_names"])
        return Takes(tuple(kept["shape"]), len(names), names if facts.is_public or own_names else None)
    if facts.shape is None or not facts.is_public:
        raise BenchError(f"RUN {found.record.hash}: its release does not say which images it takes; {AGAIN}")
    names = facts.classes_of(where["split"])
    return Takes(facts.shape, len(names), names)


def rebuild(found: Found, given: Takes) -> Classifier:
    """Rebuild the released student, in eval mode, on the CPU. Raises BenchError if its name and weights do not fit."""
    arch = found.result["arch"]
    try:
        model = nets.build(arch, given.shape, given.classes)
        teachers.load(found.step / "model.safetensors", model)
    except BenchError as error:
        raise BenchError(f"RUN {found.record.hash}: its release is no network that can be built: {error}") from None
    return model.eval().requires_grad_(False)


def write_network(folder: Path, found: Found, own_names: bool) -> Model:
    """Write the student's weights into `folder`; return the content of `model.json`. Raises BenchError."""
    taken = takes(found, own_names)
    model, arch = rebuild(found, taken), found.result["arch"]
    teachers.save(folder / WEIGHTS, model.body)
    return Model(
        format=FORMAT,
        architecture=arch,
        library=library_call(arch, model, taken.shape, taken.classes),
        torch=str(torch.__version__),
        input=Input(shape=taken.shape, layout="n, c, h, w", dtype="float32", range=(0, 1)),
        normalisation=Normalisation(mean=model.mean.flatten().tolist(), std=model.std.flatten().tolist()),
        classes=taken.classes,
        class_names=None if taken.class_names is None else list(taken.class_names),
        data=_data(found),
        accuracy=_accuracy(found),
        parameters=_parameters(model),
        buffers=_buffers(model),
    )


def _parameters(model: Classifier) -> int:
    return sum(p.numel() for p in model.body.parameters())


def _buffers(model: Classifier) -> list[str]:
    return sorted(set(model.body.state_dict()) - {name for name, _ in model.body.named_parameters()})


def _data(found: Found) -> str:
    name = found.record.spec["release"]["teacher"]["data"]["dataset"]
    return name if data.facts(name).is_public else WITHHELD


def _accuracy(found: Found) -> Accuracy | None:
    """Return the accuracy on the public test part of a published data set; a user's own test images may be private."""
    if _data(found) == WITHHELD:
        return None
    share, low, high = (found.record.metrics[f"accuracy{end}"] for end in ("", ".lo", ".hi"))
    if share is None or low is None or high is None or share != found.result["accuracy"]:
        raise BenchError(
            f"RUN {found.record.hash}: its record has an accuracy of {share}, its release {found.result['accuracy']}; "
            "one of them was edited, or is damaged: run it again with --fresh"
        )
    return Accuracy(share=share, low=low, high=high, images=found.result["tested"])


def load(folder: str | Path) -> Classifier:
    """Load the student of a bundle, in eval mode: (n, c, h, w) images in [0, 1] to (n, classes) logits.

    Raises:
        BenchError: not a bundle, or weights that do not fit `model.json`.
    """
    folder = Path(folder)
    try:
        model = read_model(folder)
        with open_file(folder, WEIGHTS) as stream:
            check_weights(WEIGHTS, stream, os.fstat(stream.fileno()).st_size)
    except Failed as error:
        raise BenchError(f"{folder} has no student: {error}") from None
    return student(folder, model)


def student(folder: Path, made: Model) -> Classifier:
    """Build the student of `model.json` with the weights of the bundle. Raises BenchError if they do not fit."""
    model = nets.build(made.architecture, made.input.shape, made.classes)
    scale = made.normalisation
    mean, std = (torch.tensor(each, dtype=torch.float32).view(1, -1, 1, 1) for each in (scale.mean, scale.std))
    model.mean, model.std = mean, std
    teachers.load(folder / WEIGHTS, model.body)
    return model.eval().requires_grad_(False)


def import_libraries(architecture: str) -> None:
    """Import timm or torchvision if it builds the network of that name."""
    if architecture not in nets.own_names():
        import timm  # noqa: F401
        import torchvision  # noqa: F401


def check_student(model: Classifier, made: Model) -> tuple[int, ...]:
    """Return the shape of a student's output for two noise images of the stated shape.

    Raises:
        Failed: it cannot take them, or its output is not finite or not two rows of the stated classes; or its
            parameters, its buffers or the library's network are not those in `model.json`.
    """
    shape = made.input.shape
    try:
        logits = model(torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise Failed(f"the student cannot take images of shape {list(shape)} ({type(error).__name__})") from None
    if tuple(logits.shape) != (2, made.classes) or not all(map(math.isfinite, logits.flatten().tolist())):
        raise Failed(f"the student answers {tuple(logits.shape)}, or numbers that are not finite")
    if (made.parameters, made.buffers) != (_parameters(model), _buffers(model)):
        raise Failed(
            f"the student has {_parameters(model):,} parameters and {len(_buffers(model))} buffers, which are not "
            f"those stated ({made.parameters:,} and {len(made.buffers)})"
        )
    call = made.library
    if call is not None and (
        call not in calls(made.architecture, shape, made.classes) or not builds(call, model, shape)
    ):
        raise Failed(f"{call.function} with the stated arguments does not build the student")
    return tuple(logits.shape)
