"""Networks together with the measurements made when they were trained, and how a step's directory stores both."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from bench import nets, teachers
from bench.core.privacy import Account
from bench.core.records import Status
from bench.data import ImageData
from bench.errors import RunFailed
from bench.metrics.proportions import clopper_pearson
from bench.pipeline.job import Job
from bench.pipeline.material import Material
from bench.pipeline.plots import Plots
from bench.storage.specs import canonical
from bench.storage.store import Step
from bench.validate import present

WEIGHTS, RESULT = "model.safetensors", "result.json"
Metrics = dict[str, float | None]
Network = TypeVar("Network", bound=nn.Module, covariant=True)
Frozen = TypeVar("Frozen", bound=nn.Module)


class Score(BaseModel):
    """Correct predictions on the test set."""

    model_config = ConfigDict(frozen=True)
    correct: int
    tested: int
    accuracy: float

    @classmethod
    def of(cls, correct: int, tested: int) -> Score:
        """Build the score of a number of correct predictions."""
        return cls(correct=correct, tested=tested, accuracy=correct / tested)

    def metrics(self, name: str) -> Metrics:
        """Return the accuracy with its 95 % interval, as `name`, `name.lo`, `name.hi`."""
        return with_interval(name, self.correct, self.tested)


class Result(Score):
    """The measurements that a step stores with a network: the accuracy, and more for some kinds of network.

    Attributes:
        member_accuracy: mean accuracy of an ensemble's members.
        sizes: number of private records of each member.
        arch: a released student's network.
        solved: parameters of a release that were solved from the budget.
        privacy: the privacy account of a release.
        control, votes, linear: accuracies of a release's `control`, `votes` and `linear` (`bench.api.Release`).
        input: shape and class names of the images that a released student takes.
    """

    member_accuracy: float | None = None
    sizes: list[int] | None = None
    arch: str = ""
    solved: dict[str, int | float] | None = None
    privacy: Account | None = None
    control: Score | None = None
    votes: Score | None = None
    linear: Score | None = None
    input: dict[str, list[int] | list[str]] | None = None

    def text(self) -> str:
        """Return the canonical JSON of the measurements."""
        return canonical(self.model_dump(mode="json", exclude_unset=True))


@dataclass(frozen=True)
class Trained(Generic[Network]):
    """A network, frozen and in eval mode on the run's device, and the step that made it."""

    step: Step
    network: Network

    @property
    def result(self) -> Result:
        """The measurements made when the network was trained."""
        return Result.model_validate(self.step.json(RESULT))

    @property
    def account(self) -> Account:
        """The privacy account of a released student."""
        return present(self.result.privacy, "privacy account of the release")


@dataclass(frozen=True)
class Networks:
    """All networks of a run that are trained before any attack.

    Attributes:
        teacher: None if neither the method nor an attack needs it.
        evaluator: None if no inversion follows.
        ensemble: None if the method needs none.
    """

    teacher: Trained[nets.Classifier] | None
    evaluator: Trained[nets.Classifier] | None
    ensemble: Trained[nets.Ensemble] | None
    student: Trained[nets.Classifier]


@dataclass(frozen=True)
class StageResult:
    """The part of a run's record that one stage adds.

    Attributes:
        metrics, missing: as in a record.
        status, reason: "ok" and "", or another status of the whole run (skipped, inconclusive) and why.
        plots: pictures, drawn when the record is published.
        seconds: the seconds that each step took when it was made, cached or not.
    """

    metrics: Metrics = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    status: Status = "ok"
    reason: str = ""
    plots: Plots = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def followed_by(self, later: StageResult) -> StageResult:
        """Combine the results of two stages; a status of the later one other than "ok" is that of the run."""
        decisive = self if later.status == "ok" else later
        return StageResult(
            self.metrics | later.metrics,
            self.missing | later.missing,
            decisive.status,
            decisive.reason,
            self.plots | later.plots,
            self.seconds | later.seconds,
        )


def new_network(arch: str, material: Material, seed: int, more_classes: int = 0) -> nets.Classifier:
    """Build an untrained network for the images of a run; it has `more_classes` outputs after the private classes."""
    torch.manual_seed(seed)
    return nets.build(arch, material.data.shape, material.data.classes + more_classes)


def load_network(job: Job, step: Step, arch: str, more_classes: int = 0) -> Trained[nets.Classifier]:
    """Load the network that a step stores; `more_classes` as in `new_network`."""
    model = new_network(arch, job.material, 0, more_classes)
    teachers.load(step.path / WEIGHTS, model)
    return Trained(step, frozen(model, job.device))


def frozen(model: Frozen, device: torch.device) -> Frozen:
    """Return the network in eval mode on the device, for queries and gradients with respect to images only.

    Convolution weights are channels-last: on a CPU this makes queries 1.2 to 2.2 times faster and gradients with
    respect to images 1.1 to 1.5 times (benchmarks/channels_last.py); training would gain little.
    """
    placed: Frozen = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return placed.eval().requires_grad_(False)


def save_network(path: Path, model: nn.Module, score: Score, **measured: Any) -> None:
    """Store a network with its measurements in a step's directory; `measured` are other fields of a `Result`."""
    teachers.save(path / WEIGHTS, model)
    result = Result(correct=score.correct, tested=score.tested, accuracy=score.accuracy, **measured)
    (path / RESULT).write_text(result.text(), encoding="utf-8")


def test_accuracy(model: nn.Module, images: ImageData, device: torch.device) -> Score:
    """Count the correct predictions on the test set.

    Raises:
        RunFailed: the network returns values that are not numbers; their arg-max would be class 0.
    """
    logits = teachers.predict(model, images.test_images, device)
    if not (finite := logits.isfinite().all(1)).all():
        lost = len(logits) - int(finite.sum())
        raise RunFailed(f"training diverged: the outputs for {lost} of {len(logits)} test images are NaN or infinite")
    return Score.of(int((logits.argmax(1) == images.test_labels).sum()), len(logits))


def with_interval(name: str, successes: int, trials: int) -> Metrics:
    """Return a share with its 95 % Clopper-Pearson interval, as `name`, `name.lo`, `name.hi`."""
    low, high = clopper_pearson(successes, trials)
    return {name: successes / trials, f"{name}.lo": low, f"{name}.hi": high}
