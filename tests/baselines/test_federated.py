"""FedAvg: a client's computation and the average."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import accuracy
from federated_made import assert_close, convert, federation, fresh, nothing
from torch import Tensor

from baselines.dense import Dense
from baselines.fedadi import FedAdi
from baselines.fedavg import FedAvg
from baselines.feddafl import FedDafl
from baselines.feddf import FedDf
from bench.data.partition import partition
from bench.errors import BenchError, RunFailed
from bench.teachers.federated import Federation, batches, snapshot, weighted_mean
from bench.testing import toy_private

BOTH = pytest.mark.parametrize("cls", [FedAvg, FedDf])


def test_clients_start_from_the_initial_network() -> None:
    clients = federation()
    first = clients.initial(0)
    trained = clients.update(0, first, nothing)
    assert any(not torch.equal(trained[name], first[name]) for name in first)
    for k in range(clients.settings.clients):
        assert all(torch.equal(value, clients.initial(k)[name]) for name, value in first.items())
        assert all(torch.equal(value, fresh().state_dict()[name]) for name, value in first.items())


@pytest.mark.parametrize("cls", [Dense, FedAdi, FedDafl])
def test_every_round_draws_new_images(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def distil(self: Any, teacher: Any, student: Any, shape: Any, ctx: Any, advance: Any) -> torch.Tensor:
        seeds.append(ctx.generator("images").initial_seed())
        return torch.zeros(1, *shape)

    monkeypatch.setattr(cls, "distil", distil)
    for rounds in ("1", "3"):
        convert(cls, rounds=rounds, local_epochs="1")
    assert len(seeds) == 4 and seeds[0] == seeds[1] and len(set(seeds)) == 3


def test_average_by_hand() -> None:
    models = [
        {"w": torch.tensor([1.0, -2.0]), "scalar": torch.tensor(0.5), "seen": torch.tensor(10)},
        {"w": torch.tensor([5.0, 2.0]), "scalar": torch.tensor(0.5), "seen": torch.tensor(13)},
    ]
    mean = weighted_mean(models, torch.tensor([0.75, 0.25], dtype=torch.float64))
    assert mean["w"].tolist() == [2.0, -1.0] and mean["scalar"] == 0.5
    assert mean["seen"].dtype == torch.int64 and int(mean["seen"]) == 11, "10.75 rounded"
    assert mean["w"].dtype == torch.float32


def test_average_of_equal_weights_is_exact() -> None:
    same = {"w": torch.rand(1000, generator=torch.Generator().manual_seed(0))}
    shares = torch.tensor([1 / 7, 2 / 7, 4 / 7], dtype=torch.float64)
    assert torch.equal(weighted_mean([same] * 3, shares)["w"], same["w"])


@pytest.mark.parametrize("most", [2, 3, 7, 128])
def test_batches_cover_all_images_in_pairs_or_more(most: int) -> None:
    for size in range(2, 300):
        sizes = [len(part) for part in torch.arange(size).tensor_split(batches(size, most))]
        assert sum(sizes) == size and 2 <= min(sizes) <= max(sizes) <= max(most, 3)
        assert max(sizes) - min(sizes) <= 1 and (most == 2 or max(sizes) <= most)


@pytest.mark.parametrize("name", ["dirichlet-balanced", "dirichlet", "hash"])
def test_clients_have_the_partition(name: str) -> None:
    images, labels = toy_private()
    clients = federation(partition=name, clients="3", **({} if name == "hash" else {"alpha": "0.7"}))
    expected = partition(images, labels, 3, name, 0.7, 7)
    for (own, classes), part in zip(clients.parts, expected, strict=True):
        assert torch.equal(own, images[part]) and torch.equal(classes, labels[part])
    assert sum(len(classes) for _, classes in clients.parts) == len(labels)


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_shares_follow_the_weighting(weighting: str) -> None:
    clients = federation(weighting=weighting, clients="3")
    sizes = torch.tensor([len(labels) for _, labels in clients.parts])
    assert len(sizes.unique()) > 1
    expected = sizes / 80 if weighting == "size" else torch.full((3,), 1 / 3)
    assert torch.allclose(clients.shares.float(), expected) and clients.shares.dtype == torch.float64


def test_client_update_by_hand() -> None:
    """Two passes in one batch: v1 = g1, v2 = 0.9 g1 + g2, w = w0 - 0.1 (v1 + v2)."""
    clients = federation(local_epochs="2", local_batch="500", local_lr="0.1", local_momentum="0.9")
    (images, labels), net = clients.parts[1], fresh()
    velocity = [torch.zeros_like(p) for p in net.parameters()]
    for _ in range(2):
        gradient = torch.autograd.grad(F.cross_entropy(net(images / 255), labels), list(net.parameters()))
        with torch.no_grad():
            for p, v, g in zip(net.parameters(), velocity, gradient, strict=True):
                v.mul_(0.9).add_(g)
                p.sub_(0.1 * v)
    w = clients.initial()
    assert_close(clients.update(1, w, nothing), net.state_dict())
    assert_close(clients.update(1, w, nothing), net.state_dict())
    assert_close(w, fresh().state_dict(), atol=0.0)


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_one_step_rounds_are_gradient_descent(weighting: str) -> None:
    """sum_k (n_k / n) (w - eta g_k) = w - eta g (FedSGD); with 1 / K it is another gradient's."""
    images, labels = toy_private()
    given = {"clients": "3", "rounds": "3", "local_epochs": "1", "local_batch": "500", "local_momentum": "0"}
    found = convert(FedAvg, weighting=weighting, local_lr="0.2", **given).student
    net = fresh()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(images / 255), labels).backward()
        optimizer.step()
    gap = max(float((a - b).detach().abs().max()) for a, b in zip(found.parameters(), net.parameters(), strict=True))
    assert gap < 1e-5 if weighting == "size" else gap > 1e-4


