"""Fed-DAFL: the generator's loss, and the inputs of each step."""

from __future__ import annotations

import math
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import NO_NOISE, forbidden_teacher
from torch import Tensor

from baselines.feddafl import FedDafl
from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.generator_training import make_generator
from bench.nets import Classifier
from bench.nets.stroke_generator import StrokeGenerator
from bench.privacy import Budget
from bench.teachers.federated import ClientEnsemble, Clients, snapshot
from bench.testing import SHAPE, context, toy_private


def toy(private: tuple[Tensor, Tensor] | None = None, dataset: str = "toy") -> Teacher:
    return forbidden_teacher(private=private or toy_private(), dataset=dataset)


def convert(private: tuple[Tensor, Tensor] | None = None, student: str = "shard-cnn", **given: str) -> Release:
    return baseline_runs.convert(FedDafl, NO_NOISE, toy(private), student, variant=None, **given)


def trained(**given: str) -> tuple[FedDafl, ClientEnsemble, Classifier]:
    torch.manual_seed(0)
    settings = configure(FedDafl, "smoke", {"local_limit": "3", **given}, "method")
    clients = Clients(settings, toy(), "shard-cnn", context())
    models = [clients.update(k, clients.initial(), lambda _: None) for k in range(settings.clients)]
    return settings, ClientEnsemble(clients, models), clients.fresh()


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


def test_generator_step_changes_only_the_generator() -> None:
    method, teacher, _ = trained(generator="upsample", generator_lr="0.01")
    before = [p.clone() for p in teacher.state_dict().values()]
    generator: Any = make_generator("upsample", "toy", SHAPE, 8, 4)
    adam = torch.optim.Adam(generator.parameters(), lr=0.01)
    losses: list[float] = []
    loss = FedDafl._loss
    object.__setattr__(
        method, "_loss", lambda *given: (losses.append(float(loss(method, *given).detach())), loss(method, *given))[1]
    )
    for _ in range(30):
        x = method._improve(generator, teacher, adam, torch.Generator().manual_seed(3), context())
    assert losses[-1] < losses[0] and not x.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(before, teacher.state_dict().values(), strict=True))
    assert not any(m._forward_pre_hooks for m in teacher.modules()), "hooks do not pile up"
    assert all(p.grad is None for p in teacher.parameters())


@pytest.mark.parametrize("count", [1, 3])
def test_student_uses_the_generator_images_first(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    method, teacher, student = trained(student_steps=str(count), augment="false", generator="upsample")
    made: list[Tensor] = []
    seen: list[Tensor] = []
    improve = FedDafl._improve
    monkeypatch.setattr(FedDafl, "_improve", lambda *given: (made.append(improve(*given)), made[-1])[1])
    monkeypatch.setattr(FedDafl, "learn", lambda self, teacher, student, optimizer, x, ctx: seen.append(x))
    method.distil(teacher, student, SHAPE, context(), lambda _: None)
    assert len(made) == 3 and len(seen) == 3 * count
    assert all(torch.equal(a, b) for a, b in zip(made, seen[::count], strict=True))
    assert not any(x.requires_grad for x in seen), "the student's loss does not reach the generator"
    assert count == 1 or not torch.equal(seen[0], seen[1])


def test_strokes_are_only_for_glyphs(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[type] = []
    images = FedDafl._images
    monkeypatch.setattr(FedDafl, "_images", lambda self, g, rng: (kinds.append(type(g)), images(self, g, rng))[1])
    for dataset in ("digits", "fmnist"):
        torch.manual_seed(0)
        method = configure(FedDafl, "smoke", {"steps": "1"}, "method")
        method.convert(toy(dataset=dataset), "shard-cnn", Budget(math.inf), context())
    assert kinds[0] is StrokeGenerator and kinds[-1] is not StrokeGenerator


@pytest.mark.parametrize(
    "given", [{"start": "fresh"}, {"rounds": "2"}, {"optimizer": "sgd", "lr": "0.01"}, {"temperature": "20"}], ids=str
)
def test_every_option_changes_the_student(given: dict[str, str]) -> None:
    changed, plain = (snapshot(convert(**more).student) for more in (given, {}))  # type: ignore[arg-type]
    assert any(not torch.equal(a, b) for a, b in zip(changed.values(), plain.values(), strict=True))
    assert all(value.isfinite().all() for value in changed.values())
