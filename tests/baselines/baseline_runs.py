"""Smoke runs of any baseline on toy records, shared by the tests of baselines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Release, Teacher
from bench.config import Variant, configure
from bench.privacy import Budget
from bench.registry import load
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

FREE = Budget(None, solve="none")
"""The noise of the options."""
NO_NOISE = Budget(math.inf)


class ForbiddenTeacher(nn.Module):
    """A network that must not be queried."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the undefended teacher was queried")


def forbidden_teacher(n: int = 80, seed: int = 0, **parts: Any) -> Teacher:
    """The toy teacher with n private records and a network that must not be queried."""
    return replace(toy_teacher(), **{"model": ForbiddenTeacher(), "private": toy_private(seed, n), **parts})


def teacher_for(method: Any, **parts: Any) -> Teacher:
    """The toy teacher with all inputs that a method names in `needs`; it must not be queried unless it is needed."""
    toy = forbidden_teacher() if "teacher" not in method.needs else replace(toy_teacher(), private=toy_private())
    if "public_data" in method.needs:
        toy = replace(toy, public=toy_private(seed=1)[0])
    if "teacher_ensemble" in method.needs:
        shards = method.shards(toy.arch, toy.dataset)
        members = nets.Ensemble.build(shards.archs, shards.count, SHAPE, CLASSES, range(shards.count))
        toy = replace(toy, ensemble=members.eval().requires_grad_(False))
    return replace(toy, **parts)


def smoke(method: str | type[Any], variant: Variant | None = "printed", **options: Any) -> Any:
    """Build a baseline, given by name or class, at tier smoke."""
    cls = load("method", method) if isinstance(method, str) else method
    return configure(cls, "smoke", {name: str(value) for name, value in options.items()}, "method", variant)


def convert(
    method: str | type[Any],
    budget: Budget = FREE,
    teacher: Teacher | None = None,
    student: str = "datalens",
    seed: int = 0,
    ctx: Context | None = None,
    variant: Variant | None = "printed",
    **options: Any,
) -> Release:
    """Run a baseline at tier smoke on `teacher`, by default on what it needs."""
    made = smoke(method, variant, **options)
    given = teacher or teacher_for(made)
    torch.manual_seed(seed)
    release: Release = made.convert(given, student, budget, ctx or context(seed))
    return release


def accuracy(release: Release, n: int = 80, seed: int = 0) -> float:
    """Accuracy of a student on toy records."""
    images, labels = toy_private(seed, n)
    with torch.no_grad():
        return float((release.student(images.float() / 255).argmax(1) == labels).double().mean())


def flat(network: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in network.parameters()])


@dataclass(frozen=True)
class Call:
    """Positional arguments and result of a call; of a method, the first argument is the instance."""

    arguments: tuple[Any, ...]
    result: Any


def record_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Call]:
    """Record the calls of a function of a module, or of a method of a class, which run as before."""
    original, calls = getattr(owner, name), list[Call]()

    def recorded(*given: Any, **options: Any) -> Any:
        calls.append(Call(given, original(*given, **options)))
        return calls[-1].result

    monkeypatch.setattr(owner, name, recorded)
    return calls
