"""DENSE and Fed-ADI: losses of generated and searched images by hand, the pool, and the student's steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import flat, record_calls, rng
from federated_made import BATCH_NORM, convert, nothing, server, smoke, statistics_gap
from torch import Tensor, nn

from baselines import dense, fedadi
from baselines.dense import Dense, fresh_generator, generator_loss
from baselines.fedadi import FedAdi, agreement
from bench.distillation.generator_training import BatchStatistics
from bench.distillation.losses import total_variation
from bench.errors import BenchError
from bench.nets import Classifier
from bench.teachers.federated import ClientEnsemble, Clients, ServerDistillation, batches, snapshot
from bench.testing import CLASSES, SHAPE, context
from bench.testing.toys import same_tensors


def test_ensemble_is_the_fixed_mean_of_logits() -> None:
    _, teacher, _ = server(Dense, "datalens")
    x = torch.rand(5, *SHAPE)
    first, second = (member(x) for member in teacher.members)
    torch.testing.assert_close(teacher(x), (first + second) / 2)
    assert not torch.allclose(first, second, atol=1e-3)
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())


def test_generator_loss_by_hand() -> None:
    """Two images; only for the second one do the arg-maxes differ."""
    t = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    s = torch.tensor([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    p, q = t[1].softmax(0), s[1].softmax(0)
    divergence = float((p * (p / q).log()).sum())
    entropy = -float(t[0].log_softmax(0)[0] + t[1].log_softmax(0)[2]) / 2
    found = generator_loss(t, s, torch.tensor([0, 2]), torch.tensor(0.7), 10.0, 0.5)
    assert float(found) == pytest.approx(entropy + 10 * 0.7 - 0.5 * divergence / 2)


def test_statistics_loss_sums_over_all_batch_norms() -> None:
    _, teacher, _ = server(Dense, BATCH_NORM)
    x = torch.rand(6, *SHAPE)
    with BatchStatistics(teacher, required=False) as statistics:
        teacher(x)
        assert float(statistics.distance()) == pytest.approx(statistics_gap(teacher, x), rel=1e-4)
    without = server(Dense)[1]
    with BatchStatistics(without, required=False) as statistics:
        assert float(statistics.distance()) == 0
    with pytest.raises(BenchError):
        BatchStatistics(without)


def synthesise(method: Dense, teacher: ClientEnsemble, student: Classifier) -> Tensor:
    return method._synthesise(teacher, student, SHAPE, rng(1), rng(1), context())


@pytest.mark.parametrize("arch", ["shard-cnn", BATCH_NORM])
@pytest.mark.parametrize("cls", [Dense, FedAdi])
def test_hooks_are_removed_and_student_is_unchanged(cls: type[Any], arch: str) -> None:
    method, teacher, student = server(cls, arch)
    before = snapshot(student)
    for _ in range(2):
        made = synthesise(method, teacher, student) if cls is Dense else search(method, teacher, student)
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in (*teacher.modules(), *student.modules()))
    assert made.shape == (16, *SHAPE) and made.dtype == torch.uint8
    assert same_tensors(before.values(), snapshot(student).values())
    assert all(p.grad is None for p in teacher.parameters()) and all(p.requires_grad for p in student.parameters())


def test_batch_of_lowest_loss_is_kept_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses 3, 1, 2: the second batch is kept, though G and z move on."""
    method, teacher, student = server(Dense, generator_steps=3)
    losses = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr("baselines.dense.generator_loss", lambda t, *_: t.sum() * 1e-6 + next(losses))
    monkeypatch.setattr("baselines.dense.augmented", lambda x, *_: x)
    calls = record_calls(monkeypatch, dense, "augmented")
    source = rng(1)
    kept = method._synthesise(teacher, student, SHAPE, source, source, context())
    shown = [(call.arguments[0] * 255).round().to(torch.uint8) for call in calls]
    assert torch.equal(kept, shown[1]) and not torch.equal(kept, shown[2])


