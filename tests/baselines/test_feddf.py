"""FedDF: the ensemble's output, the distillation and its images."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from baseline_runs import record_calls
from federated_made import assert_close, convert, federation, fresh, images, nothing, toy
from torch import Tensor, nn

from baselines import feddf
from baselines.dense import Dense
from baselines.fedadi import FedAdi
from baselines.fedavg import FedAvg
from baselines.feddafl import FedDafl
from baselines.feddf import FedDf
from bench.teachers.federated import ClientEnsemble, Clients, State
from bench.testing import SHAPE, context


def test_feddf_without_distillation_is_fedavg() -> None:
    assert_close(convert(FedDf, steps="0").student.state_dict(), convert(FedAvg).student.state_dict(), atol=0.0)
    moved = convert(FedDf).student
    assert any(
        not torch.equal(a, b) for a, b in zip(moved.parameters(), convert(FedAvg).student.parameters(), strict=True)
    )


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
    given: list[State] = []
    left: list[State] = []
    update, distil = Clients.update, FedDf._distil

    def update_(self: Clients, k: int, w: State, advance: Any) -> State:
        given.append({name: value.clone() for name, value in w.items()})
        return update(self, k, w, advance)

    def distil_(self: FedDf, *rest: Any) -> State:
        left.append(distil(self, *rest))
        return left[-1]

    monkeypatch.setattr(Clients, "update", update_)
    monkeypatch.setattr(FedDf, "_distil", distil_)
    release = convert(FedDf, rounds="3", clients="2")
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
    usual, same, other = (
        list(convert(cls, **given).student.parameters())
        for given in ({}, {"mean": "probabilities"}, {"mean": "logits"})
    )
    assert all(torch.equal(a, b) for a, b in zip(usual, same, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(usual, other, strict=True))
