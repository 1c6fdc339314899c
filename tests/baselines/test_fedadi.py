"""Fed-ADI: the loss of the searched pixels, the kept result of a search, the student's steps, no guarantee."""

from __future__ import annotations

import math
from typing import Any

import baseline_runs
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import NO_NOISE, forbidden_teacher
from torch import Tensor, nn

from baselines import fedadi
from baselines.fedadi import FedAdi, agreement
from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.losses import total_variation
from bench.nets import Classifier
from bench.teachers.federated import ClientEnsemble, Clients, ServerDistillation, snapshot
from bench.testing import CLASSES, SHAPE, context, toy_private


def toy(private: tuple[Tensor, Tensor] | None = None) -> Teacher:
    return forbidden_teacher(private=private or toy_private())


def convert(private: tuple[Tensor, Tensor] | None = None, student: str = "shard-cnn", **given: str) -> Release:
    return baseline_runs.convert(FedAdi, NO_NOISE, toy(private), student, variant=None, **given)


def trained(arch: str = "shard-cnn", **given: str) -> tuple[FedAdi, ClientEnsemble, Classifier]:
    torch.manual_seed(0)
    settings = configure(FedAdi, "smoke", {"local_limit": "3", **given}, "method")
    clients = Clients(settings, toy(), arch, context())
    models = [clients.update(k, clients.initial(), lambda _: None) for k in range(settings.clients)]
    return settings, ClientEnsemble(clients, models), clients.fresh()


def search(method: FedAdi, teacher: ClientEnsemble, student: Classifier) -> Tensor:
    y = torch.arange(16) % CLASSES
    return method._search(teacher, student, y, SHAPE, torch.Generator().manual_seed(1), context(), lambda _: None)


def test_agreement_is_one_minus_the_divergence() -> None:
    """KL(M || P) and KL(M || Q) at temperature 3, probabilities between 0.01 and 0.99; the textbook's order differs."""
    s, t = torch.tensor([[0.0, 6.0, -30.0]]), torch.tensor([[3.0, 0.0, 0.0]])
    p, q = (s / 3).softmax(1)[0].double(), (t / 3).softmax(1)[0].double()
    m = (p + q) / 2
    p, q, m = (each.clamp(0.01, 0.99) for each in (p, q, m))
    js = 0.5 * float((m * (m / p).log()).sum() + (m * (m / q).log()).sum())
    textbook = 0.5 * float((p * (p / m).log()).sum() + (q * (q / m).log()).sum())
    assert float(agreement(s, t)) == pytest.approx(1 - js, rel=1e-5) and abs(js - textbook) > 1e-3
    assert float(agreement(t, t)) == pytest.approx(1)
    assert float(agreement(torch.tensor([[60.0, 0.0]]), torch.tensor([[0.0, 60.0]]))) == pytest.approx(0, abs=0.2)


def test_total_variation_by_hand() -> None:
    x = torch.tensor([[[[0.0, 3.0], [4.0, 0.0]]]])
    right, down, falling, rising = math.sqrt(9 + 16), math.sqrt(16 + 9), 0.0, 1.0
    assert float(total_variation(x)) == pytest.approx(right + down + falling + rising)


def test_first_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step without shifts of a network with BatchNorm: its loss is the sum of the five terms at the starting x."""
    given = {"iterations": "1", "jitter": "0", "bn": "0.3", "tv": "0.2", "l2": "0.1", "adi": "0.7"}
    method, teacher, student = trained("evaluator-cnn", **given)
    seen: list[Tensor] = []
    infinity = torch.tensor(math.inf)
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: seen.append(loss.detach()))
    search(method, teacher, student)
    monkeypatch.undo()
    bound = 0.5 / method.pixel_std
    x = torch.randn(16, *SHAPE, generator=torch.Generator().manual_seed(1)).clamp(-bound, bound)
    images, y = (0.5 + method.pixel_std * x).clamp(0, 1), torch.arange(16) % CLASSES
    gap = 0.0
    for member in teacher.members:
        for layer in (m for m in member.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)):
            found: list[Tensor] = []
            hook = layer.register_forward_pre_hook(lambda _, given, found=found: found.append(given[0]))  # type: ignore[misc]
            member(images)
            hook.remove()
            axes = [axis for axis in range(found[0].ndim) if axis != 1]
            mean, variance = found[0].mean(axes), found[0].var(axes, correction=0)
            gap += float((mean - layer.running_mean).norm() + (variance - layer.running_var).norm())  # type: ignore[operator]
    with torch.no_grad():
        t, s = teacher(images), student.eval()(images)
        expected = F.cross_entropy(t, y) + 0.3 * gap / 2 + 0.2 * total_variation(x) + 0.1 * x.norm()
        expected = expected + 0.7 * agreement(s, t)
    assert len(seen) == 1 and float(seen[0]) == pytest.approx(float(expected), rel=1e-4) and seen[0] < infinity


def test_x_of_lowest_loss_is_kept_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses are 3, 1, 2: the kept x is that of the second step, although x changes in place."""
    method, teacher, student = trained(jitter="0")
    shown: list[Tensor] = []
    pixels, losses = FedAdi._pixels, iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(FedAdi, "_pixels", lambda self, x: (shown.append(pixels(self, x).detach()), pixels(self, x))[1])
    entropy = lambda t, y: t.sum() * 1e-6 + 100 * next(losses)  # noqa: E731
    monkeypatch.setattr(fedadi.F, "cross_entropy", entropy)
    kept = search(method, teacher, student)
    assert len(shown) == 4 and torch.equal(kept, (shown[1] * 255).round().to(torch.uint8))
    assert not torch.equal(shown[1], shown[2]), "x moves"


