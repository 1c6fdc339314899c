"""FedAvg: a client's computation, the average, and that there is no privacy guarantee."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import NonPrivateDpEvent
from federated_made import Untouchable, assert_close, convert, federation, fresh, nothing, smoke, toy
from torch import Tensor, nn

from baselines.dense import Dense
from baselines.fedadi import FedAdi
from baselines.fedavg import FedAvg
from baselines.feddafl import FedDafl
from baselines.feddf import FedDf
from bench import nets
from bench.data.partition import partition
from bench.errors import BenchError, RunFailed
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.teachers.federated import Federation, batches, snapshot, weighted_mean
from bench.testing import CLASSES, SHAPE, toy_private

BOTH = pytest.mark.parametrize("cls", [FedAvg, FedDf])


def test_every_client_starts_from_the_fresh_network_whoever_has_trained_before() -> None:
    clients = federation()
    first = clients.initial(0)
    trained = clients.update(0, first, nothing)
    assert any(not torch.equal(trained[name], first[name]) for name in first)
    for k in range(clients.settings.clients):
        assert all(torch.equal(value, clients.initial(k)[name]) for name, value in first.items())
        assert all(torch.equal(value, fresh().state_dict()[name]) for name, value in first.items())


@pytest.mark.parametrize("cls", [Dense, FedAdi, FedDafl])
def test_a_round_draws_images_of_its_own(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def distil(self: Any, teacher: Any, student: Any, shape: Any, ctx: Any, advance: Any) -> torch.Tensor:
        seeds.append(ctx.generator("images").initial_seed())
        return torch.zeros(1, *shape)

    monkeypatch.setattr(cls, "distil", distil)
    for rounds in ("1", "3"):
        convert(cls, rounds=rounds, local_epochs="1")
    assert len(seeds) == 4 and seeds[0] == seeds[1] and len(set(seeds)) == 3


def test_the_average_by_hand() -> None:
    models = [
        {"w": torch.tensor([1.0, -2.0]), "scalar": torch.tensor(0.5), "seen": torch.tensor(10)},
        {"w": torch.tensor([5.0, 2.0]), "scalar": torch.tensor(0.5), "seen": torch.tensor(13)},
    ]
    mean = weighted_mean(models, torch.tensor([0.75, 0.25], dtype=torch.float64))
    assert mean["w"].tolist() == [2.0, -1.0] and mean["scalar"] == 0.5
    assert mean["seen"].dtype == torch.int64 and int(mean["seen"]) == 11, "10.75 rounded"
    assert mean["w"].dtype == torch.float32


def test_what_all_clients_share_is_left_exactly_as_it_is() -> None:
    same = {"w": torch.rand(1000, generator=torch.Generator().manual_seed(0))}
    shares = torch.tensor([1 / 7, 2 / 7, 4 / 7], dtype=torch.float64)
    assert torch.equal(weighted_mean([same] * 3, shares)["w"], same["w"])


@pytest.mark.parametrize("most", [2, 3, 7, 128])
def test_batches_cover_everything_and_no_image_is_alone(most: int) -> None:
    for size in range(2, 300):
        sizes = [len(part) for part in torch.arange(size).tensor_split(batches(size, most))]
        assert sum(sizes) == size and 2 <= min(sizes) <= max(sizes) <= max(most, 3)
        assert max(sizes) - min(sizes) <= 1 and (most == 2 or max(sizes) <= most)


@pytest.mark.parametrize("name", ["dirichlet-balanced", "dirichlet", "hash"])
def test_the_clients_hold_the_partition_and_every_record_once(name: str) -> None:
    images, labels = toy_private()
    clients = federation(partition=name, clients="3", **({} if name == "hash" else {"alpha": "0.7"}))
    expected = partition(images, labels, 3, name, 0.7, 7)
    for (own, classes), part in zip(clients.parts, expected, strict=True):
        assert torch.equal(own, images[part]) and torch.equal(classes, labels[part])
    assert sum(len(classes) for _, classes in clients.parts) == len(labels)


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_shares(weighting: str) -> None:
    clients = federation(weighting=weighting, clients="3")
    sizes = torch.tensor([len(labels) for _, labels in clients.parts])
    assert len(sizes.unique()) > 1
    expected = sizes / 80 if weighting == "size" else torch.full((3,), 1 / 3)
    assert torch.allclose(clients.shares.float(), expected) and clients.shares.dtype == torch.float64


def test_a_clients_update_is_sgd_with_momentum_by_hand() -> None:
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
def test_one_full_batch_step_a_round_is_gradient_descent_on_all_records(weighting: str) -> None:
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


def test_a_step_sees_every_record_of_its_client_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not torch.equal(first, second), "every pass has an order of its own"


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


def test_batch_norm_statistics_are_averaged_and_counters_stay_whole() -> None:
    clients = federation("evaluator-cnn", local_limit="3", weighting="uniform")
    w = clients.initial()
    models = [clients.update(k, w, nothing) for k in range(2)]
    name = next(name for name in w if name.endswith("running_var"))
    mean = clients.average(models)
    assert not torch.equal(models[0][name], models[1][name])
    assert torch.allclose(mean[name], (models[0][name] + models[1][name]) / 2)
    counters = [name for name in w if name.endswith("num_batches_tracked")]
    assert counters and all(mean[n].dtype == torch.int64 and int(mean[n]) == 3 for n in counters)


@pytest.mark.thorough
@BOTH
def test_a_network_with_batch_norm_can_be_rebuilt(cls: type[Any]) -> None:
    release = convert(cls, student="evaluator-cnn", rounds="2")
    assert release.arch == "evaluator-cnn" and not release.student.training
    nets.build(release.arch, SHAPE, CLASSES).load_state_dict(release.student.state_dict())
    assert torch.equal(release.student.mean, torch.full((1, 1, 1, 1), 0.5)), "public constants are not moved"


@BOTH
def test_nothing_is_promised_and_the_ledger_says_why(cls: type[Any]) -> None:
    release = convert(cls)
    assert release.claim is None and cls.unit == "none" and cls.needs == {"private_data"}
    assert {e.unit for e in release.ledger.entries()} == {Unit.EXAMPLE, Unit.CLIENT}
    assert all(e.event == NonPrivateDpEvent() and e.why for e in release.ledger.entries())
    for unit in (Unit.EXAMPLE, Unit.CLIENT):
        assert math.isinf(account(release.ledger, unit, 1e-5).epsilon)


@BOTH
@pytest.mark.parametrize(
    ("budget", "says"),
    [(Budget(3.0, account="accounted"), "no epsilon can be proved"), (Budget(unit=Unit.LABEL), "--unit label")],
)
def test_a_proof_and_another_unit_are_refused_in_one_line(cls: type[Any], budget: Budget, says: str) -> None:
    with pytest.raises(BenchError, match=says) as caught:
        cls().check(budget, "mnist", 10)
    assert "\n" not in str(caught.value)
    for fine in (Budget(3.0), Budget(math.inf, account="accounted"), Budget(unit=Unit.CLIENT)):
        cls().check(fine, "mnist", 10)


@BOTH
def test_the_teachers_weights_are_used_for_nothing(cls: type[Any]) -> None:
    x = torch.rand(3, *SHAPE)
    one, other = convert(cls, toy(model=Untouchable())).student, convert(cls, toy()).student
    assert torch.equal(one(x), other(x))


@BOTH
def test_a_method_without_records_says_so(cls: type[Any]) -> None:
    with pytest.raises(RuntimeError, match="private_data"):
        convert(cls, toy(private=None))


@BOTH
@pytest.mark.parametrize(
    "given",
    [
        {"clients": "0"},
        {"rounds": "0"},
        {"local_epochs": "0"},
        {"local_limit": "-1"},
        {"local_batch": "1"},
        {"alpha": "0"},
        {"local_lr": "0"},
        {"local_momentum": "1"},
        {"partition": "even"},
        {"weighting": "median"},
    ],
    ids=str,
)
def test_impossible_fields_are_refused(cls: type[Any], given: dict[str, str]) -> None:
    with pytest.raises(BenchError):
        smoke(cls, **given)


@pytest.mark.parametrize("name", ["unlabelled", "lr", "clip", "batch", "steps"])
def test_impossible_fields_of_feddf_are_refused(name: str) -> None:
    with pytest.raises(BenchError, match=f"{name} is .*expected"):
        smoke(FedDf, **{name: "1" if name == "batch" else "-1" if name == "steps" else "0"})


def test_a_client_with_too_few_records_is_refused_in_one_line() -> None:
    with pytest.raises(BenchError, match="use fewer clients") as caught:
        federation(clients="60", partition="hash")
    assert "\n" not in str(caught.value)


@BOTH
def test_a_diverged_training_is_said(cls: type[Any]) -> None:
    with pytest.raises(RunFailed, match="local_lr"):
        convert(cls, local_lr="1e30")


def test_a_diverged_distillation_is_said() -> None:
    with pytest.raises(RunFailed, match=r"--method\.lr"):
        convert(FedDf, lr="1e30")


def accuracy(student: nn.Module) -> float:
    x, labels = toy_private(seed=1)
    with torch.no_grad():
        return float((student(x / 255).argmax(1) == labels).float().mean())


@BOTH
def test_the_task_is_learnt_by_clients_of_all_classes(cls: type[Any]) -> None:
    release = convert(cls, local_epochs="15", local_lr="0.05", rounds="2", partition="hash")
    assert accuracy(release.student) > 0.9


def test_paper_defaults() -> None:
    for method in (FedAvg(), FedDf()):
        assert isinstance(method, Federation)
        assert (method.clients, method.partition, method.alpha, method.rounds) == (5, "dirichlet-balanced", 0.5, 1)
        assert (method.local_lr, method.local_momentum, method.local_batch) == (0.01, 0.9, 128)
    assert (FedDf().steps, FedDf().batch, FedDf().lr, FedDf().clip) == (10000, 128, 1e-3, 5.0)


def test_a_snapshot_is_a_copy() -> None:
    net = fresh()
    taken = snapshot(net)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert_close(taken, fresh().state_dict(), atol=0.0)
