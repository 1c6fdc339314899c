"""The contract of a metric of reconstructed images."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import ClassVar

import torch
from torch import Tensor

from bench.metrics.metric import Metric
from bench.testing.plugins import expect
from bench.testing.toys import toy_reconstructions


class MetricContract:
    """Checks of a metric of reconstructed images that the rest of the bench relies on."""

    metric: ClassVar[Metric]

    def test_is_a_finite_number_and_the_same_again(self) -> None:
        first, again = (self.metric.measure(toy_reconstructions()) for _ in range(2))
        expect(math.isfinite(first), f"the metric is {first}; expected a finite number")
        expect(first == again, f"the same images give {first}, then {again}; expected one number")

    def test_the_order_of_the_images_plays_no_part(self) -> None:
        given = toy_reconstructions()
        order = torch.randperm(len(given.images), generator=torch.Generator().manual_seed(0))
        parts = {name: getattr(given, name)[order] for name in ("images", "targets", "features", "logits")}
        again = self.metric.measure(dataclasses.replace(given, **parts))
        first = self.metric.measure(given)
        same = math.isclose(again, first, rel_tol=1e-4, abs_tol=1e-9)
        expect(same, f"the metric is {first}, and {again} for the same images in another order")

    def test_leaves_what_it_is_given_alone(self) -> None:
        given, untouched = toy_reconstructions(), toy_reconstructions()
        self.metric.measure(given)
        for side, other in (
            (given, untouched),
            (given.private, untouched.private),
            (given.held_out, untouched.held_out),
        ):
            for name, value in vars(side).items():
                same = not isinstance(value, Tensor) or torch.equal(value, getattr(other, name))
                expect(same, f"the metric changes {name} in place; expected a copy")

    def test_its_module_imports_no_torch(self) -> None:
        module = getattr(self.metric.compute, "__module__", "")
        code = f"import sys; sys.path[:0] = {sys.path!r}; import {module}; sys.exit('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        expect(done.returncode == 0, f"boards are read without torch: import it in the function of {module}")