@pytest.mark.thorough
def test_generated_images_depend_on_labels() -> None:
    """With nothing but the cross-entropy the ensemble agrees with the labels more often than at first."""
    given = {"generator_steps": 60, "synthesis": 32, "width": 16, "generator_lr": 0.02, "bn": 0}
    method, teacher, student = server(Dense, **given)
    source, again = rng(1), rng(1)
    made = method._synthesise(teacher, student, SHAPE, source, source, context())
    torch.randn(32, 8, generator=again)
    y = torch.randint(CLASSES, (32,), generator=again).sort().values
    assert float(F.cross_entropy(teacher(made / 255), y)) < math.log(CLASSES)


def test_student_passes_over_the_growing_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, Dense, "_pass")
    done: list[int] = []
    method, teacher, student = server(Dense, epochs=3, passes=2)
    method.distil(teacher, student, SHAPE, context(), done.append)
    assert [len(call.arguments[4]) for call in calls] == [16, 16, 32, 32, 48, 48]
    assert sum(done) == method.server_steps() == 2 * (2 + 4 + 6) and batches(48, 8) == 6


def test_first_student_step_by_hand() -> None:
    """One batch of the whole pool, not moved: w - lr T^2 grad mean KL(softmax(t / T) || softmax(s / T))."""
    given = {"batch": 16, "shift": 0, "flip": "false", "lr": 0.1, "temperature": 4, "optimizer": "sgd"}
    method, teacher, student = server(Dense, **given)
    pool = torch.randint(0, 256, (16, *SHAPE), dtype=torch.uint8)
    x, before = pool / 255, snapshot(student)
    p, log_q = (teacher(x) / 4).softmax(1), (student(x) / 4).log_softmax(1)
    loss = 16 * (p * (p.log() - log_q)).sum(1).mean()
    gradient = torch.autograd.grad(loss, list(student.parameters()))
    method._pass(teacher, student, method.student_optimizer(student), pool, rng(), rng(), context(), nothing)
    for (name, after), g in zip(student.named_parameters(), gradient, strict=True):
        torch.testing.assert_close(after.detach(), before[name] - 0.1 * g, rtol=1e-4, atol=1e-5)


