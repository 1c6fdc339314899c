"""Helpers that build and run the variants of DGD, and an ensemble that counts its queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bench import nets
from bench.api import Release, Teacher
from bench.config import configure
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.dgd.dgd import Dgd
from methods.dgd.working import DgdWorking


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def printed(**given: str) -> Dgd:
    return configure(Dgd, "smoke", given, "method")


def learning(**given: str) -> DgdWorking:
    return configure(DgdWorking, "smoke", given, "method")


class Spy(nn.Module):
    """A network that counts the images it is shown and whether gradients were to flow through them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.shown = 0
        self.with_gradient = 0

    def forward(self, x: Tensor) -> Tensor:
        self.shown += len(x)
        self.with_gradient += x.requires_grad
        return self.model(x)

    def features(self, x: Tensor) -> Tensor:
        return self.model.features(x)  # type: ignore[operator]


class SpyEnsemble(nets.Ensemble):
    """An ensemble that counts the images it votes on."""

    asked = 0

    def votes(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        return super().votes(images)


def ensemble(count: int = 3) -> SpyEnsemble:
    made = SpyEnsemble.build(["shard-cnn"], count, SHAPE, CLASSES, range(count))
    assert isinstance(made, SpyEnsemble)
    return made.eval().requires_grad_(False)


def teacher(**parts: Any) -> Teacher:
    return replace(toy_teacher(), **({"ensemble": ensemble()} | parts))


def convert(method: Dgd | DgdWorking, of: Teacher | None = None, budget: Budget | None = None) -> Release:
    torch.manual_seed(0)
    return method.convert(of or teacher(), "datalens", budget or Budget(10.0), context())
