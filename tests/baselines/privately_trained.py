"""What tests of the plug-ins that train a network privately share: toy runs of them, and what moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import FREE, flat, forbidden_teacher
from torch import Tensor

from bench import nets
from bench.api import Release, Teacher
from bench.config import Variant
from bench.dp_training import dp_sgd
from bench.dp_training.clipping import ROOM, add_clipped
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, toy_private

ROUNDING = 2.0**-9
"""Share of the clipping norm: tolerance for float32 kernels that round a record by its position in a batch."""


def toy(n: int = 64) -> Teacher:
    """Toy records, and other toy images as public ones."""
    private, public = toy_private(n=n), toy_private(seed=1)[0]
    return forbidden_teacher(private=private, public=public)


def network(name: str = "relu-cnn") -> nets.Classifier:
    """The network that `convert` starts from."""
    torch.manual_seed(0)
    return nets.build(name, SHAPE, CLASSES)


def convert(
    method: Any,
    budget: Budget = FREE,
    teacher: Teacher | None = None,
    seed: int = 0,
    variant: Variant = "printed",
    **given: Any,
) -> Release:
    """A smoke run on toy records."""
    return baseline_runs.convert(method, budget, teacher or toy(), seed=seed, variant=variant, **given)


def moved(release: Release, seed: int = 0) -> Tensor:
    """How far the weights are from where `convert` began."""
    torch.manual_seed(seed)
    return (flat(release.student) - flat(nets.build(release.arch, SHAPE, CLASSES))).double()


def split_like(values: Tensor, module: Any) -> dict[str, Tensor]:
    """A vector of all parameters by name, each flat."""
    named = dict(module.named_parameters())
    return dict(zip(named, values.split([p.numel() for p in named.values()]), strict=True))


def norm_of(total: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(value.square().sum()) for value in total.values()))


def empty_batches(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    """No record is ever sampled, so that the release is only noise."""
    for module in modules or (dp_sgd,):
        monkeypatch.setattr(module, "poisson_sample", lambda n, q, rng: torch.zeros(0, dtype=torch.long))


def sums(coding: Any, gradients: Callable[..., dict[str, Tensor]], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What enters the noise of one step whose batch are these records."""
    total = coding.zeros()
    add_clipped(total, coding.encode(gradients(images, labels)), coding.groups(), len(images))
    return dict(total)


def distances(coding: Any, one: dict[str, Tensor], other: dict[str, Tensor]) -> list[float]:
    """By group: how far two sums are from each other, over the group's bound."""
    return [
        math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in group.names)) / group.bound
        for group in coding.groups()
    ]


def check_neighbours(coding: Any, gradients: Callable[..., dict[str, Tensor]], images: Tensor, labels: Tensor) -> None:
    """The first record goes, so that all others have other places in the batch: no group moves by more than its bound,
    and the others by no more than what rounding is left."""
    whole, without = (sums(coding, gradients, images[i:], labels[i:]) for i in (0, 1))
    single = sums(coding, gradients, images[:1], labels[:1])
    far = distances(coding, whole, without)
    assert all(0 < distance <= 1 for distance in far), far
    others = {name: value - single[name] for name, value in whole.items()}
    assert max(distances(coding, others, without)) < ROUNDING
    assert all(distance <= ROOM * (1 + 1e-6) for distance in distances(coding, single, coding.zeros()))
