"""The student of a bundle: its weights under the names of its own library, and `model.json`, which says how to load it.

A network of timm or torchvision is written so that the library alone loads it; any other one also as a program of
`torch.export`, so that torch alone does.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench import data, nets, teachers
from bench.bundle.finding import AGAIN, Found
from bench.bundle.library import library_call
from bench.bundle.program import PROGRAM, write_program
from bench.errors import BenchError
from bench.nets import Classifier
from bench.storage.specs import canonical

FILE = "model.json"
WEIGHTS = "student.safetensors"
FORMAT = 1
WITHHELD = "withheld: the owner's own data"


@dataclass(frozen=True)
class Takes:
    """What a student is given and answers: (c, h, w) images, so many classes, and their names where they are public."""

    shape: tuple[int, int, int]
    classes: int
    class_names: tuple[str, ...] | None


def takes(found: Found, own_names: bool) -> Takes:
    """Shape and classes of a run's student.

    Args:
        own_names: name the classes of a user's own data set too.

    Raises:
        BenchError: a release of before they were kept, of a data set that is not a published one.
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
    """The released student, in eval mode, on the CPU. Raises BenchError if its name and weights make no network."""
    arch = found.result["arch"]
    try:
        model = nets.build(arch, given.shape, given.classes)
        teachers.load(found.step / "model.safetensors", model)
    except BenchError as error:
        raise BenchError(f"RUN {found.record.hash}: its release is no network that can be built: {error}") from None
    return model.eval().requires_grad_(False)


def write_network(folder: Path, found: Found, own_names: bool) -> dict[str, Any]:
    """Write the student's files into `folder`; returns what `model.json` says. Raises BenchError."""
    given = takes(found, own_names)
    model, arch = rebuild(found, given), found.result["arch"]
    teachers.save(folder / WEIGHTS, model.body)
    call = library_call(arch, model, given.shape, given.classes)
    program = call is None and write_program(folder / PROGRAM, model, given.shape)
    made = {
        "format": FORMAT,
        "architecture": arch,
        "library": None if call is None else asdict(call),
        "program": PROGRAM if program else None,
        "torch": str(torch.__version__),
        "input": {"shape": list(given.shape), "layout": "n, c, h, w", "dtype": "float32", "range": [0, 1]},
        "normalisation": {"mean": model.mean.flatten().tolist(), "std": model.std.flatten().tolist()},
        "classes": given.classes,
        "class_names": None if given.class_names is None else list(given.class_names),
        "data": _data(found),
        "accuracy": _accuracy(found),
        "parameters": sum(p.numel() for p in model.body.parameters()),
        "buffers": sorted(set(model.body.state_dict()) - {name for name, _ in model.body.named_parameters()}),
    }
    (folder / FILE).write_text(canonical(made), encoding="utf-8")
    return made


def _data(found: Found) -> str:
    name = found.record.spec["release"]["teacher"]["data"]["dataset"]
    return name if data.facts(name).is_public else WITHHELD


def _accuracy(found: Found) -> dict[str, Any] | None:
    """On the test part of a published data set, which is public; a user's own test images may be private."""
    if _data(found) == WITHHELD:
        return None
    share, low, high = (found.record.metrics[f"accuracy{end}"] for end in ("", ".lo", ".hi"))
    if share != found.result["accuracy"]:
        raise BenchError(
            f"RUN {found.record.hash}: its record has an accuracy of {share}, its release {found.result['accuracy']}; "
            "one of them was edited, or is damaged: run it again with --fresh"
        )
    return {"share": share, "low": low, "high": high, "images": found.result["tested"]}


def load(folder: str | Path) -> Classifier:
    """The student of a bundle, in eval mode: (n, c, h, w) images in [0, 1] to (n, classes) logits.

    Raises:
        BenchError: no bundle, or weights that do not fit what `model.json` says.
    """
    folder = Path(folder)
    try:
        made = json.loads((folder / FILE).read_text(encoding="utf-8"))
        shape, scale = made["input"]["shape"], made["normalisation"]
        model = nets.build(made["architecture"], (shape[0], shape[1], shape[2]), made["classes"])
        mean, std = (torch.tensor(scale[key], dtype=torch.float32).view(1, -1, 1, 1) for key in ("mean", "std"))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]  # torch goes on with its own frames
        raise BenchError(f"{folder / FILE} describes no student ({said})") from None
    model.mean, model.std = mean, std
    teachers.load(folder / WEIGHTS, model.body)
    return model.eval().requires_grad_(False)


def answers(model: Classifier, made: dict[str, Any]) -> tuple[int, ...]:
    """The shape of a student's answer to two images of noise of the stated shape.

    Raises:
        BenchError: it cannot take them, or answers what is not finite or not two rows of the stated classes.
    """
    shape = made["input"]["shape"]
    try:
        logits = model(torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise BenchError(f"the student cannot take images of shape {shape} ({type(error).__name__})") from None
    if tuple(logits.shape) != (2, made["classes"]) or not all(map(math.isfinite, logits.flatten().tolist())):
        raise BenchError(f"the student answers {tuple(logits.shape)}, or numbers that are not finite")
    return tuple(logits.shape)