def test_client_pass_has_every_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = federation(local_epochs="2", local_batch="16")
    seen: list[Tensor] = []
    monkeypatch.setattr(clients, "call", lambda x: (seen.append(x), clients.network(x))[1])
    clients.update(0, clients.initial(), nothing)
    images, labels = clients.parts[0]
    assert len(seen) == clients.steps[0] == 2 * batches(len(labels), 16)
    first, second = (torch.cat(seen[at : at + len(seen) // 2]).flatten(1) for at in (0, len(seen) // 2))
    expected = sorted((images / 255).flatten(1).sum(1).tolist())
    for one in (first, second):
        assert sorted(one.sum(1).tolist()) == pytest.approx(expected, rel=1e-5)
    assert not torch.equal(first, second), "every pass has a new order"


@BOTH
def test_steps_are_epochs_or_the_limit(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, closure=None: done.append(1))
    sizes = [len(labels) for _, labels in federation().parts]
    convert(cls, rounds="2", local_epochs="3", local_batch="10")
    assert len(done) == 2 * 3 * sum(math.ceil(size / 10) for size in sizes)
    done.clear()
    convert(cls, rounds="2", local_epochs="3", local_batch="10", local_limit="4")
    assert len(done) == 2 * 2 * 4


def test_batch_norm_statistics_are_averaged() -> None:
    clients = federation("evaluator-cnn", local_limit="3", weighting="uniform")
    w = clients.initial()
    models = [clients.update(k, w, nothing) for k in range(2)]
    name = next(name for name in w if name.endswith("running_var"))
    mean = clients.average(models)
    assert not torch.equal(models[0][name], models[1][name])
    assert torch.allclose(mean[name], (models[0][name] + models[1][name]) / 2)
    counters = [name for name in w if name.endswith("num_batches_tracked")]
    assert counters and all(mean[n].dtype == torch.int64 and int(mean[n]) == 3 for n in counters)


def test_client_with_too_few_records_is_refused() -> None:
    with pytest.raises(BenchError, match="60") as caught:
        federation(clients="60", partition="hash")
    assert "\n" not in str(caught.value)


@BOTH
def test_diverged_training_is_an_error(cls: type[Any]) -> None:
    with pytest.raises(RunFailed, match="local_lr"):
        convert(cls, local_lr="1e30")


def test_diverged_distillation_is_an_error() -> None:
    with pytest.raises(RunFailed, match=r"--method\.lr"):
        convert(FedDf, lr="1e30")


@BOTH
def test_clients_of_all_classes_learn_the_task(cls: type[Any]) -> None:
    release = convert(cls, local_epochs="15", local_lr="0.05", rounds="2", partition="hash")
    assert accuracy(release, seed=1) > 0.9


def test_defaults_are_the_papers() -> None:
    for method in (FedAvg(), FedDf()):
        assert isinstance(method, Federation)
        assert (method.clients, method.partition, method.alpha, method.rounds) == (5, "dirichlet-balanced", 0.5, 1)
        assert (method.local_lr, method.local_momentum, method.local_batch) == (0.01, 0.9, 128)
    assert (FedDf().steps, FedDf().batch, FedDf().lr, FedDf().clip) == (10000, 128, 1e-3, 5.0)


def test_snapshot_is_a_copy() -> None:
    net = fresh()
    taken = snapshot(net)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert_close(taken, fresh().state_dict(), atol=0.0)
