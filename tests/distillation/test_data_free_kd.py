"""Distillation without noise: the student's training, unchanged weights, options, and the replay buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench import nets
from bench.distillation.data_free_kd import DataFreeKD, DataFreeKDSettings, distil
from bench.distillation.generator_training import make_generator
from bench.distillation.training import ReplayBuffer, draw_balanced
from bench.errors import BenchError
from bench.nets import Classifier, SmallNet
from bench.nets.generators import UpsampleGenerator
from bench.nets.stroke_generator import StrokeGenerator
from bench.testing import CLASSES, SHAPE, context, toy_images

SMALL = DataFreeKDSettings(
    rounds=3, batch=16, oversample=2, replay_rounds=2, generator_steps=2, student_steps=2, student_batch=8, width=4,
    latent=8,
)  # fmt: skip


class Quarters(SmallNet):
    """A classifier whose class is the brightest quarter of the image: a teacher that needs no training."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.AvgPool2d(8), nn.Flatten())
        self.head = nn.Linear(4, CLASSES)
        nn.init.zeros_(self.head.bias)
        self.head.weight.data.copy_(10 * torch.eye(4))


class CountingClassifier(Classifier):
    def __init__(self, body: nn.Module) -> None:
        super().__init__(body)
        self.queries: list[tuple[int, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.queries.append((len(x), x.requires_grad))
        return super().forward(x)


def run(model: Classifier | None = None, dataset: str = "toy", seed: int = 0, **changed: Any) -> Any:
    torch.manual_seed(seed)
    model = model or Classifier(Quarters())
    return distil(model, dataset, SHAPE, CLASSES, "datalens", replace(SMALL, **changed), context(seed))


def test_distil_returns_student_generator_and_images() -> None:
    student, generator, synthetic = run()
    rebuilt = nets.build("datalens", SHAPE, CLASSES)
    rebuilt.load_state_dict(student.state_dict())
    images = torch.rand(3, *SHAPE)
    assert torch.equal(rebuilt.eval()(images), student(images)) and not student.training
    assert generator(torch.randn(2, 8)).shape == (2, *SHAPE)
    assert synthetic.shape == (16, *SHAPE) and 0 <= synthetic.min() < synthetic.max() <= 1
    assert not synthetic.requires_grad


def test_distil_leaves_the_teacher_unchanged() -> None:
    torch.manual_seed(0)
    model = nets.build("evaluator-cnn", SHAPE, CLASSES).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())


def test_student_depends_only_on_the_seed() -> None:
    def weights(seed: int) -> Tensor:
        return torch.cat([p.flatten() for p in run(seed=seed)[0].parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_only_the_generator_uses_the_teachers_gradients() -> None:
    model = CountingClassifier(Quarters())
    run(model, rounds=3, generator_steps=2, student_steps=5, batch=16, student_batch=8, activation=0.0)
    assert [n for n, gradient in model.queries if gradient] == [16] * 3 * 2
    assert [n for n, gradient in model.queries if not gradient].count(8) == 3 * 5


def test_train_student_descends_the_distillation_loss() -> None:
    torch.manual_seed(0)
    kd = DataFreeKD(Classifier(Quarters()), "toy", SHAPE, CLASSES, "relu-cnn", replace(SMALL, augment=False), context())
    kd.buffer = torch.rand(8, *SHAPE)
    before = {name: p.detach().clone() for name, p in kd.student.named_parameters()}
    state = kd.rng.get_state()
    chosen = torch.randint(8, (8,), generator=kd.rng)
    kd.rng.set_state(state)
    images = kd.buffer[chosen]
    p_t = kd.model(images).softmax(1).detach()
    loss = (p_t * (p_t.log() - kd.student(images).log_softmax(1))).sum(1).mean()
    gradient = torch.autograd.grad(loss, list(kd.student.parameters()))
    kd.train_student()
    for (name, after), g in zip(kd.student.named_parameters(), gradient, strict=True):
        clear = g.abs() > 1e-5
        assert torch.equal((after.detach() - before[name])[clear].sign(), -g[clear].sign()), name


@pytest.mark.thorough
def test_train_generator_makes_confident_balanced_images() -> None:
    torch.manual_seed(0)
    settings = replace(SMALL, batch=64, generator_steps=40, oversample=1, rate_generator=5e-3, width=8, activation=0.0)
    kd = DataFreeKD(Classifier(Quarters()), "toy", SHAPE, CLASSES, "datalens", settings, context())

    def confidence_and_balance() -> tuple[float, float]:
        p = kd.model(kd.balanced_images()).softmax(1)
        return float(p.amax(1).mean()), float(p.mean(0).min())

    before = confidence_and_balance()
    kd.train_generator()
    after = confidence_and_balance()
    assert after[0] > before[0] + 0.05
    assert after[1] > 0.5 / CLASSES


@pytest.mark.parametrize(("keep", "kept"), [(2, 32), (100, 80), (1, 16)])
def test_extend_buffer_keeps_the_newest_images(keep: int, kept: int) -> None:
    torch.manual_seed(0)
    settings = replace(SMALL, replay_rounds=keep)
    kd = DataFreeKD(Classifier(Quarters()), "toy", SHAPE, CLASSES, "datalens", settings, context())
    for _ in range(4):
        kd.extend_buffer()
    old = kd.buffer.clone()
    kd.extend_buffer()
    assert len(kd.buffer) == kept
    assert torch.equal(kd.buffer[:-16], old[16 if keep < 5 else 0 :])


@pytest.mark.parametrize(
    ("images", "dataset", "kind"),
    [
        ("auto", "digits", StrokeGenerator),
        ("auto", "mnist", StrokeGenerator),
        ("auto", "fmnist", UpsampleGenerator),
        ("strokes", "fmnist", StrokeGenerator),
        ("upsample", "digits", UpsampleGenerator),
    ],
)
def test_auto_generator_is_strokes_only_for_digits(images: Any, dataset: str, kind: type[nn.Module]) -> None:
    assert isinstance(make_generator(images, dataset, SHAPE, 8, 4), kind)


def test_make_generator_refuses_oblong_strokes() -> None:
    with pytest.raises(BenchError, match="16x20"):
        make_generator("strokes", "toy", (1, 16, 20), 8, 4)


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"batch": 0}, {"student_steps": 0}, {"rate_student": 0.0}, {"balance": -1.0}]
)
def test_impossible_settings_raise_value_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(SMALL, **wrong)


