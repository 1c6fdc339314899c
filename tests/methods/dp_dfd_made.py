"""Helpers that build and run the variants of DP-DFD."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.api import Release, Teacher
from bench.config import configure
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.dp_dfd.dp_dfd import DpDfd
from methods.dp_dfd.working import DpDfdWorking

Either = DpDfd | DpDfdWorking


def printed(**given: str) -> DpDfd:
    """Build the method without the norm term by default: the toy teacher has no BatchNorm."""
    return configure(DpDfd, "smoke", {"beta": "0"} | given, "method")


def learning(**given: str) -> DpDfdWorking:
    return configure(DpDfdWorking, "smoke", given, "method")


def convert(method: Either, teacher: Teacher | None = None, budget: Budget | None = None) -> Release:
    torch.manual_seed(0)
    return method.convert(teacher or toy_teacher(), "datalens", budget or Budget(10.0), context())


def generator_weights(release: Release) -> Tensor:
    assert release.generator is not None
    return torch.cat([p.detach().flatten() for p in release.generator.parameters()])


class TwoNorms(nn.Module):
    """(n, 2) inputs through two BatchNorm layers with known running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(2, eps=1e-12), nn.BatchNorm1d(2, eps=1e-12)
        self.first.running_mean = torch.tensor([1.0, 0.0])
        self.first.running_var = torch.tensor([4.0, 1.0])
        self.second.running_mean = torch.tensor([0.0, 1.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Spy(nn.Module):
    """Counts the images of a network's queries, with and without gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.asked: list[int] = []
        self.with_gradient = 0

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            self.with_gradient += 1
        else:
            self.asked.append(len(x))
        return self.model(x)


def norm_teacher() -> Teacher:
    """A small teacher with BatchNorm."""
    torch.manual_seed(0)
    c = SHAPE[0]
    model = nn.Sequential(
        nn.Conv2d(c, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, CLASSES)
    )
    return Teacher(model.eval().requires_grad_(False), "toy-norm", SHAPE, CLASSES, "toy")
