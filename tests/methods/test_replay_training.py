"""What the working variants share: rates, images, updates, replay."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.distillation.generator_training import make_generator
from bench.distillation.losses import activation_loss, balance_loss, confidence_loss
from bench.distillation.replay import balanced
from bench.distillation.replay_training import ReplayTraining, TrainState
from bench.nets.generators import UpsampleGenerator
from bench.nets.stroke_generator import StrokeGenerator
from bench.testing import CLASSES, SHAPE, context, toy_teacher

SMALL = ReplayTraining(
    batch=8, batches_before_update=1, student_steps=3, generator_steps=2, gamma_s=1e-2, generator="upsample",
    augment=False, replay_batch=5, latent=6, width=4,
)  # fmt: skip


def started(settings: ReplayTraining, rounds: int = 1, student: str = "datalens") -> TrainState:
    torch.manual_seed(0)
    return settings.start(toy_teacher(), student, rounds, context())


def answered(settings: ReplayTraining, state: TrainState) -> tuple[Tensor, Tensor]:
    images = settings.fresh_images(state)
    rng = torch.Generator().manual_seed(state.answers.batches)
    targets = torch.rand(len(images), CLASSES, generator=rng).softmax(1)
    state.answers.add(images, targets)
    return images, targets


def ignore(_: int) -> None:
    """No progress bar."""


def flat(module: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten().float() for value in module.state_dict().values()])


def test_the_students_rate_falls_along_a_cosine_to_0() -> None:
    settings = replace(SMALL, student_steps=5)
    state, rates = started(settings, rounds=2), []
    answered(settings, state)
    for _ in range(2):
        settings.update_student(state, lambda _: rates.append(state.schedule.get_last_lr()[0]))
    by_hand = [1e-2 * (1 + math.cos(math.pi * step / 10)) / 2 for step in range(1, 11)]
    assert rates == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("oversample", [1, 3])
@pytest.mark.parametrize("kind", ["upsample", "strokes"])
def test_fresh_images_are_a_batch_of_new_ones(oversample: int, kind: Any) -> None:
    settings = replace(SMALL, oversample=oversample, generator=kind)
    state = started(settings)
    one, two = settings.fresh_images(state), settings.fresh_images(state)
    assert one.shape == two.shape == (8, *SHAPE) and not one.requires_grad and one.dtype == torch.float32
    assert 0 <= one.min() < one.max() <= 1 and not torch.equal(one, two)
    assert not state.student.training


@pytest.mark.parametrize(
    ("images", "dataset", "kind"),
    [
        ("upsample", "digits", UpsampleGenerator),
        ("auto", "digits", StrokeGenerator),
        ("auto", "mnist", StrokeGenerator),
        ("auto", "fmnist", UpsampleGenerator),
        ("strokes", "fmnist", StrokeGenerator),
    ],
)
def test_strokes_on_glyphs_alone_unless_asked_for(images: str, dataset: str, kind: type[nn.Module]) -> None:
    made = make_generator(images, dataset, SHAPE, 6, 4)
    assert isinstance(made, kind)
    if isinstance(made, StrokeGenerator):
        z = torch.randn(3, made.latent)
        assert torch.equal(made.move(z), torch.zeros_like(z)), "an untrained pen draws random walks"


def test_networks_start_as_xavier_says() -> None:
    state = started(replace(SMALL, latent=100, width=32))
    for network in (state.student, state.generator):
        for layer in network.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(layer.weight)
                bound = math.sqrt(6 / (fan_in + fan_out))
                assert float(layer.weight.detach().abs().max()) <= bound
                if layer.weight.numel() > 1000:
                    assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
                assert layer.bias is None or not layer.bias.any()


@pytest.mark.parametrize(("batches", "before_update", "rounds"), [(5, 1, 5), (7, 2, 4), (8, 2, 4), (1, 8, 1)])
def test_how_often_they_learn_and_who_is_asked_when(batches: int, before_update: int, rounds: int) -> None:
    """Every batch is asked about once; the student learns after every so many, and after the last one."""
    settings, asked, known = replace(SMALL, batches_before_update=before_update), [], []

    def annotate(images: Tensor, student: nn.Module, number: int) -> Tensor:
        assert not student.training and len(images) == 8
        asked.append(number)
        known.append(flat(student).clone())
        return torch.full((len(images), CLASSES), 1 / CLASSES)

    torch.manual_seed(0)
    state = settings.train(toy_teacher(), "datalens", annotate, batches, context(), "toy")
    assert asked == list(range(1, batches + 1)) and state.answers.batches == batches
    assert state.schedule.last_epoch == 3 * rounds and state.schedule.get_last_lr()[0] == pytest.approx(0, abs=1e-9)
    for number, (before, after) in enumerate(itertools.pairwise(known), 1):
        assert torch.equal(before, after) == (number % before_update != 0)


def test_one_student_step_descends_the_cross_entropy_to_the_answers() -> None:
    """Adam's first step is one of gamma_s against the sign of d/d theta_s of -mean sum_j y_j log p_j."""
    settings = replace(SMALL, student_steps=1)
    state = started(settings, student="shard-cnn", rounds=100)
    answered(settings, state)
    student, drawn = copy.deepcopy(state.student), state.rng.get_state()
    images, targets = state.answers.sample(5, state.rng)
    state.rng.set_state(drawn)
    loss = -(targets * student(images).log_softmax(1)).sum(1).mean()
    gradient = torch.autograd.grad(loss, list(student.parameters()))
    settings.update_student(state, ignore)
    for before, after, g in zip(student.parameters(), state.student.parameters(), gradient, strict=True):
        large = g.abs() > 1e-4
        assert torch.allclose((after - before)[large], -1e-2 * g.sign()[large], atol=1e-5)


