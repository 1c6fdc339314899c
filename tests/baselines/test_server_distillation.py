"""Server steps of federations: starts, steps, images that move, are kept or drawn; the losses of Fed-DAFL."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from baseline_runs import record_calls, rng
from federated_made import BATCH_NORM, SERVERS, convert, nothing, server, smoke, toy, trained
from torch import Tensor, nn

from baselines import dense, feddafl, feddf
from baselines.dense import Dense, fresh_generator, generator_loss
from baselines.fedadi import FedAdi
from baselines.feddafl import FedDafl
from baselines.feddf import FedDf
from bench.distillation.generator_training import BatchStatistics, make_generator
from bench.nets.stroke_generator import StrokeGenerator
from bench.privacy import Budget
from bench.teachers.federated import ClientEnsemble, Clients, State, snapshot
from bench.testing import CLASSES, SHAPE, context, weights
from bench.testing.toys import same_tensors


@SERVERS
def test_start_average_is_that_of_all_clients(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[State] = []
    monkeypatch.setattr(
        cls, "distil", lambda _, t, student, shape, *rest: (starts.append(snapshot(student)), torch.zeros(1, *shape))[1]
    )
    averages = record_calls(monkeypatch, Clients, "average")
    convert(cls, start="average", local_lr=0.1)
    assert len(starts) == len(averages) == 1
    assert all(torch.equal(value, averages[0].result[name]) for name, value in starts[0].items())


def test_feddf_distils_into_the_average(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, averages = record_calls(monkeypatch, FedDf, "_distil"), record_calls(monkeypatch, Clients, "average")
    convert(FedDf, local_lr=0.1)
    assert len(starts) == 1 and starts[0].arguments[2] is averages[0].result


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
    method, teacher, student = server(cls, BATCH_NORM)
    before = snapshot(student.eval())
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
    method, teacher, student = server(FedAdi, iterations=40, jitter=2)
    calls = record_calls(monkeypatch, Tensor, "roll")
    method._search(teacher, student, torch.arange(4) % CLASSES, SHAPE, rng(), context(), nothing)
    assert {tuple(call.arguments[2]) for call in calls} == {(2, 3)}
    shifts = [tuple(call.arguments[1]) for call in calls]
    assert len(shifts) == 40
    for way in zip(*shifts, strict=True):
        assert set(way) == {-2, -1, 0, 1, 2}


@pytest.mark.parametrize("augment", ["true", "false"])
def test_feddafl_augments_student_images_by_option(augment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, teacher, student = server(FedDafl, augment=augment, generator="upsample", student_steps=2)
    seen: list[Tensor] = []
    monkeypatch.setattr(feddafl, "random_affine", lambda x, rng: torch.full_like(x, 0.25))
    monkeypatch.setattr(FedDafl, "learn", lambda self, teacher, student, optimizer, x, ctx: seen.append(x))
    method.distil(teacher, student, SHAPE, context(), nothing)
    assert len(seen) == 6 and all(bool((x == 0.25).all()) == (augment == "true") for x in seen)


def test_dense_diversity_compares_student_and_ensemble() -> None:
    """The ensemble predicts 1, the student the wanted class 0: they still differ."""
    t, s = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[3.0, 0.0, 0.0]])
    p, q = t[0].softmax(0), s[0].softmax(0)
    divergence = float((p * (p / q).log()).sum())
    found = generator_loss(t, s, torch.tensor([0]), torch.tensor(0.0), 1.0, 2.0)
    assert float(found) == pytest.approx(-float(p[0].log()) - 2 * divergence)


def test_dense_trains_latents_on_unmoved_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients whose statistics are 6 away together; images around 1/2, where those that were halved are below."""
    method, teacher, student = server(Dense, BATCH_NORM, generator_steps=1)
    adams, losses = (
        record_calls(monkeypatch, torch.optim.Adam, "step"),
        record_calls(monkeypatch, dense, "generator_loss"),
    )
    monkeypatch.setattr(dense, "augmented", lambda x, *given: x / 2)
    monkeypatch.setattr(BatchStatistics, "distance", lambda self: torch.tensor(6.0))
    made = method._synthesise(teacher, student, SHAPE, rng(), rng(), context())
    moved = [p for group in adams[0].arguments[0].param_groups for p in group["params"]]
    assert [tuple(p.shape) for p in moved].count((16, 8)) == 1, "16 latents of length 8"
    assert [float(call.arguments[3]) for call in losses] == [3.0]
    assert float(made.double().mean()) > 0.4 * 255


