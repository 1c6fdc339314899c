"""Server steps of federations between clients and student: starts, steps, images that move, are kept or drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_runs import record_calls
from torch import Tensor, nn

from baselines import dense, feddafl, feddf
from baselines.dense import Dense, fresh_generator, generator_loss
from baselines.fedadi import FedAdi
from baselines.feddafl import FedDafl
from baselines.feddf import FedDf
from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.generator_training import BatchStatistics
from bench.nets import Classifier
from bench.privacy import Budget
from bench.teachers.federated import ClientEnsemble, Clients, State, snapshot
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

NET, BATCH_NORM = "shard-cnn", "evaluator-cnn"
SERVERS = pytest.mark.parametrize("cls", [Dense, FedAdi, FedDafl])


def toy() -> Teacher:
    return replace(toy_teacher(), private=toy_private())


def smoke(cls: type[Any], **given: str) -> Any:
    return configure(cls, "smoke", given, "method")


def convert(cls: type[Any], **given: str) -> Release:
    torch.manual_seed(0)
    return smoke(cls, **given).convert(toy(), NET, Budget(10.0), context())


def nothing(_: int) -> None:
    pass


def trained(cls: type[Any], arch: str = NET, **given: str) -> tuple[Any, Clients, list[State]]:
    torch.manual_seed(0)
    settings = smoke(cls, local_limit="3", **given)
    clients = Clients(settings, toy(), arch, context())
    return settings, clients, [clients.update(k, clients.initial(), nothing) for k in range(settings.clients)]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# The student


@SERVERS
def test_start_average_is_that_of_all_clients(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[State] = []

    def distil(self: Any, teacher: Any, student: Classifier, shape: Any, *rest: Any) -> Tensor:
        starts.append(snapshot(student))
        return torch.zeros(1, *shape)

    monkeypatch.setattr(cls, "distil", distil)
    averages = record_calls(monkeypatch, Clients, "average")
    convert(cls, start="average", local_lr="0.1")
    assert len(starts) == len(averages) == 1
    assert all(torch.equal(value, averages[0].result[name]) for name, value in starts[0].items())


def test_feddf_distils_into_the_average(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[State] = []

    def distil(self: FedDf, clients: Clients, w: State, *rest: Any) -> State:
        starts.append(w)
        return w

    monkeypatch.setattr(FedDf, "_distil", distil)
    averages = record_calls(monkeypatch, Clients, "average")
    convert(FedDf, local_lr="0.1")
    assert len(starts) == 1 and starts[0] is averages[0].result


def test_student_momentum_is_separate_from_clients() -> None:
    """Twice along a gradient of 1: -0.1 and then -0.1 (1 + 0.5) more."""
    method = smoke(FedAdi, optimizer="sgd", lr="0.1", momentum="0.5", local_momentum="0.9")
    student = nn.Linear(1, 1)
    nn.init.zeros_(student.weight)
    optimizer = method.student_optimizer(student)
    for _ in range(2):
        student.weight.grad = torch.ones(1, 1)
        optimizer.step()
    assert student.weight.item() == pytest.approx(-0.25)


@SERVERS
def test_student_batch_norm_uses_its_images(cls: type[Any]) -> None:
    method, clients, models = trained(cls, BATCH_NORM)
    teacher, student = ClientEnsemble(clients, models), clients.fresh().eval()
    before = snapshot(student)
    method.learn(teacher, student, method.student_optimizer(student), torch.rand(8, *SHAPE), context())
    after = snapshot(student)
    names = [name for name in before if "running" in name]
    assert names and all(not torch.equal(before[name], after[name]) for name in names)


def test_feddf_batch_norm_uses_its_images() -> None:
    """The first layer's mean moves a tenth of the way to that of a batch of U."""
    method, clients, models = trained(FedDf, BATCH_NORM, steps="1", batch="2", unlabelled="1")
    w = clients.average(models)
    u = torch.full((1, *SHAPE), 200, dtype=torch.uint8)
    answers = ClientEnsemble(clients, models).responses(u, context())
    after = method._distil(clients, w, u, answers, rng(), nothing)
    network = clients.with_weights(w).train()
    network(u.expand(2, *SHAPE) / 255)
    for name, value in network.state_dict().items():
        if "running" in name:
            torch.testing.assert_close(after[name], value)
            assert not torch.equal(value, w[name])


# Images


def test_feddf_draws_from_all_of_8_bit_u(monkeypatch: pytest.MonkeyPatch) -> None:
    class Grey(nn.Module):
        latent = 3

        def forward(self, z: Tensor) -> Tensor:
            return torch.full((len(z), *SHAPE), 0.999)

    method, clients, models = trained(FedDf, unlabelled="30", batch="2", steps="3")
    with monkeypatch.context() as patch:
        patch.setattr(feddf, "make_generator", lambda *given: Grey())
        assert method.unlabelled_images(toy(), context()).unique().tolist() == [255], "254.745"
    u = torch.randint(0, 256, (30, *SHAPE), dtype=torch.uint8)
    answers = ClientEnsemble(clients, models).responses(u, context())
    calls = record_calls(monkeypatch, torch, "randint")
    method._distil(clients, clients.average(models), u, answers, rng(), nothing)
    assert [call.arguments[0] for call in calls] == [30] * 3


