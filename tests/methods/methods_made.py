"""Methods at tier smoke, and teachers and students with known outputs or counts of their queries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench import registry
from bench.api import Release, Teacher
from bench.config import Variant, configure
from bench.nets import Ensemble
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_teacher


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smoke(name: str, variant: Variant = "printed", **given: str) -> Any:
    return configure(registry.load("method", name, variant), "smoke", given, "method", variant)


def convert(
    method: Any, teacher: Teacher | None = None, budget: Budget | None = None, student: str = "datalens"
) -> Release:
    """Convert a teacher; the default is a federation for methods that need an ensemble, and the toy teacher else."""
    if teacher is None:
        teacher = federation(method)[0] if "teacher_ensemble" in method.needs else toy_teacher()
    torch.manual_seed(0)
    return method.convert(teacher, student, budget or Budget(10.0), context())


def of_method(name: str, variant: Variant) -> tuple[Callable[..., Any], Callable[..., Release]]:
    """Return two functions of options: one that builds the method, and one that converts a teacher with it."""
    build = partial(smoke, name, variant)
    return build, lambda teacher=None, budget=None, **given: convert(build(**given), teacher, budget)


def log(*rows: list[float]) -> Tensor:
    """Return the logits of rows of probabilities."""
    return torch.tensor(rows).log()


def towards(r: int) -> Tensor:
    """Return the normalised gradient at a flat output for a teacher that is certain of class r."""
    return torch.full((CLASSES,), 1 / 12**0.5).index_fill(0, torch.tensor(r), -(0.75**0.5))


class Spy(nn.Module):
    """Counts the images of a network's queries without gradients, and the queries with gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.queried: list[int] = []
        self.seen: list[Tensor] = []
        self.with_gradient = 0

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            self.with_gradient += 1
        else:
            self.queried.append(len(x))
            self.seen.append(x.clone())
        return self.model(x)

    def features(self, x: Tensor) -> Tensor:
        self.with_gradient += x.requires_grad
        return self.model.features(x)  # type: ignore[operator]


class Fixed(nn.Module):
    """Returns the same logits, one row per image, and the same features for every batch."""

    def __init__(self, logits: Tensor, features: Tensor | None = None) -> None:
        super().__init__()
        self.logits, self.body = logits, nn.Identity()
        self.shown = logits if features is None else features

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[: len(x)]

    def features(self, x: Tensor) -> Tensor:
        return self.shown[: len(x)]


class FixedMembers(nn.Module):
    """Teachers that return the same (teachers, images, classes) logits for every batch."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def __len__(self) -> int:
        return len(self.logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[:, : len(x)]


class Forbidden(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("this network must not be queried")


class Watched(Ensemble):
    """Counts the images of each client's queries, with and without gradients."""

    def watch(self) -> Watched:
        self.queried: list[int] = []
        self.with_gradient = 0
        return self

    def forward(self, images: Tensor) -> Tensor:
        self.queried.append(len(images))
        self.with_gradient += images.requires_grad
        return super().forward(images)

    def votes(self, images: Tensor) -> Tensor:
        raise AssertionError("Algorithm 2 of DPSD has no votes")


def federation(method: Any) -> tuple[Teacher, Watched]:
    """Return a teacher with watched clients or teachers, as many as the method has, and these."""
    torch.manual_seed(0)
    shards = method.shards("datalens", "toy")
    built = Watched.build(shards.archs, shards.count, SHAPE, CLASSES, range(shards.count))
    assert isinstance(built, Watched)
    clients = built.watch().eval().requires_grad_(False)
    return Teacher(Forbidden(), "datalens", SHAPE, CLASSES, "toy", ensemble=clients), clients


fed = partial(smoke, "fed-dpsd")
BOTH = pytest.mark.parametrize("variant", ["printed", "working"])
MODES = ["data", "label"]


def convert_federation(
    budget: Budget | None = None, variant: Variant = "printed", **given: str
) -> tuple[Release, Watched]:
    method = fed(variant, **given)
    teacher, clients = federation(method)
    return method.convert(teacher, "datalens", budget or Budget(10.0), context()), clients