def test_dense_augments_student_images(monkeypatch: pytest.MonkeyPatch) -> None:
    method, teacher, student = server(Dense)
    seen: list[Tensor] = []
    monkeypatch.setattr(dense, "augmented", lambda x, *given: x / 2)
    monkeypatch.setattr(Dense, "learn", lambda self, teacher, student, optimizer, x, ctx: seen.append(x))
    pool = torch.full((16, *SHAPE), 255, dtype=torch.uint8)
    method._pass(teacher, student, method.student_optimizer(student), pool, rng(), rng(), context(), nothing)
    assert torch.equal(torch.cat(seen), torch.full((16, *SHAPE), 0.5))


def test_dense_generator_biases_start_at_zero() -> None:
    layers = [m for m in fresh_generator(SHAPE, 8, 4, 0.02).modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    assert biases and not any(bool(bias.any()) for bias in biases)
    plain = [m for m in fresh_generator(SHAPE, 8, 4, 0.0).modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert any(bool(layer.bias.any()) for layer in plain if layer.bias is not None)


def test_generator_loss_by_hand() -> None:
    """Even classes give ie its least, -1 in base 10 of ten classes (ln gives -2.3)."""
    method = FedDafl(one_hot=2.0, activation=0.1, balance=5.0)
    t = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5]])
    features = [torch.tensor([[1.0, -3.0]]), torch.tensor([[0.5, 0.5, -2.0]])]
    p = t.softmax(1)
    sure = -float(p[0, 0].log() + p[1, 1].log()) / 2
    mean = p.mean(0)
    entropy = float((mean * mean.log10()).sum())
    expected = 2 * sure - 0.1 * (2.0 + 1.0) / 2 + 5 * entropy
    assert float(method._loss(t, features)) == pytest.approx(expected, rel=1e-5)
    even = FedDafl(one_hot=0.0, activation=0.0, balance=1.0)._loss(30 * torch.eye(10), features)
    assert float(even) == pytest.approx(-1, rel=1e-4)


def test_generator_step_changes_only_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    method, teacher, _ = server(FedDafl, generator="upsample", generator_lr=0.01)
    before = [p.clone() for p in teacher.state_dict().values()]
    generator: Any = make_generator("upsample", "toy", SHAPE, 8, 4)
    adam, losses = torch.optim.Adam(generator.parameters(), lr=0.01), record_calls(monkeypatch, FedDafl, "_loss")
    for _ in range(30):
        x = method._improve(generator, teacher, adam, rng(3), context())
    assert losses[-1].result < losses[0].result and not x.requires_grad
    assert same_tensors(before, teacher.state_dict().values())
    assert not any(m._forward_pre_hooks for m in teacher.modules()), "hooks do not pile up"
    assert all(p.grad is None for p in teacher.parameters())


@pytest.mark.parametrize("count", [1, 3])
def test_student_uses_the_generator_images_first(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    method, teacher, student = server(FedDafl, student_steps=count, augment="false", generator="upsample")
    improved = record_calls(monkeypatch, FedDafl, "_improve")
    seen: list[Tensor] = []
    monkeypatch.setattr(FedDafl, "learn", lambda self, teacher, student, optimizer, x, ctx: seen.append(x))
    method.distil(teacher, student, SHAPE, context(), nothing)
    made = [call.result for call in improved]
    assert len(made) == 3 and len(seen) == 3 * count
    assert all(torch.equal(a, b) for a, b in zip(made, seen[::count], strict=True))
    assert not any(x.requires_grad for x in seen), "the student's loss does not reach the generator"
    assert count == 1 or not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize(("dataset", "strokes"), [("digits", True), ("fmnist", False)])
def test_strokes_are_only_for_glyphs(dataset: str, strokes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, FedDafl, "_images")
    smoke(FedDafl, steps=1).convert(toy(dataset=dataset), "shard-cnn", Budget(math.inf), context())
    assert all(isinstance(call.arguments[1], StrokeGenerator) == strokes for call in calls) and calls


@pytest.mark.parametrize(
    "given", [{"start": "fresh"}, {"rounds": "2"}, {"optimizer": "sgd", "lr": "0.01"}, {"temperature": "20"}], ids=str
)
def test_every_option_changes_the_student(given: dict[str, str]) -> None:
    changed, plain = (weights(convert(FedDafl, **more).student) for more in (given, {}))
    assert not same_tensors(changed, plain) and all(value.isfinite().all() for value in changed)
