"""Class inversion: test whether images reconstructed from a model show its classes better than its baseline does.

The attack is `pca-mi`: gradient descent over the principal components of the attacker's own images. An evaluator that
was trained on the members decides which class an image shows. The baseline uses no gradients of the model:

- By default the classes are public, such as kinds of objects. The attacker then has other records of each class, and
  the baseline is those records.
- If the classes are private, such as the face of one person, the attacker has records of other classes only. The
  baseline is retrieval: of these records, those that the model prefers for the class. Classes are attacked in two
  halves, each with the attacker's records of the other half.

The same attack runs on the unprotected control, where it must beat its baseline, and on a network with random weights,
where it must not (`bench.metrics.power`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench import registry
from bench.api import Advance, Context, Target
from bench.assess.attacks import AttackTask, finished
from bench.assess.models import Loaded, query
from bench.assess.numbers import levels_for, share
from bench.assess.policy import INVERSION
from bench.assess.records import Records
from bench.assess.schema import Interval, Inversion, Skipped
from bench.assess.training import CPU, InMemory, Trainer
from bench.core.verdict import is_significant
from bench.data import to_float
from bench.errors import BenchError, RunFailed
from bench.metrics.power import FEWEST, Power, power
from bench.metrics.retrieval import RetrievalGain, gain_over_retrieval
from bench.nets import Classifier
from bench.pipeline.retrieval import BEST, preferred
from bench.progress import track
from bench.seeds import derive

ATTACK = "pca-mi"
MOST_DRAWS, IMAGES = 5, 30
"""Most reconstructions of a class, and the number of reconstructions from which on no class gets another one."""
PUBLIC, PRIVATE = "other records of the class", "images of other classes that the model prefers"
"""The two baselines."""


@dataclass(frozen=True)
class InversionCase:
    """Settings of the test.

    Attributes:
        are_classes_private: whether the look of a class is private, such as the face of a person.
        minutes: a search of images of one network that takes longer is given up, and with it the test.
    """

    are_classes_private: bool = False
    minutes: float = 10.0

    def __post_init__(self) -> None:
        if not (0 < self.minutes < math.inf):
            raise BenchError(f"--inversion-minutes {self.minutes:g}: expected a number above 0")


@dataclass(frozen=True)
class _Counts:
    """(c, c) counts of images, row the intended class, column the evaluator's: reconstructions, and the baseline."""

    attack: Tensor
    baseline: Tensor

    def gain(self) -> RetrievalGain:
        """Return the gain of the attack over the baseline, with limits at the level of a policy's numbers."""
        return gain_over_retrieval(self.attack, self.baseline, levels_for(1).upper)


