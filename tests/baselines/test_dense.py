"""DENSE: the ensemble, the three terms of the generator's loss, and the pool."""

from __future__ import annotations

import math
from typing import Any, cast

import baseline_runs
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import NO_NOISE, forbidden_teacher, record_calls
from torch import Tensor, nn

from baselines.dense import Dense, fresh_generator, generator_loss
from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.generator_training import BatchStatistics
from bench.errors import BenchError
from bench.nets import Classifier
from bench.teachers.federated import ClientEnsemble, Clients, batches, snapshot
from bench.testing import CLASSES, SHAPE, context, toy_private

BATCH_NORM = "evaluator-cnn"


def toy(private: tuple[Tensor, Tensor] | None = None) -> Teacher:
    return forbidden_teacher(private=private or toy_private())


def smoke(**given: str) -> Any:
    return configure(Dense, "smoke", given, "method")


def convert(private: tuple[Tensor, Tensor] | None = None, student: str = "shard-cnn", **given: str) -> Release:
    return baseline_runs.convert(Dense, NO_NOISE, toy(private), student, variant=None, **given)


def trained(arch: str = "shard-cnn", **given: str) -> tuple[Dense, Clients, ClientEnsemble]:
    torch.manual_seed(0)
    settings = smoke(local_limit="3", **given)
    clients = Clients(settings, toy(), arch, context())
    models = [clients.update(k, clients.initial(), lambda _: None) for k in range(settings.clients)]
    return settings, clients, ClientEnsemble(clients, models)


def test_ensemble_is_the_fixed_mean_of_logits() -> None:
    _, _, teacher = trained("datalens")
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


def inputs_of(layers: list[Any], model: nn.Module, x: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in layers]
    model(x)
    for hook in hooks:
        hook.remove()
    return seen


def test_statistics_loss_sums_over_all_batch_norms() -> None:
    _, _, teacher = trained(BATCH_NORM)
    x = torch.rand(6, *SHAPE)
    expected = 0.0
    for member in teacher.members:
        layers = [m for m in member.modules() if isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d)]
        for layer, value in zip(layers, inputs_of(layers, member, x), strict=True):
            axes = [axis for axis in range(value.ndim) if axis != 1]
            mean, variance = value.mean(axes), value.var(axes, correction=0)
            assert layer.running_mean is not None and layer.running_var is not None
            expected += float((mean - layer.running_mean).norm() + (variance - layer.running_var).norm())
    with BatchStatistics(teacher, required=False) as statistics:
        teacher(x)
        assert float(statistics.distance()) == pytest.approx(expected, rel=1e-4)
    with BatchStatistics(trained("shard-cnn")[2], required=False) as nothing:
        assert float(nothing.distance()) == 0
    with pytest.raises(BenchError):
        BatchStatistics(trained("shard-cnn")[2])


@pytest.mark.parametrize("arch", ["shard-cnn", BATCH_NORM])
def test_hooks_are_removed_and_student_is_unchanged(arch: str) -> None:
    method, clients, teacher = trained(arch)
    student = clients.fresh()
    before = snapshot(student)
    for _ in range(2):
        made = method._synthesise(
            teacher, student, SHAPE, torch.Generator().manual_seed(1), torch.Generator().manual_seed(1), context()
        )
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in (*teacher.modules(), *student.modules()))
    assert made.shape == (method.synthesis, *SHAPE) and made.dtype == torch.uint8
    assert all(torch.equal(a, b) for a, b in zip(before.values(), snapshot(student).values(), strict=True))
    assert all(p.grad is None for p in teacher.parameters()) and all(p.requires_grad for p in student.parameters())


