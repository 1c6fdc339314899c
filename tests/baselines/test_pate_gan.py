"""PATE-GAN: which records teachers see, inputs of a query, cost of queries, losses by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import check_adam_step, epsilon_of, record_calls, refused, rng, smoke, synthesise
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from teacher_gans_made import pate_gan_training
from torch import Tensor

from baselines.pate_gan import pate_gan
from baselines.pate_gan.networks import LabelledPerceptron, Perceptrons
from baselines.pate_gan.pate_gan import PateGan
from bench.distillation.votes.noisy_votes import Aggregation
from bench.gan.training import TeacherBatches
from bench.privacy import Budget, Unit
from bench.privacy.accountant import check_budget
from bench.testing import CLASSES, SHAPE, toy_private

INPUTS = math.prod(SHAPE) + CLASSES
LAWS = pytest.mark.parametrize("votes", ["laplace", "gaussian"])


def played(parts: list[np.ndarray] | None = None, **given: Any) -> pate_gan.Training:
    """The state of a training on toy records, by default with one teacher of all."""
    return pate_gan_training(smoke(PateGan, **given), parts or [np.arange(80)], *toy_private())


def copy_of(panel: Perceptrons, count: int, width: int) -> Perceptrons:
    made = Perceptrons(count, math.prod(SHAPE), CLASSES, width)
    made.load_state_dict(panel.state_dict())
    return made


@pytest.fixture
def five() -> tuple[Perceptrons, Tensor]:
    """Five teachers of 4 pixels and 2 classes, and 200 rows of normal pixels and one-hot labels."""
    torch.manual_seed(0)
    labels = F.one_hot(torch.arange(200) % 2, 2).float()
    return Perceptrons(5, 4, 2, 3), torch.cat([torch.randn(200, 4), labels], 1)


def test_batches_are_uniform_within_their_part() -> None:
    parts = [np.array([3, 5, 70]), np.array([1]), np.arange(20, 60)]
    drawn = TeacherBatches(*toy_private(), CLASSES, parts).draw(6000, rng())
    for row, part in zip(drawn, parts, strict=True):
        found, counts = row.unique(return_counts=True)
        assert found.tolist() == part.tolist()
        assert (counts - 6000 / len(part)).abs().max() < 6 * math.sqrt(6000 / len(part))


def test_teacher_batch_has_its_records_and_labels() -> None:
    images, labels = toy_private()
    batch = TeacherBatches(images, labels, CLASSES, [np.array([7]), np.array([9])])(3, torch.Generator())
    assert batch.shape == (2, 3, INPUTS)
    for row, record in zip(batch, (7, 9), strict=True):
        assert torch.allclose(row[:, :-CLASSES] * 255, images[record].flatten().float().expand(3, -1))
        assert torch.equal(row[:, -CLASSES:].argmax(1), labels[record].expand(3))


def test_teachers_are_independent_and_votes_counted(five: tuple[Perceptrons, Tensor]) -> None:
    teachers, x = five[0], five[1][:7]
    logits = teachers(x)
    for i in range(5):
        hidden = (x[:, :4] @ teachers.first[i] + teachers.bias[i]).relu()
        outputs = hidden @ teachers.last[i] + teachers.offset[i]
        assert torch.allclose(logits[i], outputs[torch.arange(7), torch.arange(7) % 2], atol=1e-6)
    assert torch.allclose(teachers(x.expand(5, 7, 6)), logits, atol=1e-6)
    votes = teachers.votes(x)
    assert votes[:, 1].tolist() == (logits.sigmoid() > 0.5).sum(0).tolist() and (votes.sum(1) == 5).all()


def test_image_gradient_depends_on_the_label() -> None:
    """Also with thousands of pixels, where one more input for the label has almost no weight."""
    torch.manual_seed(0)
    pixels, student = torch.rand(8, 12_288, requires_grad=True), Perceptrons(1, 12_288, 2, 16)
    of_label = []
    for label in range(2):
        y = F.one_hot(torch.full((8,), label), 2).float()
        of_label += torch.autograd.grad(student(torch.cat([pixels, y], 1)).sum(), pixels)
    assert F.cosine_similarity(*of_label).abs().max() < 0.9


def test_one_teacher_moves_two_counts_by_one(five: tuple[Perceptrons, Tensor]) -> None:
    teachers, x = five
    before = teachers.votes(x)
    with torch.no_grad():
        teachers.last[2] *= -1
        teachers.offset[2] *= -1
    moved = teachers.votes(x) - before
    assert moved.abs().sum(1).max() == 2 and (moved.sum(1) == 0).all()


@LAWS
def test_ledger_has_every_query(votes: Any) -> None:
    """Rounds x n_S x m queries, one vote of each moves: 2 over b in L1, sqrt(2) over sigma in L2."""
    made = synthesise(smoke(PateGan, votes=votes, steps=4, student_steps=2, scale=9))
    (entry,) = made.ledger.entries(Unit.EXAMPLE)
    assert entry.count == 4 * 2 * 8 == made.solved["queries"] and made.solved["rounds"] == 4
    assert entry.event == (LaplaceDpEvent(4.5) if votes == "laplace" else GaussianDpEvent(9 / math.sqrt(2)))


@LAWS
def test_vote_noise_is_that_of_the_ledger(votes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, Aggregation, "counts")
    made = synthesise(smoke(PateGan, votes=votes), Budget(2.0))
    (entry,) = made.ledger.entries(Unit.EXAMPLE)
    assert sum(len(call.arguments[1]) for call in calls) == entry.count
    assert {(call.arguments[0].scale, call.arguments[0].law) for call in calls} == {(made.solved["scale"], votes)}
    reach = 2 if votes == "laplace" else math.sqrt(2)
    assert entry.event.noise_multiplier == pytest.approx(made.solved["scale"] / reach)


def test_student_targets_by_hand() -> None:
    counts = torch.tensor([[1.0, 2.0], [2.5, 0.5], [-1.0, 8.0]])
    parts = [np.arange(40), np.arange(40, 80), np.arange(0)]
    assert played(parts).targets(counts).tolist() == [1, 0, 1]
    share = played(parts, target_estimator="share").targets(counts)
    assert share.tolist() == pytest.approx([0.5 + 1 / 6, 0.5 - 2 / 6, 0.5 + 9 / 6])


def test_noiseless_targets_are_the_majority() -> None:
    """One update by hand: binary cross-entropy to the majority, by Adam's first step of the full rate."""
    state = played([np.arange(40), np.arange(40, 60), np.arange(60, 80)])
    u = torch.rand(8, INPUTS, generator=rng(1))
    majority = (state.teachers.votes(u)[:, 1] >= 2).float()
    other = copy_of(state.student, 1, 16)
    logits = other(u)[0]
    loss = -(majority * F.logsigmoid(logits) + (1 - majority) * F.logsigmoid(-logits)).mean()
    state.study(u)
    slopes = torch.autograd.grad(loss, list(other.parameters()))
    check_adam_step(other.parameters(), state.student, slopes, state.by.rate)
    assert state.queries == 8