def test_fedadi_shifts_images_in_all_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """By up to two pixels, along height and width."""
    method, clients, models = trained(FedAdi, iterations="40", jitter="2")
    calls = record_calls(monkeypatch, Tensor, "roll")
    y = torch.arange(4) % CLASSES
    method._search(ClientEnsemble(clients, models), clients.fresh(), y, SHAPE, rng(), context(), nothing)
    assert {tuple(call.arguments[2]) for call in calls} == {(2, 3)}
    shifts = [tuple(call.arguments[1]) for call in calls]
    assert len(shifts) == 40
    for way in zip(*shifts, strict=True):
        assert set(way) == {-2, -1, 0, 1, 2}


@pytest.mark.parametrize("augment", ["true", "false"])
def test_feddafl_augments_student_images_by_option(augment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, clients, models = trained(FedDafl, augment=augment, generator="upsample", student_steps="2")
    seen: list[Tensor] = []
    monkeypatch.setattr(feddafl, "random_affine", lambda x, rng: torch.full_like(x, 0.25))
    monkeypatch.setattr(FedDafl, "learn", lambda self, teacher, student, optimizer, x, ctx: seen.append(x))
    method.distil(ClientEnsemble(clients, models), clients.fresh(), SHAPE, context(), nothing)
    assert len(seen) == 6 and all(bool((x == 0.25).all()) == (augment == "true") for x in seen)


def test_dense_diversity_compares_student_and_ensemble() -> None:
    """The ensemble predicts 1, the student the wanted class 0: they still differ."""
    t, s = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[3.0, 0.0, 0.0]])
    p, q = t[0].softmax(0), s[0].softmax(0)
    divergence = float((p * (p / q).log()).sum())
    found = generator_loss(t, s, torch.tensor([0]), torch.tensor(0.0), 1.0, 2.0)
    assert float(found) == pytest.approx(-float(p[0].log()) - 2 * divergence)


def synthesised(monkeypatch: pytest.MonkeyPatch, **given: str) -> tuple[Tensor, list[Any], list[Any]]:
    """A batch of DENSE with halved instead of moved images; the parameters of Adam, and the distances in the loss."""
    method, clients, models = trained(Dense, BATCH_NORM, generator_steps="1", **given)
    moved: list[Any] = []
    distances: list[Any] = []
    init, loss = torch.optim.Adam.__init__, generator_loss

    def adam(self: Any, parameters: Any, **options: Any) -> None:
        moved.extend(parameters)
        init(self, moved, **options)

    def spy(t: Tensor, s: Tensor, y: Tensor, distance: Tensor, bn: float, div: float) -> Tensor:
        distances.append(float(distance.detach()))
        return loss(t, s, y, distance, bn, div)

    monkeypatch.setattr(torch.optim.Adam, "__init__", adam)
    monkeypatch.setattr(dense, "generator_loss", spy)
    monkeypatch.setattr(dense, "augmented", lambda x, *given: x / 2)
    monkeypatch.setattr(BatchStatistics, "distance", lambda self: torch.tensor(6.0))
    teacher = ClientEnsemble(clients, models)
    made = method._synthesise(teacher, clients.fresh(), SHAPE, rng(), rng(), context())
    return made, moved, distances


def test_dense_trains_latents_on_unmoved_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two clients whose statistics are 6 away together; images around 1/2, where those that were halved are below."""
    made, moved, distances = synthesised(monkeypatch)
    assert [tuple(p.shape) for p in moved].count((16, 8)) == 1, "16 latents of length 8"
    assert distances == [3.0]
    assert float(made.double().mean()) > 0.4 * 255


def test_dense_augments_student_images(monkeypatch: pytest.MonkeyPatch) -> None:
    method, clients, models = trained(Dense)
    seen: list[Tensor] = []
    monkeypatch.setattr(dense, "augmented", lambda x, *given: x / 2)
    monkeypatch.setattr(Dense, "learn", lambda self, teacher, student, optimizer, x, ctx: seen.append(x))
    pool = torch.full((16, *SHAPE), 255, dtype=torch.uint8)
    student = clients.fresh()
    optimizer = method.student_optimizer(student)
    method._pass(ClientEnsemble(clients, models), student, optimizer, pool, rng(), rng(), context(), nothing)
    assert torch.equal(torch.cat(seen), torch.full((16, *SHAPE), 0.5))


def test_dense_generator_biases_start_at_zero() -> None:
    layers = [m for m in fresh_generator(SHAPE, 8, 4, 0.02).modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    assert biases and not any(bool(bias.any()) for bias in biases)
    plain = [m for m in fresh_generator(SHAPE, 8, 4, 0.0).modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert any(bool(layer.bias.any()) for layer in plain if layer.bias is not None)
