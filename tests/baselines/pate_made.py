"""Ensembles that count their queries, and helpers that build and run PATE."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs
import pytest
from baseline_runs import ForbiddenTeacher
from torch import Tensor

from baselines.pate import Pate
from baselines.pate_gnmax import PateGnmax
from bench import nets
from bench.api import Release, Teacher
from bench.config import configure
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, toy_private, toy_teacher

UNBOUNDED = Budget(math.inf, solve="none")
BOTH = pytest.mark.parametrize("cls", [Pate, PateGnmax])


class SpyEnsemble(nets.Ensemble):
    """An ensemble that counts the images it votes on, and keeps the votes."""

    def votes(self, images: Tensor) -> Tensor:
        counts = super().votes(images)
        self.seen: list[Tensor] = [*getattr(self, "seen", []), counts]
        return counts


def smoke(cls: type[Any], **given: Any) -> Any:
    return baseline_runs.smoke(cls, None, **given)


PUBLIC = toy_private(seed=1)[0]


def toy(count: int = 3, **held: Any) -> Teacher:
    """Three teachers and 80 public images, or what else is held."""
    made = SpyEnsemble.build(["shard-cnn"], count, SHAPE, CLASSES, range(count)).eval().requires_grad_(False)
    parts: dict[str, Any] = {"ensemble": made, "model": ForbiddenTeacher()} | (held or {"public": PUBLIC})
    return replace(toy_teacher(), **parts)


def convert(cls: type[Any], budget: Budget | None = None, of: Teacher | None = None, **given: Any) -> Release:
    return baseline_runs.convert(cls, budget or Budget(10.0), of or toy(), variant=None, **given)


def queried(of: Teacher) -> int:
    return sum(map(len, of.members().seen))  # type: ignore[arg-type]


def paper(cls: type[Any], **given: str) -> Any:
    return configure(cls, "paper", given, "method", "printed")
