"""The variants of DP-DFD at tier smoke, and networks with BatchNorm."""

from __future__ import annotations

from functools import partial

import torch
from methods_made import smoke
from torch import Tensor, nn

from bench.api import Release, Teacher
from bench.testing import CLASSES, SHAPE
from methods.dp_dfd.dp_dfd import DpDfd

learning = partial(smoke, "dp-dfd", "working")


def printed(**given: str) -> DpDfd:
    """Build the method without the norm term by default: the toy teacher has no BatchNorm."""
    return smoke("dp-dfd", **{"beta": "0"} | given)


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


def norm_teacher() -> Teacher:
    torch.manual_seed(0)
    layers = nn.Conv2d(SHAPE[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, CLASSES)
    return Teacher(nn.Sequential(*layers).eval().requires_grad_(False), "toy-norm", SHAPE, CLASSES, "toy")