def test_teacher_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """-log T(x) - log(1 - T(u)) of each teacher's own x and the u of all, by Adam's first step of the full rate."""
    state = played([np.arange(40), np.arange(40, 80)])
    x, u = torch.rand(2, 8, INPUTS, generator=rng(1)), torch.rand(8, INPUTS, generator=rng(2))
    monkeypatch.setattr(TeacherBatches, "__call__", lambda batches, count, source: x)
    monkeypatch.setattr(state, "_generated", lambda: u)
    other = copy_of(state.teachers, 2, state.by.teacher_width)
    loss = -(other(x).sigmoid().log() + (1 - other(u).sigmoid()).log()).mean(1).sum()
    state.teach()
    assert state.queries == 0, "teacher updates make no queries"
    slopes = torch.autograd.grad(loss, list(other.parameters()))
    check_adam_step(other.parameters(), state.teachers, slopes, state.by.teacher_rate)


def test_round_has_the_number_of_updates_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update of the student queries new images."""
    state, queried = played(teacher_steps=3, student_steps=2), list[Tensor]()
    done: list[str] = []
    monkeypatch.setattr(state, "teach", lambda: done.append("teacher"))
    monkeypatch.setattr(state, "study", lambda u: (done.append("student"), queried.append(u)))
    monkeypatch.setattr(state.of_generator, "step", lambda: done.append("generator"))
    state.round()
    assert done == ["teacher"] * 3 + ["student"] * 2 + ["generator"]
    assert not torch.equal(*queried)


def test_generated_images_have_the_returned_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, LabelledPerceptron, "forward")
    made = played(batch=12)._generated()
    _, _, y = calls[0].arguments
    assert len(y.unique()) == CLASSES and torch.equal(made[:, -CLASSES:].argmax(1), y)


def test_teachers_have_a_separate_rate() -> None:
    state = played(teacher_rate=0.003, rate=0.02)
    for optimiser, network, rate in (
        (state.of_teachers, state.teachers, 0.003),
        (state.of_student, state.student, 0.02),
        (state.of_generator, state.generator, 0.02),
    ):
        (group,) = optimiser.param_groups
        assert group["lr"] == rate and all(a is b for a, b in zip(group["params"], network.parameters(), strict=True))


def test_exploration_moves_only_pixels() -> None:
    state = played(explore=0.5, batch=2000)
    u = torch.cat([torch.full((2000, INPUTS - CLASSES), 0.5), torch.eye(CLASSES).repeat(500, 1)], 1)
    moved = state._explored(u)
    pixels = moved[:, :-CLASSES]
    assert torch.equal(moved[:, -CLASSES:], u[:, -CLASSES:]) and 0 <= pixels.min() < pixels.max() <= 1
    spread = (pixels[:, :200] - 0.5).std(1)
    assert spread.min() < 0.01 and 0.3 < spread.max() < 0.45 and state.queries == 0


@pytest.mark.parametrize("loss", ["saturating", "non-saturating"])
def test_generator_raises_the_score_of_the_student(loss: str) -> None:
    """A fixed student that calls bright images real: the generator's images become brighter."""
    state = played(loss=loss, rate=0.01)
    with torch.no_grad():
        for p in state.student.parameters():
            p.zero_()
        state.student.first[:, :-CLASSES] = 0.05
        state.student.last[:] = 0.1
    state.of_student = torch.optim.SGD(state.student.parameters(), lr=1e-30)  # type: ignore[assignment]
    before = state._generated()[:, :-CLASSES].mean()
    for _ in range(15):
        state.round()
    assert state._generated()[:, :-CLASSES].mean() > before + 0.1