def test_new_generator_has_the_papers_weights() -> None:
    made = fresh_generator(SHAPE, 256, 64, 0.02)
    (weights,) = (layer.weight for layer in made.modules() if isinstance(layer, nn.Linear))
    assert float(weights.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert made.latent == 256 and [m.out_channels for m in made.modules() if isinstance(m, nn.Conv2d)] == [128, 64, 1]


@pytest.mark.parametrize("given", [{"start": "average"}, {"rounds": "2"}, {"optimizer": "adam"}, {"div": "0"}], ids=str)
def test_every_option_runs(given: dict[str, str]) -> None:
    release = convert(Dense, **given)
    assert release.synthetic is not None and float(release.synthetic.max()) <= 1
    assert all(p.isfinite().all() for p in release.student.parameters())


def test_clients_may_have_different_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn, each from its own start; the student keeps the architecture of the release."""
    calls = record_calls(monkeypatch, Dense, "distil")
    given = {"clients": "3", "client_nets": "shard-cnn, dense-cnn", "partition": "hash", "start": "fresh"}
    release = convert(Dense, "datalens", **given)
    members = calls[0].arguments[1].members
    assert [type(member.body).__name__ for member in members] == ["ShardNet", "DenseNet", "ShardNet"]
    assert release.arch == "datalens"
    first, _, third = map(flat, members)
    assert float((first - third).norm()) > 0.5 * float(first.norm()), "two fresh networks of one kind"


@pytest.mark.parametrize("given", [{"start": "average"}, {"rounds": "2"}])
def test_several_architectures_have_no_average(given: dict[str, str]) -> None:
    with pytest.raises(BenchError, match=r"client_nets shard-cnn.*--method\.start.*--method\.rounds"):
        smoke(Dense, client_nets="shard-cnn", **{"start": "fresh", **given})


def search(method: FedAdi, teacher: ClientEnsemble, student: Classifier) -> Tensor:
    return method._search(teacher, student, torch.arange(16) % CLASSES, SHAPE, rng(1), context(), nothing)


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
    method, teacher, student = server(FedAdi, BATCH_NORM, **given)
    seen: list[Tensor] = []
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", lambda loss: seen.append(loss.detach()))
        search(method, teacher, student)
    bound = 0.5 / method.pixel_std
    x = torch.randn(16, *SHAPE, generator=rng(1)).clamp(-bound, bound)
    images, y = (0.5 + method.pixel_std * x).clamp(0, 1), torch.arange(16) % CLASSES
    with torch.no_grad():
        t, s, gap = teacher(images), student.eval()(images), statistics_gap(teacher, images)
        expected = F.cross_entropy(t, y) + 0.3 * gap / 2 + 0.2 * total_variation(x) + 0.1 * x.norm()
        expected = expected + 0.7 * agreement(s, t)
    assert len(seen) == 1 and float(seen[0]) == pytest.approx(float(expected), rel=1e-4)


def test_x_of_lowest_loss_is_kept_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses are 3, 1, 2: the kept x is that of the second step, although x changes in place."""
    method, teacher, student = server(FedAdi, jitter=0)
    calls, losses = record_calls(monkeypatch, FedAdi, "_pixels"), iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(fedadi.F, "cross_entropy", lambda t, y: t.sum() * 1e-6 + 100 * next(losses))
    kept = search(method, teacher, student)
    shown = [call.result.detach() for call in calls]
    assert len(shown) == 4 and torch.equal(kept, (shown[1] * 255).round().to(torch.uint8))
    assert not torch.equal(shown[1], shown[2]), "x moves"


def test_search_finds_images_of_cyclic_classes() -> None:
    method, teacher, student = server(FedAdi, iterations=40, jitter=0, adi=0, tv=0)
    x, y = search(method, teacher, student) / 255, torch.arange(16) % CLASSES
    assert float(F.cross_entropy(teacher(x), y)) < 0.5 * math.log(CLASSES)


def test_classes_continue_in_the_next_search(monkeypatch: pytest.MonkeyPatch) -> None:
    method, teacher, student = server(FedAdi, searches=3, iterations=1, student_steps=0)
    calls = record_calls(monkeypatch, FedAdi, "_search")
    method.distil(teacher, student, SHAPE, context(), nothing)
    aimed = torch.cat([call.arguments[3] for call in calls])
    assert torch.equal(aimed, torch.arange(3 * method.synthesis) % CLASSES)


def test_student_uses_the_current_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    method, teacher, student = server(FedAdi, searches=3)
    calls = record_calls(monkeypatch, torch, "randint")
    method.distil(teacher, student, SHAPE, context(), done.append)
    sizes = [call.arguments[0] for call in calls]
    assert [size for size in sizes if size > 0] == [16, 16, 32, 32, 48, 48]
    assert sum(done) == method.server_steps() == 3 * (3 + 2)


def test_student_step_by_hand() -> None:
    """w - lr T^2 grad mean KL(softmax(t / T) || softmax(s / T))."""
    method, teacher, student = server(FedAdi, optimizer="sgd", lr=0.1, temperature=5)
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
    convert(FedAdi, start="average", rounds=2, local_lr=1e-9)
    assert all(torch.allclose(starts[0][name], updates[0][name], atol=1e-5) for name in starts[0])
    assert all(bool((value == 0.25).all()) for value in updates[2].values() if value.ndim > 1 and value.numel() > 1)
    starts.clear()
    convert(FedAdi, start="fresh", rounds=1, local_lr=1e-9)
    assert any(not torch.allclose(starts[0][name], updates[0][name], atol=1e-3) for name in starts[0])