@pytest.mark.parametrize("augment", [True, False])
def test_replayed_images_keep_their_answers(augment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SMALL, student_steps=4, augment=augment)
    state = started(settings)
    batches = [answered(settings, state) for _ in range(3)]
    stored = {tuple(t.tolist()): i for images, targets in batches for i, t in zip(images, targets, strict=True)}
    seen: list[Tensor] = []
    drawn: list[tuple[Tensor, Tensor]] = []
    sample = state.answers.sample

    def watched(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn.append(sample(count, rng))
        return drawn[-1]

    monkeypatch.setattr(state.answers, "sample", watched)
    call = state.call
    state.call = lambda x: (seen.append(x), call(x))[1]
    advanced: list[int] = []
    settings.update_student(state, advanced.append)
    assert advanced == [1] * 4 and len(seen) == 4 == len(drawn)
    for x, (images, targets) in zip(seen, drawn, strict=True):
        assert len(images) == 5
        assert torch.equal(x, images) == (not augment)
        assert all(torch.equal(stored[tuple(t.tolist())], i) for i, t in zip(images, targets, strict=True))


def test_dropout_is_on_as_targets_are_not_the_students_own_outputs() -> None:
    state = started(SMALL)
    answered(SMALL, state)
    seen: list[bool] = []
    layers = [layer for layer in state.student.modules() if isinstance(layer, nn.Dropout)]
    layers[0].register_forward_hook(lambda layer, _inputs, _output: seen.append(layer.training))
    SMALL.update_student(state, ignore)
    assert seen == [True] * 3


@pytest.mark.parametrize("student", ["datalens", "evaluator-cnn"])
def test_the_generators_update_leaves_the_student_untouched(student: str) -> None:
    settings = replace(SMALL, generator_steps=3)
    state = started(settings, student=student)
    answered(settings, state)
    settings.update_student(state, ignore)
    before, made = flat(state.student).clone(), flat(state.generator).clone()
    gradients = [None if p.grad is None else p.grad.clone() for p in state.student.parameters()]
    settings.update_generator(state)
    assert torch.equal(flat(state.student), before), "weights and running statistics"
    assert all(p.requires_grad for p in state.student.parameters())
    for p, g in zip(state.student.parameters(), gradients, strict=True):
        assert (p.grad is None and g is None) or torch.equal(p.grad, g)
    assert not torch.equal(flat(state.generator), made)
    settings.update_student(state, ignore)
    assert not torch.equal(flat(state.student), before), "the student still learns"


@pytest.mark.parametrize("weights", [(1.0, 5.0, 0.02), (0.0, 2.0, 0.0), (3.0, 0.0, 1.0)])
def test_the_generators_loss_is_the_weighted_terms_that_the_text_argues_for(weights: tuple[float, ...]) -> None:
    ce, ie, norm = weights
    settings = replace(SMALL, ce_weight=ce, ie_weight=ie, norm_weight=norm)
    state, images = started(settings), torch.rand(8, *SHAPE)
    student = state.student.eval()
    logits, features = student(images), student.features(images)  # type: ignore[operator]
    by_hand = ce * confidence_loss(logits) + ie * balance_loss(logits, False) + norm * activation_loss(features, True)
    assert torch.allclose(settings.generator_loss(student, images), by_hand)


def test_balanced_choice_evens_out_the_students_classes() -> None:
    images = torch.zeros(1000, *SHAPE)
    images[:900] += 1

    class Brightness(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x[:, :1, 0, 0] > 0, torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]]))

    assert Brightness()(images).argmax(1).float().mean() == pytest.approx(0.1)
    chosen = balanced(images, Brightness(), 200, torch.Generator().manual_seed(0))
    assert 0.25 < float((chosen[:, 0, 0, 0] == 0).float().mean()) < 0.65
