"""A federation of fixed clients, and the variants of DPSD that convert it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from teachers_made import Forbidden
from torch import Tensor

from bench import registry
from bench.api import Release, Teacher
from bench.config import Variant, configure
from bench.nets import Ensemble
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context

MODES = ["data", "label"]
BOTH = pytest.mark.parametrize("variant", ["printed", "working"])


class Watched(Ensemble):
    """Counts the images of each client's queries, with and without gradients."""

    def watch(self) -> Watched:
        self.asked: list[int] = []
        self.with_gradient = 0
        return self

    def forward(self, images: Tensor) -> Tensor:
        self.asked.append(len(images))
        self.with_gradient += images.requires_grad
        return super().forward(images)

    def votes(self, images: Tensor) -> Tensor:
        raise AssertionError("Algorithm 2 has no votes")


def smoke(variant: Variant = "printed", **given: str) -> Any:
    return configure(registry.load("method", "fed-dpsd", variant), "smoke", given, "method", variant)


def federation(method: Any) -> tuple[Teacher, Watched]:
    torch.manual_seed(0)
    shards = method.shards("datalens", "toy")
    built = Watched.build(shards.archs, shards.count, SHAPE, CLASSES, range(shards.count))
    assert isinstance(built, Watched)
    clients = built.watch().eval().requires_grad_(False)
    return Teacher(Forbidden(), "datalens", SHAPE, CLASSES, "toy", ensemble=clients), clients


def convert(budget: Budget | None = None, variant: Variant = "printed", **given: str) -> tuple[Release, Watched]:
    method = smoke(variant, **given)
    teacher, clients = federation(method)
    return method.convert(teacher, "datalens", budget or Budget(10.0), context()), clients
