"""Write and load the student of a bundle: its weights and `model.json`, or a program of `torch.export`.

The weights of a timm or torchvision network have that library's names, so that it can load them without this package;
other networks are loaded by this package. A bundle contains no `torch.export` program, because loading one runs code
from the file before it could be checked. Users make the program from a verified bundle themselves (`write_program`).
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from bench import data, nets, teachers
from bench.boards.flags import pretrained_source
from bench.bundle.contents import check_weights
from bench.bundle.files import WEIGHTS, open_file, read_model
from bench.bundle.finding import AGAIN, FinishedRun, StudentInput
from bench.bundle.library import builds, calls, library_call
from bench.bundle.schema import FORMAT, WITHHELD, Accuracy, Failed, Input, Model, Normalisation, Pretrained
from bench.errors import BenchError
from bench.nets import Classifier

KEPT = ("val", "tensor_meta")
"""Metadata of a program's nodes; the rest is removed, as it has source paths of the machine that made it."""


def student_input(run: FinishedRun, own_names: bool) -> StudentInput:
    """Return the image shape, the number of classes and the class names of a run's student.

    Args:
        own_names: include class names of a user's own data set, which are withheld otherwise.

    Raises:
        BenchError: an older release without them, on a data set that is not a published one.
    """
    where = run.record.spec["release"]["teacher"]["data"]
    facts, kept = data.facts(where["dataset"]), run.result.input
    if kept is not None:
        names = kept.class_names if facts.is_public or own_names else None
        return StudentInput(kept.shape, kept.classes, names)
    if facts.shape is None or not facts.is_public:
        raise BenchError(f"RUN {run.record.hash}: its release does not state the size of its images; {AGAIN}")
    names = facts.classes_of(where["split"])
    return StudentInput(facts.shape, len(names), names)


def rebuild(run: FinishedRun, images: StudentInput) -> Classifier:
    """Rebuild the released student, in eval mode, on the CPU; raise BenchError if its name and weights do not fit."""
    try:
        model = nets.build(run.result.arch, images.shape, images.classes)
        teachers.load(run.step / "model.safetensors", model)
    except BenchError as error:
        raise BenchError(f"RUN {run.record.hash}: the network of its release cannot be built: {error}") from None
    return model.eval().requires_grad_(False)


def write_network(folder: Path, run: FinishedRun, own_names: bool) -> Model:
    """Write the student's weights into `folder`; return the content of `model.json`.

    Raises:
        BenchError: as `student_input` and `rebuild`, or the record and the release have different accuracies.
    """
    images, arch = student_input(run, own_names), run.result.arch
    model = rebuild(run, images)
    teachers.save(folder / WEIGHTS, model.body)
    release = run.record.spec["release"]
    dataset, source = release["teacher"]["data"]["dataset"], pretrained_source(release.get("public"))
    began = {} if source is None else {"pretrained": Pretrained(network=source.network, sha256=source.sha256)}
    is_public, accuracy = data.facts(dataset).is_public, None
    if is_public:  # a user's own test images may be private
        share, low, high = (run.record.metrics[f"accuracy{end}"] for end in ("", ".lo", ".hi"))
        if share is None or low is None or high is None or share != run.result.accuracy:
            raise BenchError(
                f"RUN {run.record.hash}: its record has an accuracy of {share}, its release {run.result.accuracy}; "
                "one of them was edited, or is damaged: run it again with --fresh"
            )
        accuracy = Accuracy(share=share, low=low, high=high, images=run.result.tested)
    return Model(
        format=FORMAT,
        architecture=arch,
        library=library_call(arch, model, images.shape, images.classes),
        torch=str(torch.__version__),
        input=Input(shape=images.shape, layout="n, c, h, w", dtype="float32", range=(0, 1)),
        normalisation=Normalisation(mean=model.mean.flatten().tolist(), std=model.std.flatten().tolist()),
        classes=images.classes,
        class_names=None if images.class_names is None else list(images.class_names),
        data=dataset if is_public else WITHHELD,
        accuracy=accuracy,
        parameters=_parameters(model),
        buffers=_buffers(model),
        **began,
    )


def _parameters(model: Classifier) -> int:
    return sum(p.numel() for p in model.body.parameters())


def _buffers(model: Classifier) -> list[str]:
    return sorted(set(model.body.state_dict()) - {name for name, _ in model.body.named_parameters()})


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
    """Build the student of `model.json` with the weights of the bundle; raise BenchError if they do not fit."""
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
        raise Failed(f"the student's output has shape {tuple(logits.shape)}, or numbers that are not finite")
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


def write_program(path: Path, model: Classifier, shape: tuple[int, int, int]) -> bool:
    """Write a student as a program of `torch.export`, which torch loads without this package.

    Args:
        model: the student in eval mode, on the CPU, frozen.
        path: file to write.
        shape: (c, h, w) of its images; the program takes any number of them, in [0, 1].

    Returns:
        False, without a file, if torch cannot trace the network or the program has other outputs.
    """
    try:
        dynamic = ({0: torch.export.Dim("n")},)
        program = torch.export.export(model, (torch.zeros(2, *shape),), dynamic_shapes=dynamic)
        graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
        for node in (node for graph in graphs for node in graph.graph.nodes):
            for name in set(node.meta) - set(KEPT):
                del node.meta[name]
        torch.export.save(program, path)
        written = torch.export.load(path).module()
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError):
        # Not every network can be traced; users then load the weights with this package.
        path.unlink(missing_ok=True)
        return False
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    if torch.allclose(written(images), model(images), rtol=1e-4, atol=1e-5):
        return True
    path.unlink()
    return False
