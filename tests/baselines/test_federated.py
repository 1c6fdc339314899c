"""FedAvg and FedDF: a client's computation, the average, the ensemble's output and the distillation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import accuracy, record_calls, refused
from federated_made import SERVERS, assert_close, convert, federation, fresh, images, nothing, toy
from torch import Tensor, nn

from baselines import feddf
from baselines.dense import Dense
from baselines.fedadi import FedAdi
from baselines.fedavg import FedAvg
from baselines.feddafl import FedDafl
from baselines.feddf import FedDf
from bench.data.partition import partition
from bench.errors import RunFailed
from bench.teachers.federated import ClientEnsemble, Clients, State, batches, snapshot, weighted_mean
from bench.testing import SHAPE, context, toy_private, weights
from bench.testing.toys import same_tensors

BOTH = pytest.mark.parametrize("cls", [FedAvg, FedDf])


def test_clients_start_from_the_initial_network() -> None:
    clients = federation()
    first = clients.initial(0)
    assert not same_tensors(clients.update(0, first, nothing).values(), first.values())
    for k in range(clients.settings.clients):
        assert_close(clients.initial(k), fresh().state_dict(), atol=0.0)


@SERVERS
def test_every_round_draws_new_images(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cls, "distil", lambda _, teacher, student, shape, *rest: torch.zeros(1, *shape))
    calls = record_calls(monkeypatch, cls, "distil")
    for rounds in ("1", "3"):
        convert(cls, rounds=rounds, local_epochs="1")
    seeds = [call.arguments[4].generator("images").initial_seed() for call in calls]
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
    with refused("60"):
        federation(clients="60", partition="hash")


@pytest.mark.parametrize(("cls", "option"), [(FedAvg, "local_lr"), (FedDf, "local_lr"), (FedDf, "lr")])
def test_diverged_training_is_an_error(cls: type[Any], option: str) -> None:
    with pytest.raises(RunFailed, match=rf"--method\.{option}"):
        convert(cls, **{option: "1e30"})


@BOTH
def test_clients_of_all_classes_learn_the_task(cls: type[Any]) -> None:
    release = convert(cls, local_epochs="15", local_lr="0.05", rounds="2", partition="hash")
    assert accuracy(release, seed=1) > 0.9


def test_snapshot_is_a_copy() -> None:
    net = fresh()
    taken = snapshot(net)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert_close(taken, fresh().state_dict(), atol=0.0)


def test_feddf_without_distillation_is_fedavg() -> None:
    average = weights(convert(FedAvg).student)
    assert same_tensors(weights(convert(FedDf, steps=0).student), average)
    assert not same_tensors(weights(convert(FedDf).student), average)


def test_ensemble_response_is_the_mean_of_logits() -> None:
    clients = federation("datalens", local_limit="2")
    models = [clients.update(k, clients.initial(), nothing) for k in range(2)]
    u = torch.randint(0, 256, (7, *SHAPE), dtype=torch.uint8)
    each = []
    for model in models:
        net = fresh("datalens").eval()
        net.load_state_dict(model)
        each.append(net(u / 255))
    found = ClientEnsemble(clients, models).responses(u, context())
    assert torch.allclose(found, (each[0] + each[1]) / 2, atol=1e-5) and not found.requires_grad
    assert not torch.allclose(each[0], each[1], atol=1e-3)


def distilled(**given: str) -> tuple[Clients, State, State, Tensor, Tensor]:
    """The clients, w before and after distillation, U, and the answers."""
    clients = federation(cls=FedDf, **given)
    settings = clients.settings
    assert isinstance(settings, FedDf)
    models = [clients.update(k, clients.initial(), nothing) for k in range(settings.clients)]
    w, u = clients.average(models), settings.unlabelled_images(toy(), context())
    answers = ClientEnsemble(clients, models).responses(u, context())
    after = settings._distil(clients, w, u, answers, context().generator("distillation"), nothing)
    return clients, w, after, u, answers


def divergence(w: State, images: Tensor, answers: Tensor) -> float:
    """KL(softmax(answers) || softmax(f(w, x))), mean over images, written out."""
    net = fresh().eval()
    net.load_state_dict(w)
    with torch.no_grad():
        log_p, log_q = answers.double().log_softmax(1), net(images / 255).double().log_softmax(1)
    return float((log_p.exp() * (log_p - log_q)).sum(1).mean())


def test_distillation_approaches_the_ensemble() -> None:
    given = {"local_epochs": "5", "local_lr": "0.02", "unlabelled": "64", "generator": "noise", "alpha": "0.1"}
    _, before, after, u, answers = distilled(steps="40", batch="32", lr="0.001", **given)
    assert divergence(after, u, answers) < divergence(before, u, answers) / 5


@pytest.mark.parametrize("clip", ["5.0", "0.001"])
def test_first_distillation_step_by_hand(clip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's first step is lr g / (|g| + 1e-8) for the clipped g; all of U is the batch's only image."""
    _, before, after, u, answers = distilled(steps="1", unlabelled="1", batch="2", lr="0.01", clip=clip)
    net = fresh()
    net.load_state_dict(before)
    p = answers.softmax(1)
    loss = (p * (answers.log_softmax(1) - net(u / 255).log_softmax(1))).sum()
    gradient = torch.autograd.grad(loss, list(net.parameters()))
    norm = float(torch.cat([g.flatten() for g in gradient]).norm())
    for (name, _), g in zip(net.named_parameters(), gradient, strict=True):
        clipped = g * min(1.0, float(clip) / norm)
        expected = before[name] - 0.01 * clipped / (clipped.abs() + 1e-8)
        sure = (clipped.abs() > 1e-6) | (clipped == 0)
        assert torch.allclose(after[name][sure], expected[sure], atol=2e-4)
    assert norm > 0.001


