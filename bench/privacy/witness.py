"""A witness of neighbouring runs: does what enters a mechanism move by no more than the ledger says?

A method is run on its records with a `Witness` instead of every noise source, which writes down what enters each
mechanism and what leaves it. Then it is run again without one record, with the same public seed, and the witness gives
it the answers of the first run, whatever enters: so both runs have seen the same, which is the situation that adaptive
composition speaks of, and at every step what enters may differ by the step's sensitivity and no more. Public randomness
that moves with a record, statistics that remember one, and records that stand behind two teachers all show here.

Poisson samples are the first run's, less the record that is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.privacy.noise import Kind, Noise
from bench.validate import present


class Diverged(Exception):
    """The second run did not take the steps of the first: their number, kind, shape or noise depends on a record."""


@dataclass
class Step:
    """One use of a mechanism.

    Attributes:
        kind: of mechanism.
        scale: of its noise, or a response's epsilon; 0 = nothing is protected, and nothing is held against it.
        entered: what it was given in the first run.
        answer: what it made of that.
        moved: in the second run, the L2 norm of the difference in what entered, over the scale ("laplace": the L1 norm;
            "response": how many labels differ); None if there was no second run.
        by_row: the same of every row, where what entered has two dimensions: for answers to many images at once.
        draw: number of the Poisson sample it belongs to, from 1; 0 where there was none.
        sampled: whether the missing record was in that sample; True where there was none.
    """

    kind: Kind
    scale: float
    entered: Tensor
    answer: Tensor | None = None
    moved: float | None = None
    by_row: tuple[float, ...] = ()
    draw: int = 0
    sampled: bool = True


@dataclass
class Trace:
    """What both runs did.

    Attributes:
        missing: number of the record that the second run lacks.
        absent: whether the second run's records have closed the gap, so that later ones have smaller numbers.
    """

    missing: int
    absent: bool = True
    steps: list[Step] = field(default_factory=list)
    samples: list[Tensor] = field(default_factory=list)
    second: bool = False
    at_step: int = 0
    at_sample: int = 0

    def again(self) -> None:
        """The second run begins."""
        self.second = True

    def finished(self) -> None:
        """The second run is over. Raises Diverged if it took fewer steps than the first."""
        if self.at_step != len(self.steps) or self.at_sample != len(self.samples):
            raise Diverged(f"the second run took {self.at_step} steps, the first {len(self.steps)}")

    def protected(self) -> Iterator[Step]:
        """Steps that noise protects."""
        return (step for step in self.steps if step.scale > 0 and math.isfinite(step.scale))


class Witness(Noise):
    """A noise source that writes down, and then plays back.

    Args:
        trace: shared by all sources of a run.
        seed: of the draws, the same in both runs.
    """

    def __init__(self, trace: Trace, seed: int) -> None:
        super().__init__("cpu", seed)
        self.trace = trace

    def sample(self, records: int, probability: float) -> Tensor:
        """As `Noise.sample`; the second run gets the first one's, less the missing record."""
        trace, drawn = self.trace, super().sample(records, probability)
        if not trace.second:
            trace.samples.append(drawn)
            return drawn
        if trace.at_sample >= len(trace.samples):
            raise Diverged("the second run takes one more sample")
        first = trace.samples[trace.at_sample]
        trace.at_sample += 1
        kept = first[first != trace.missing]
        return kept - (kept > trace.missing).long() if trace.absent else kept

    def entering(self, kind: Kind, values: Tensor, scale: float) -> Tensor:
        """Writes down, or compares."""
        trace = self.trace
        if not trace.second:
            sampled = not trace.samples or bool((trace.samples[-1] == trace.missing).any())
            trace.steps.append(Step(kind, scale, values.detach().clone(), draw=len(trace.samples), sampled=sampled))
        else:
            step = self._now()
            close = abs(scale - step.scale) <= 0.1 * abs(step.scale)
            if (step.kind, step.entered.shape) != (kind, values.shape) or not close:
                raise Diverged(
                    f"step {trace.at_step}: {kind} of {tuple(values.shape)} and scale {scale:.3g}, in the first run "
                    f"{step.kind} of {tuple(step.entered.shape)} and scale {step.scale:.3g}"
                )
            step.moved, step.by_row = _moved(kind, step, values.detach(), scale)
        return values

    def released(self, answer: Tensor) -> Tensor:
        """The answer in the first run; the first run's in the second."""
        if not self.trace.second:
            self.trace.steps[-1].answer = answer.detach().clone()
            return answer
        step = self._now()
        self.trace.at_step += 1
        return present(step.answer, f"response of step {self.trace.at_step - 1} in the first run").clone()

    def _now(self) -> Step:
        if self.trace.at_step >= len(self.trace.steps):
            raise Diverged("the second run takes one more step")
        return self.trace.steps[self.trace.at_step]


def _moved(kind: Kind, step: Step, values: Tensor, scale: float) -> tuple[float, tuple[float, ...]]:
    """In all and by row. Both are relative to the scale, as a mean of n records has 1 / n in both."""
    if kind == "response":
        return float((step.entered != values).sum()), ()
    if step.scale == 0:
        return 0.0, ()
    difference = step.entered.double() / step.scale - values.double() / scale
    norm = 1 if kind == "laplace" else 2
    rows = torch.linalg.vector_norm(difference, norm, dim=1).tolist() if difference.ndim == 2 else []
    return float(torch.linalg.vector_norm(difference.flatten(), norm)), tuple(rows)