@pytest.mark.thorough
def test_student_learns_an_easy_teacher() -> None:
    model = Classifier(Quarters())
    sizes = {"rounds": 8, "batch": 128, "replay_rounds": 8, "student_steps": 25, "student_batch": 64, "width": 8}
    student, _, _ = run(model, **sizes, generator_steps=8)
    images, labels = toy_images(400, seed=1), torch.arange(400) % CLASSES
    with torch.no_grad():
        assert (model(images).argmax(1) == labels).all()
        assert float((student(images).argmax(1) == labels).float().mean()) > 0.85


def test_replay_buffer_draws_images_with_their_targets() -> None:
    buffer = ReplayBuffer()
    for first in (0, 10, 20):
        numbers = torch.arange(first, first + 10).float()
        buffer.add(numbers.view(-1, 1, 1, 1), numbers[:, None] + 0.5)
    rng = torch.Generator().manual_seed(0)
    drawn = [buffer.sample(5, rng) for _ in range(100)]
    images, targets = (torch.cat(each) for each in zip(*drawn, strict=True))
    assert set(images.flatten().tolist()) == set(range(30)) and buffer.batches == 3
    assert torch.equal(targets[:, 0], images.flatten() + 0.5)


class Brightness(nn.Module):
    """A classifier with class 1 for white images and class 0 for black ones, both with confidence."""

    def forward(self, x: Tensor) -> Tensor:
        white = 20 * x.flatten(1).mean(1) - 10
        return torch.stack([-white, white], 1)


def test_draw_balanced_draws_classes_equally_often() -> None:
    """900 black images and 100 white ones: each class has half of the weight, and so about half of 60 that are kept."""
    images = torch.zeros(1000, 1, 4, 4)
    images[::10] = 1
    kept = draw_balanced(images, Brightness(), 60, torch.Generator().manual_seed(0))
    white = int((kept[:, 0, 0, 0] == 1).sum())
    assert len(kept) == 60 and 18 <= white <= 40