def test_gradients_are_clipped_and_rate_is_a_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, norms = [], []
    step = torch.optim.Adam.step

    def watched(self: torch.optim.Adam, closure: Any = None) -> Any:
        rates.append(self.param_groups[0]["lr"])
        norms.append(float(torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"]]).norm()))
        return step(self, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    convert(FedDf, rounds="2", steps="4", lr="0.002", clip="0.01", local_lr="0.1", local_epochs="10")
    cosine = [0.002 * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)]
    assert rates == pytest.approx(cosine * 2)
    assert max(norms) <= 0.01 * (1 + 1e-4)


def test_every_round_starts_from_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    updates, distilled = record_calls(monkeypatch, Clients, "update"), record_calls(monkeypatch, FedDf, "_distil")
    release = convert(FedDf, rounds=3, clients=2)
    given, left = [call.arguments[2] for call in updates], [call.result for call in distilled]
    assert len(given) == 6 and len(left) == 3
    for first, second, start in zip(given[::2], given[1::2], [fresh().state_dict(), *left], strict=False):
        assert_close(first, start, atol=0.0)
        assert_close(second, start, atol=0.0)
    assert_close(release.student.state_dict(), left[-1], atol=0.0)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["auto", "strokes", "upsample", "noise"])
def test_unlabelled_images_need_no_records_or_teacher(kind: str) -> None:
    u = images(kind)
    assert u.shape == (600, *SHAPE) and u.dtype == torch.uint8 and len(u.unique(dim=0)) == 600
    assert torch.equal(u, images(kind)) and not torch.equal(u, images(kind, seed=1))
    assert images(kind, count=501).shape == (501, *SHAPE) and images(kind, count=1).shape == (1, *SHAPE)


def test_noise_images_are_uniform_and_independent() -> None:
    values = images("noise").float().flatten(1)
    assert float(values.mean()) == pytest.approx(127.5, abs=1)
    assert float(values.var()) == pytest.approx((256**2 - 1) / 12, rel=0.02)
    assert float(values.min()) == 0 and float(values.max()) == 255
    assert abs(float(torch.corrcoef(values[:, :2].T)[0, 1])) < 0.15


@pytest.mark.parametrize(("dataset", "same"), [("mnist", "strokes"), ("digits", "strokes"), ("fmnist", "upsample")])
def test_auto_draws_strokes_only_for_glyphs(dataset: str, same: str) -> None:
    assert torch.equal(images("auto", dataset, 20), images(same, dataset, 20))
    assert not torch.equal(images("strokes", dataset, 20), images("upsample", dataset, 20))


def test_synthetic_images_are_unlabelled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, feddf.FedDf, "unlabelled_images")
    release = convert(FedDf, unlabelled="70")
    kept = [call.result for call in calls]
    assert len(kept) == 1 and release.synthetic is not None
    assert torch.equal(release.synthetic, kept[0][:60] / 255)


def test_ensemble_averages_logits_or_probabilities() -> None:
    clients = federation(clients="2")
    models = [clients.update(k, clients.initial(k), nothing) for k in range(2)]
    x = torch.rand(6, *SHAPE)
    logits, probabilities = (ClientEnsemble(clients, models, mean) for mean in ("logits", "probabilities"))  # type: ignore[arg-type]
    f = torch.stack([clients.with_weights(w).eval()(x) for w in models])
    assert not torch.allclose(f[0], f[1])
    assert torch.allclose(logits(x), (f[0] + f[1]) / 2, atol=1e-6)
    assert torch.allclose(probabilities(x).exp(), (f[0].softmax(1) + f[1].softmax(1)) / 2, atol=1e-6)


def test_large_logits_dominate_only_the_mean_of_logits() -> None:
    """Two clients are sure of class 0, by 4; the third says class 1 by 20, and has never seen class 0."""
    clients = federation(clients="3")
    said = torch.tensor([[4.0, 0.0, 0.0], [4.0, 0.0, 0.0], [-20.0, 0.0, -20.0]])
    answers = {}
    for mean in ("logits", "probabilities"):
        ensemble = ClientEnsemble(clients, [clients.initial()] * 3, mean)  # type: ignore[arg-type]
        ensemble.members = nn.ModuleList(Says(each) for each in said)
        answers[mean] = ensemble(torch.zeros(1, *SHAPE))
    assert answers["logits"].argmax().item() == 1 and answers["probabilities"].argmax().item() == 0
    assert torch.allclose(answers["probabilities"].exp(), said.softmax(1).mean(0, keepdim=True))


class Says(nn.Module):
    """Returns one response to all queries."""

    def __init__(self, said: Tensor) -> None:
        super().__init__()
        self.said = said

    def forward(self, x: Tensor) -> Tensor:
        return self.said.expand(len(x), -1)


@pytest.mark.parametrize("cls", [FedDf, Dense, FedDafl, FedAdi])
def test_student_learns_the_chosen_mean(cls: type[Any]) -> None:
    """The mean of logits as published, that of probabilities in the variant `working`."""
    assert cls().mean == "logits"
    options = ({}, {"mean": "probabilities"}, {"mean": "logits"})
    usual, same, other = (weights(convert(cls, **given).student) for given in options)
    assert same_tensors(usual, same) and not same_tensors(usual, other)