def test_batch_of_lowest_loss_is_kept_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses 3, 1, 2: the second batch is kept, though G and z move on."""
    method, clients, teacher = trained(generator_steps="3")
    shown: list[Tensor] = []
    losses = iter([3.0, 1.0, 2.0])

    def chosen(t: Tensor, *_: Any) -> Tensor:
        return t.sum() * 1e-6 + next(losses)

    monkeypatch.setattr("baselines.dense.generator_loss", chosen)
    monkeypatch.setattr(
        "baselines.dense.augmented", lambda x, *_: (shown.append((x * 255).round().to(torch.uint8)), x)[1]
    )
    rng = torch.Generator().manual_seed(1)
    kept = method._synthesise(teacher, clients.fresh(), SHAPE, rng, rng, context())
    assert torch.equal(kept, shown[1]) and not torch.equal(kept, shown[2])


@pytest.mark.thorough
def test_generated_images_depend_on_labels() -> None:
    """With nothing but the cross-entropy the ensemble agrees with the labels more often than at first."""
    method, clients, teacher = trained(generator_steps="60", synthesis="32", width="16", generator_lr="0.02", bn="0")
    rng = torch.Generator().manual_seed(1)
    made = method._synthesise(teacher, clients.fresh(), SHAPE, rng, rng, context())
    rng = torch.Generator().manual_seed(1)
    torch.randn(32, 8, generator=rng)
    y = torch.randint(CLASSES, (32,), generator=rng).sort().values
    assert float(F.cross_entropy(teacher(made / 255), y)) < math.log(CLASSES)


def test_student_passes_over_the_growing_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    passing = Dense._pass
    monkeypatch.setattr(Dense, "_pass", lambda self, *given: (sizes.append(len(given[3])), passing(self, *given))[1])
    done: list[int] = []
    method, clients, teacher = trained(epochs="3", passes="2")
    method.distil(teacher, clients.fresh(), SHAPE, context(), done.append)
    assert sizes == [16, 16, 32, 32, 48, 48]
    assert sum(done) == method.server_steps() == 2 * (2 + 4 + 6) and batches(48, 8) == 6


def test_first_student_step_by_hand() -> None:
    """One batch of the whole pool, not moved: w - lr T^2 grad mean KL(softmax(t / T) || softmax(s / T))."""
    method, clients, teacher = trained(batch="16", shift="0", flip="false", lr="0.1", temperature="4", optimizer="sgd")
    student, pool = clients.fresh(), torch.randint(0, 256, (16, *SHAPE), dtype=torch.uint8)
    x, before = pool / 255, snapshot(student)
    p, log_q = (teacher(x) / 4).softmax(1), (student(x) / 4).log_softmax(1)
    loss = 16 * (p * (p.log() - log_q)).sum(1).mean()
    gradient = torch.autograd.grad(loss, list(student.parameters()))
    rng = torch.Generator().manual_seed(0)
    method._pass(teacher, student, method.student_optimizer(student), pool, rng, rng, context(), lambda _: None)
    for (name, after), g in zip(student.named_parameters(), gradient, strict=True):
        torch.testing.assert_close(after.detach(), before[name] - 0.1 * g, rtol=1e-4, atol=1e-5)


def test_new_generator_has_the_papers_weights() -> None:
    made = fresh_generator(SHAPE, 256, 64, 0.02)
    (weights,) = (layer.weight for layer in made.modules() if isinstance(layer, nn.Linear))
    assert float(weights.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert made.latent == 256 and [m.out_channels for m in made.modules() if isinstance(m, nn.Conv2d)] == [128, 64, 1]


@pytest.mark.parametrize("given", [{"start": "average"}, {"rounds": "2"}, {"optimizer": "adam"}, {"div": "0"}], ids=str)
def test_every_option_runs(given: dict[str, str]) -> None:
    release = convert(**given)
    assert release.synthetic is not None and float(release.synthetic.max()) <= 1
    assert all(p.isfinite().all() for p in release.student.parameters())


def test_clients_may_have_different_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn, each from its own start; the student keeps the architecture of the release."""
    calls = record_calls(monkeypatch, Dense, "distil")
    given = {"clients": "3", "client_nets": "shard-cnn, dense-cnn", "partition": "hash", "start": "fresh"}
    torch.manual_seed(0)
    release = convert(student="datalens", **given)
    kinds = [type(cast(Classifier, member).body).__name__ for member in calls[0].arguments[1].members]
    assert kinds == ["ShardNet", "DenseNet", "ShardNet"] and release.arch == "datalens"
    first, _, third = (
        torch.cat([w.flatten() for w in member.parameters()]) for member in calls[0].arguments[1].members
    )
    assert float((first - third).norm()) > 0.5 * float(first.norm()), "two fresh networks of one kind"


@pytest.mark.parametrize("given", [{"start": "average"}, {"rounds": "2"}])
def test_several_architectures_have_no_average(given: dict[str, str]) -> None:
    with pytest.raises(BenchError, match=r"client_nets shard-cnn.*--method\.start.*--method\.rounds"):
        smoke(client_nets="shard-cnn", **{"start": "fresh", **given})
