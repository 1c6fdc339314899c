"""FedAvg and FedDF on toy clients, as tests run them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import ForbiddenTeacher
from torch import Tensor, nn

from baselines.dense import Dense
from baselines.fedadi import FedAdi
from baselines.fedavg import FedAvg
from baselines.feddafl import FedDafl
from baselines.feddf import FedDf
from bench import nets
from bench.api import Release, Teacher
from bench.privacy import Budget
from bench.teachers.federated import ClientEnsemble, Clients, State
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

NET = "shard-cnn"


SERVERS = pytest.mark.parametrize("cls", [Dense, FedAdi, FedDafl])
BATCH_NORM = "evaluator-cnn"


def toy(**parts: Any) -> Teacher:
    return replace(toy_teacher(), **({"private": toy_private()} | parts))


def smoke(cls: type[Any], **given: Any) -> Any:
    return baseline_runs.smoke(cls, None, **given)


def convert(cls: type[Any], student: str = NET, **given: Any) -> Release:
    return baseline_runs.convert(cls, Budget(10.0), toy(), student, variant=None, **given)


def trained(cls: type[Any], arch: str = NET, **given: Any) -> tuple[Any, Clients, list[State]]:
    """The method, its clients, and their models after three steps each."""
    torch.manual_seed(0)
    settings = smoke(cls, local_limit=3, **given)
    clients = Clients(settings, toy(), arch, context())
    return settings, clients, [clients.update(k, clients.initial(), nothing) for k in range(settings.clients)]


def server(cls: type[Any], arch: str = NET, **given: Any) -> tuple[Any, ClientEnsemble, nets.Classifier]:
    """The method, the ensemble of trained clients, and a fresh student."""
    settings, clients, models = trained(cls, arch, **given)
    return settings, ClientEnsemble(clients, models), clients.fresh()


def statistics_gap(ensemble: nn.Module, images: Tensor) -> float:
    """By hand: the sum over members and BatchNorms of |mean - running mean| + |variance - running variance|."""
    gap = 0.0
    for layer in (m for m in ensemble.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)):
        found: list[Tensor] = []
        hook = layer.register_forward_pre_hook(lambda _, given, found=found: found.append(given[0]))  # type: ignore[misc]
        ensemble(images)
        hook.remove()
        axes = [axis for axis in range(found[0].ndim) if axis != 1]
        mean, variance = found[0].mean(axes), found[0].var(axes, correction=0)
        gap += float((mean - layer.running_mean).norm() + (variance - layer.running_var).norm())  # type: ignore[operator]
    return gap


def federation(student: str = NET, cls: type[Any] = FedAvg, **given: Any) -> Clients:
    settings, of = smoke(cls, **given), toy()
    torch.manual_seed(0)
    return Clients(settings, of, student, replace(context(), clients_seed=7))


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
