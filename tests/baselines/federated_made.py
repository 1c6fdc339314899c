"""FedAvg and FedDF on toy clients, as tests run them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from baseline_runs import ForbiddenTeacher
from torch import Tensor

from baselines.fedavg import FedAvg
from baselines.feddf import FedDf
from bench import nets
from bench.api import Release, Teacher
from bench.config import configure
from bench.privacy import Budget
from bench.teachers.federated import Clients, State
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

NET = "shard-cnn"


def toy(**parts: Any) -> Teacher:
    return replace(toy_teacher(), **({"private": toy_private()} | parts))


def smoke(cls: type[Any], **given: str) -> Any:
    return configure(cls, "smoke", given, "method")


def convert(cls: type[Any], of: Teacher | None = None, student: str = NET, seed: int = 0, **given: str) -> Release:
    of = of or toy()
    torch.manual_seed(seed)
    return smoke(cls, **given).convert(of, student, Budget(10.0), context(seed))


def federation(student: str = NET, of: Teacher | None = None, cls: type[Any] = FedAvg, **given: str) -> Clients:
    of = of or toy()
    torch.manual_seed(0)
    return Clients(smoke(cls, **given), of, student, replace(context(), clients_seed=7))


def nothing(_: int) -> None:
    pass


def fresh(student: str = NET) -> nets.Classifier:
    torch.manual_seed(0)
    return nets.build(student, SHAPE, CLASSES)


def assert_close(found: State, expected: State, atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], atol=atol) for name in found)


def images(kind: str, dataset: str = "toy", count: int = 600, seed: int = 0) -> Tensor:
    torch.manual_seed(0)
    method = smoke(FedDf, generator=kind, unlabelled=str(count))
    return method.unlabelled_images(toy(dataset=dataset, private=None, model=ForbiddenTeacher()), context(seed))