@pytest.mark.parametrize(("queries", "scale"), [(100, 98), (1000, 310)])
def test_laplace_scale_at_epsilon_1(queries: int, scale: float) -> None:
    """The moments accountant's, of PATE's card."""
    plan = PateGan(steps=1, batch=queries).calibrate(Budget(1.0))
    assert plan.aggregation.scale == pytest.approx(scale, rel=0.01)


def test_exact_sigma_of_gaussian_votes() -> None:
    """500 queries at epsilon 10: sqrt(2 500) / mu, mu^2 = 4.002."""
    plan = PateGan(steps=1, batch=500, votes="gaussian").calibrate(Budget(10.0, account="accounted"))
    assert plan.aggregation.scale == pytest.approx(math.sqrt(1000 / 4.002), rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("against", ["claimed", "accounted"])
@pytest.mark.parametrize("solved", ["sigma", "steps"])
@LAWS
def test_budget_is_met_and_nearly_spent(votes: Any, against: Any, solved: Any) -> None:
    budget = Budget(3.0, account=against, solve=solved)
    method = smoke(PateGan, votes=votes, scale=20.0, batch=1)
    plan, delta = method.calibrate(budget), budget.delta
    claimed, proved = method.formula(plan, delta), epsilon_of(plan.ledger())
    assert proved <= claimed * (1 + 1e-9)
    check_budget(plan.ledger(), None, replace(budget, account="accounted"))
    assert 0.95 * 3.0 < (claimed if against == "claimed" else proved) <= 3.0


def test_solved_steps_are_whole_rounds() -> None:
    method = smoke(PateGan, scale=40, student_steps=3)
    plan = method.calibrate(Budget(3.0, solve="steps"))
    assert plan.queries % 24 == 0 and plan.candidates == plan.queries > 0
    with refused(r" 24 .*--method.scale"):
        replace(method, scale=10.0).calibrate(Budget(1.0, solve="steps"))