@pytest.mark.parametrize("arch", ["shard-cnn", "evaluator-cnn"])
def test_hooks_are_removed_and_student_is_unchanged(arch: str) -> None:
    method, teacher, student = trained(arch)
    before = snapshot(student)
    for _ in range(2):
        made = search(method, teacher, student)
        assert not any(m._forward_pre_hooks for m in (*teacher.modules(), *student.modules()))
    assert made.shape == (16, *SHAPE) and made.dtype == torch.uint8
    assert all(torch.equal(a, b) for a, b in zip(before.values(), snapshot(student).values(), strict=True))


def test_search_finds_images_of_cyclic_classes() -> None:
    method, teacher, student = trained(iterations="40", jitter="0", adi="0", tv="0")
    x, y = search(method, teacher, student) / 255, torch.arange(16) % CLASSES
    assert float(F.cross_entropy(teacher(x), y)) < 0.5 * math.log(CLASSES)


def test_classes_continue_in_the_next_search(monkeypatch: pytest.MonkeyPatch) -> None:
    method, teacher, student = trained(searches="3", iterations="1", student_steps="0")
    aimed: list[Tensor] = []
    found = FedAdi._search
    monkeypatch.setattr(
        FedAdi, "_search", lambda self, t, s, y, *rest: (aimed.append(y), found(self, t, s, y, *rest))[1]
    )
    method.distil(teacher, student, SHAPE, context(), lambda _: None)
    assert torch.equal(torch.cat(aimed), torch.arange(3 * method.synthesis) % CLASSES)


def test_student_uses_the_current_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    done: list[int] = []
    randint = torch.randint
    monkeypatch.setattr(torch, "randint", lambda *given, **more: (sizes.append(given[0]), randint(*given, **more))[1])
    method, teacher, student = trained(searches="3")
    sizes.clear()
    method.distil(teacher, student, SHAPE, context(), done.append)
    assert [size for size in sizes if size > 0] == [16, 16, 32, 32, 48, 48]
    assert sum(done) == method.server_steps() == 3 * (3 + 2)


def test_student_step_by_hand() -> None:
    """w - lr T^2 grad mean KL(softmax(t / T) || softmax(s / T))."""
    method, teacher, student = trained(optimizer="sgd", lr="0.1", temperature="5")
    x, before = torch.rand(8, *SHAPE), snapshot(student)
    p, log_q = (teacher(x) / 5).softmax(1), (student(x) / 5).log_softmax(1)
    loss = 25 * (p * (p.log() - log_q)).sum(1).mean()
    gradient = torch.autograd.grad(loss, list(student.parameters()))
    method.learn(teacher, student, method.student_optimizer(student), x, context())
    for (name, after), g in zip(student.named_parameters(), gradient, strict=True):
        torch.testing.assert_close(after.detach(), before[name] - 0.1 * g, rtol=1e-4, atol=1e-5)


def test_student_starts_by_option_and_rounds_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[dict[str, Tensor]] = []
    updates: list[dict[str, Tensor]] = []
    update = Clients.update
    monkeypatch.setattr(Clients, "update", lambda self, k, w, a: (updates.append(w), update(self, k, w, a))[1])

    def distil(self: ServerDistillation, teacher: Any, student: Classifier, *_: Any) -> Tensor:
        starts.append(snapshot(student))
        for p in student.parameters():
            p.data.fill_(0.25)
        return torch.zeros(1, *SHAPE)

    monkeypatch.setattr(FedAdi, "distil", distil)
    convert(start="average", rounds="2", local_lr="1e-9")
    assert all(torch.allclose(starts[0][name], updates[0][name], atol=1e-5) for name in starts[0])
    assert all(bool((value == 0.25).all()) for value in updates[2].values() if value.ndim > 1 and value.numel() > 1)
    starts.clear()
    convert(start="fresh", rounds="1", local_lr="1e-9")
    assert any(not torch.allclose(starts[0][name], updates[0][name], atol=1e-3) for name in starts[0])
