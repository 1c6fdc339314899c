"""Sensitivity check: run a method twice, with and without one record, and compare the inputs of each mechanism.

A method runs on its records with a `Witness` in place of every noise source, which stores the inputs and outputs of
each mechanism. Then it runs again without one record, with the same public seed, and the witness returns the outputs of
the first run for any input. Both runs have then used the same outputs, as adaptive composition assumes, and at every
step the inputs may differ by at most the sensitivity that the ledger states. This detects public randomness that
changes with a record, statistics that depend on one, and records used by two teachers.

Poisson samples of the second run are the first run's, without the missing record.
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
    """Raised if the second run's steps differ from the first's: number, kind, shape or noise depends on a record."""


@dataclass
class Step:
    """One use of a mechanism.

    Attributes:
        kind: the mechanism.
        scale: scale of its noise, or a response's epsilon; 0 = no protection, and no check.
        input, output: input and output of the mechanism in the first run.
        difference: L2 norm of the difference between both runs' inputs, divided by the scale ("laplace": the L1 norm;
            "response": the number of different labels); None if there was no second run.
        row_differences: the same for every row of a two-dimensional input: for responses to many images at once.
        draw: number of the Poisson sample that the step belongs to, from 1; 0 without sampling.
        sampled: whether the missing record was in that sample; True without sampling.
    """

    kind: Kind
    scale: float
    input: Tensor
    output: Tensor | None = None
    difference: float | None = None
    row_differences: tuple[float, ...] = ()
    draw: int = 0
    sampled: bool = True


@dataclass
class Trace:
    """The steps of both runs.

    Attributes:
        missing: index of the record that is missing in the second run.
        absent: True if the record is deleted, so that the indices of later records are smaller by one in the second
            run; False if its position remains.
        steps: all uses of a mechanism, in order.
        samples: the first run's Poisson samples.
        is_second_run: whether the second run has started.
        at_step, at_sample: number of steps and samples that the second run has taken.
    """

    missing: int
    absent: bool = True
    steps: list[Step] = field(default_factory=list)
    samples: list[Tensor] = field(default_factory=list)
    is_second_run: bool = False
    at_step: int = 0
    at_sample: int = 0

    def start_second_run(self) -> None:
        """Start the second run."""
        self.is_second_run = True

    def end_second_run(self) -> None:
        """End the second run; raise Diverged if it took fewer steps than the first."""
        if self.at_step != len(self.steps) or self.at_sample != len(self.samples):
            raise Diverged(f"the second run took {self.at_step} steps, the first {len(self.steps)}")

    def protected(self) -> Iterator[Step]:
        """Return the steps whose input is protected by noise."""
        return (step for step in self.steps if step.scale > 0 and math.isfinite(step.scale))


class Witness(Noise):
    """A noise source that records the first run, and replays its outputs in the second.

    Args:
        trace: the trace, shared by all sources of both runs.
        seed: seed of the draws, the same in both runs.
    """

    def __init__(self, trace: Trace, seed: int) -> None:
        super().__init__("cpu", seed)
        self.trace = trace

    def sample(self, records: int, probability: float) -> Tensor:
        """Draw a Poisson sample in the first run; in the second, return the same one without the missing record."""
        trace, drawn = self.trace, super().sample(records, probability)
        if not trace.is_second_run:
            trace.samples.append(drawn)
            return drawn
        if trace.at_sample >= len(trace.samples):
            raise Diverged("the second run takes one more sample")
        first = trace.samples[trace.at_sample]
        trace.at_sample += 1
        kept = first[first != trace.missing]
        return kept - (kept > trace.missing).long() if trace.absent else kept

    def entering(self, kind: Kind, values: Tensor, scale: float) -> Tensor:
        """Record the input in the first run; compare it in the second."""
        trace = self.trace
        if not trace.is_second_run:
            sampled = not trace.samples or bool((trace.samples[-1] == trace.missing).any())
            trace.steps.append(Step(kind, scale, values.detach().clone(), draw=len(trace.samples), sampled=sampled))
        else:
            step = self._current_step()
            close = abs(scale - step.scale) <= 0.1 * abs(step.scale)
            if (step.kind, step.input.shape) != (kind, values.shape) or not close:
                raise Diverged(
                    f"step {trace.at_step}: {kind} of {tuple(values.shape)} and scale {scale:.3g}, in the first run "
                    f"{step.kind} of {tuple(step.input.shape)} and scale {step.scale:.3g}"
                )
            # In total and by row, relative to the scale; a mean over n records has 1 / n in both
            step.difference, step.row_differences, found = 0.0, (), values.detach()
            if kind == "response":
                step.difference = float((step.input != found).sum())
            elif step.scale:
                difference = step.input.double() / step.scale - found.double() / scale
                norm = 1 if kind == "laplace" else 2
                step.difference = float(torch.linalg.vector_norm(difference.flatten(), norm))
                if difference.ndim == 2:
                    step.row_differences = tuple(torch.linalg.vector_norm(difference, norm, dim=1).tolist())
        return values

    def released(self, output: Tensor) -> Tensor:
        """Record the output in the first run; return the recorded output in the second."""
        if not self.trace.is_second_run:
            self.trace.steps[-1].output = output.detach().clone()
            return output
        step = self._current_step()
        self.trace.at_step += 1
        return present(step.output, f"response of step {self.trace.at_step - 1} in the first run").clone()

    def _current_step(self) -> Step:
        if self.trace.at_step >= len(self.trace.steps):
            raise Diverged("the second run takes one more step")
        return self.trace.steps[self.trace.at_step]