@dataclass(frozen=True)
class _Test:
    """One test: inputs that are the same for all attacked networks.

    Attributes:
        own: the attacker's records.
        classes: the tested classes, sorted.
    """

    task: AttackTask
    case: InversionCase
    own: Records
    classes: Tensor
    evaluator: Classifier
    outputs: int

    def counts(self, network: nn.Module) -> _Counts:
        """Attack one network; count what reconstructions and baseline show."""
        attack, baseline = [], []
        # Private classes: each half is attacked by an attacker who has the records of the other half
        halves = [self.classes[0::2], self.classes[1::2]] if self.case.are_classes_private else [self.classes]
        for half in halves:
            keep = torch.isin(self.own.labels, half)
            aux = self.own.take((~keep if self.case.are_classes_private else torch.ones_like(keep)).numpy())
            images, targets = self._reconstruct(network, aux, half)
            attack.append(self._count(images, targets))
            if self.case.are_classes_private:
                target = Target(network, "scores", _shape(aux), self.outputs)
                rows = preferred(target, to_float(aux.images), BEST, torch.Generator())[half]
                baseline.append(self._count(aux.images[rows.flatten()], half.repeat_interleave(rows.shape[1])))
            else:
                baseline.append(self._count(self.own.images[keep], self.own.labels[keep]))
        return _Counts(torch.stack(attack).sum(0), torch.stack(baseline).sum(0))

    def _reconstruct(self, network: nn.Module, aux: Records, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Return (n, c, h, w) uint8 reconstructions of some classes, and their (n,) classes."""
        plugin: Any = registry.load("attack", ATTACK)
        attack = plugin(draws=min(MOST_DRAWS, -(-IMAGES // self.outputs)))
        if (reason := attack.skip_reason(_shape(aux), self.outputs, len(aux))) is not None:
            raise RunFailed(reason)
        deadline = _Deadline(self.case.minutes)
        context = Context(CPU, derive(self.task.seed, ATTACK), deadline.track, InMemory())

        def invert() -> dict[str, Tensor]:
            target = Target(network, attack.access, _shape(aux), self.outputs)
            found = attack.run(target, to_float(aux.images), context)
            images = (found.images.clamp(0, 1) * 255).round().to(torch.uint8)
            return {"images": images, "targets": found.targets}

        settings: list[object] = [attack.version, attack, self.outputs, self.task.seed]
        found = finished(self.task.work, INVERSION, settings, [network], [aux.images], invert)
        keep = torch.isin(found["targets"], classes)
        return found["images"][keep], found["targets"][keep]

    def _count(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return (c, c) counts over the tested classes of uint8 images meant to show the (n,) targets."""
        count = len(self.classes)
        shown = query(self.evaluator, images)[:, self.classes].argmax(1)
        intended = torch.searchsorted(self.classes, targets)
        return (intended * count + shown).bincount(minlength=count**2).view(count, count)


class _Deadline:
    """Progress bars that end the work after some minutes."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.end = time.monotonic() + 60 * minutes

    @contextmanager
    def track(self, stage: str, total: int) -> Iterator[Advance]:
        """Open a progress bar as `bench.progress.track`. Raises RunFailed at the first step after the end."""
        with track(stage, total) as advance:

            def step(done: int) -> None:
                if time.monotonic() > self.end:
                    raise RunFailed(
                        f"the search took longer than {self.minutes:g} minutes on one network; --inversion-minutes "
                        "allows more"
                    )
                advance(done)

            yield step


def invert_classes(
    task: AttackTask, loaded: Loaded, control: Classifier, trainer: Trainer, case: InversionCase
) -> Inversion | Skipped:
    """Reconstruct the classes of the model, of the control and of an untrained network, and compare with the baseline.

    Args:
        control: the unprotected control.
        trainer: trains the evaluator.

    Returns:
        The gains over the baseline, or why the test was not made.
    """
    own = task.population or task.others.take(task.reserved)
    labels = task.members.labels
    classes = (labels if case.are_classes_private else labels[torch.isin(labels, own.labels)]).unique()
    if not has_gradients(loaded.module, _shape(own)):
        return _skip("needs gradients, which this kind of model does not give; give weights with --network")
    if len(classes) < FEWEST:
        return _skip(
            f"needs at least {FEWEST} classes with members and with records of the attacker, not {len(classes)}"
        )
    evaluator = trainer.evaluator(task.members.images, task.members.labels)
    test = _Test(task, case, own, classes, evaluator, loaded.classes)
    try:
        ours, theirs, nothing = (test.counts(each) for each in (loaded.module, control, trainer.untrained()))
    except RunFailed as error:
        return _skip(str(error))
    gate = power(theirs.attack, nothing.attack)
    gain, on_control = ours.gain(), theirs.gain()
    right = (query(evaluator, task.others.images).argmax(1) == task.others.labels).double().numpy()
    return Inversion(
        attack=ATTACK,
        source=registry.load("attack", ATTACK).reference,
        baseline=PRIVATE if case.are_classes_private else PUBLIC,
        are_classes_private=case.are_classes_private,
        classes=len(classes),
        images=int(ours.attack.sum()),
        shown=_shown(ours.attack),
        baseline_shown=_shown(ours.baseline),
        control_shown=_shown(theirs.attack),
        control_baseline_shown=_shown(theirs.baseline),
        gain=_interval(gain),
        p=gain.p,
        control_gain=_interval(on_control),
        control_p=on_control.p,
        evaluator=share(right),
        beats_chance=gate.passed,
        reason="" if gate.passed else _weakness(gate, _shown(theirs.attack), _shown(nothing.attack)),
    )


def _weakness(gate: Power, on_control: float, on_untrained: float) -> str:
    """Return why an attack does not beat chance."""
    if gate.p_teacher is None or not is_significant(gate.p_teacher):
        return f"it does not beat chance on the unprotected control: {on_control:.1%} of its images show their class"
    return (
        f"it also beats chance on an untrained network: {on_untrained:.1%} of its images show their class, and "
        f"{on_control:.1%} of those from the unprotected control"
    )


def has_gradients(module: nn.Module, shape: tuple[int, int, int]) -> bool:
    """Return whether a model's outputs have gradients with respect to its images, (c, h, w)."""
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    try:
        with torch.enable_grad():
            outputs = module(images)
            if outputs.requires_grad:
                (gradient,) = torch.autograd.grad(outputs.sum(), images, allow_unused=True)
                return gradient is not None
    except Exception:  # a user's model may raise anything when gradients are on, as NumPy code does
        return False
    return False


def _skip(reason: str) -> Skipped:
    return Skipped(name=INVERSION, reason=reason)


def _shown(counts: Tensor) -> float:
    """Return the mean over classes of the share of images that show their class."""
    return float((counts.diag() / counts.sum(1)).double().mean())


def _interval(found: RetrievalGain) -> Interval:
    return Interval(value=found.gain, low=found.low, high=found.high)


def _shape(records: Records) -> tuple[int, int, int]:
    _, channels, height, width = records.images.shape
    return channels, height, width
