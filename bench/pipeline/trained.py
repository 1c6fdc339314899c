"""A network together with the finished step that it came from, and how networks are kept and measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from bench import nets, teachers
from bench.data import ImageData
from bench.errors import RunFailed
from bench.pipeline.job import Job
from bench.pipeline.material import Material
from bench.storage.specs import canonical
from bench.storage.store import Step

WEIGHTS = "model.safetensors"
RESULT = "result.json"
Network = TypeVar("Network", bound=nn.Module, covariant=True)
Frozen = TypeVar("Frozen", bound=nn.Module)


@dataclass(frozen=True)
class Trained(Generic[Network]):
    """A network, frozen and in eval mode on the run's device, and the step that made it."""

    step: Step
    network: Network

    @property
    def result(self) -> dict[str, Any]:
        """What was measured of it when it was made."""
        found: dict[str, Any] = self.step.json(RESULT)
        return found


@dataclass(frozen=True)
class Networks:
    """All that is trained before anything is attacked.

    Attributes:
        teacher: None if neither the method nor an attack asks it.
        evaluator: None if no inversion follows.
        ensemble: None if the method asks for none.
    """

    teacher: Trained[nets.Classifier] | None
    evaluator: Trained[nets.Classifier] | None
    ensemble: Trained[nets.Ensemble] | None
    student: Trained[nets.Classifier]


def new_network(arch: str, material: Material, seed: int) -> nets.Classifier:
    """An untrained network for the images of a run."""
    torch.manual_seed(seed)
    return nets.build(arch, material.data.shape, material.data.classes)


def load_network(job: Job, step: Step, arch: str) -> Trained[nets.Classifier]:
    """The network that a step keeps."""
    model = new_network(arch, job.material, 0)
    teachers.load(step.path / WEIGHTS, model)
    return Trained(step, frozen(model, job.device))


def frozen(model: Frozen, device: torch.device) -> Frozen:
    """The network in eval mode on the device, for those who ask it and descend through it, but train nothing of it.

    Weights of convolutions are channels-last: asking takes 1.2 to 2.2 times less time on a CPU for it, gradients to
    images 1.1 to 1.5 times (benchmarks/channels_last.py), where training would gain little.
    """
    placed: Frozen = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return placed.eval().requires_grad_(False)


def save_network(path: Path, model: nn.Module, result: dict[str, Any]) -> None:
    """Keep a network with what was measured of it in a step's directory."""
    teachers.save(path / WEIGHTS, model)
    (path / RESULT).write_text(canonical(result), encoding="utf-8")


def test_accuracy(model: nn.Module, data: ImageData, device: torch.device) -> dict[str, Any]:
    """Right answers on the test set: "correct" of "tested", and their share "accuracy".

    Raises:
        RunFailed: the network answers with no numbers, of which the arg-max would be class 0.
    """
    logits = teachers.predict(model, data.test_images, device)
    if not (finite := logits.isfinite().all(1)).all():
        lost = len(logits) - int(finite.sum())
        raise RunFailed(f"training diverged: {lost} of {len(logits)} test images are answered with NaN or infinity")
    correct = int((logits.argmax(1) == data.test_labels).sum())
    return {"correct": correct, "tested": len(logits), "accuracy": correct / len(logits)}
