"""Distillation without noise: the student's training, unchanged weights, and the effect of options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench import nets
from bench.distillation.data_free_kd import DataFreeKD, DataFreeKDSettings, distil
from bench.distillation.generator_training import make_generator
from bench.errors import BenchError
from bench.nets import Classifier, SmallNet
from bench.nets.generators import UpsampleGenerator
from bench.nets.stroke_generator import StrokeGenerator
from bench.testing import context

SHAPE, CLASSES = (1, 16, 16), 4
SMALL = DataFreeKDSettings(
    rounds=3,
    batch=16,
    oversample=2,
    replay_rounds=2,
    generator_steps=2,
    student_steps=2,
    student_batch=8,
    width=4,
    latent=8,
)


class Quarters(SmallNet):
    """Sees which quarter of the image is brightest: a teacher that needs no training."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.AvgPool2d(8), nn.Flatten())
        self.head = nn.Linear(4, CLASSES)
        nn.init.zeros_(self.head.bias)
        self.head.weight.data.copy_(10 * torch.eye(4))


class Watched(Classifier):
    """Counts its queries, with and without gradients."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__(body)
        self.asked: list[tuple[int, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append((len(x), x.requires_grad))
        return super().forward(x)


def run(model: Classifier | None = None, dataset: str = "toy", seed: int = 0, **changed: Any) -> Any:
    torch.manual_seed(seed)
    model = model or Classifier(Quarters())
    return distil(model, dataset, SHAPE, CLASSES, "datalens", replace(SMALL, **changed), context(seed))


def test_gives_a_student_that_can_be_rebuilt_a_generator_and_its_images() -> None:
    student, generator, synthetic = run()
    rebuilt = nets.build("datalens", SHAPE, CLASSES)
    rebuilt.load_state_dict(student.state_dict())
    images = torch.rand(3, *SHAPE)
    assert torch.equal(rebuilt.eval()(images), student(images)) and not student.training
    assert generator(torch.randn(2, 8)).shape == (2, *SHAPE)
    assert synthetic.shape == (16, *SHAPE) and 0 <= synthetic.min() < synthetic.max() <= 1
    assert not synthetic.requires_grad


def test_the_teacher_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = nets.build("evaluator-cnn", SHAPE, CLASSES).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())


def test_the_same_seed_gives_the_same_student_and_another_another() -> None:
    def weights(seed: int) -> Tensor:
        return torch.cat([p.flatten() for p in run(seed=seed)[0].parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_the_teacher_is_asked_with_gradients_by_the_generator_alone() -> None:
    model = Watched(Quarters())
    run(model, rounds=3, generator_steps=2, student_steps=5, batch=16, student_batch=8, activation=0.0)
    assert [n for n, gradient in model.asked if gradient] == [16] * 3 * 2
    assert [n for n, gradient in model.asked if not gradient].count(8) == 3 * 5


def test_a_student_step_descends_the_distillation_loss_of_the_images_it_sees() -> None:
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
def test_training_makes_the_generators_images_surer_and_balanced() -> None:
    torch.manual_seed(0)
    settings = replace(SMALL, batch=64, generator_steps=40, oversample=1, rate_generator=5e-3, width=8, activation=0.0)
    kd = DataFreeKD(Classifier(Quarters()), "toy", SHAPE, CLASSES, "datalens", settings, context())

    def sureness_and_balance() -> tuple[float, float]:
        p = kd.model(kd.balanced_images()).softmax(1)
        return float(p.amax(1).mean()), float(p.mean(0).min())

    before = sureness_and_balance()
    kd.train_generator()
    after = sureness_and_balance()
    assert after[0] > before[0] + 0.05
    assert after[1] > 0.5 / CLASSES


@pytest.mark.parametrize(("keep", "kept"), [(2, 32), (100, 80), (1, 16)])
def test_the_newest_images_are_kept(keep: int, kept: int) -> None:
    torch.manual_seed(0)
    kd = DataFreeKD(
        Classifier(Quarters()), "toy", SHAPE, CLASSES, "datalens", replace(SMALL, replay_rounds=keep), context()
    )
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
def test_strokes_on_digits_alone_unless_asked_for(images: Any, dataset: str, kind: type[nn.Module]) -> None:
    assert isinstance(make_generator(images, dataset, SHAPE, 8, 4), kind)


def test_a_generator_that_cannot_make_these_images_is_refused() -> None:
    with pytest.raises(BenchError, match="square"):
        make_generator("strokes", "toy", (1, 16, 20), 8, 4)


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"batch": 0}, {"student_steps": 0}, {"rate_student": 0.0}, {"balance": -1.0}]
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        replace(SMALL, **wrong)


@pytest.mark.thorough
def test_a_student_learns_an_easy_teacher_it_never_saw_images_of() -> None:
    model = Classifier(Quarters())
    student, _, _ = run(
        model,
        rounds=8,
        batch=128,
        oversample=2,
        replay_rounds=8,
        generator_steps=8,
        student_steps=25,
        student_batch=64,
        width=8,
    )
    rng = torch.Generator().manual_seed(1)
    images = 0.25 * torch.rand(400, *SHAPE, generator=rng)
    labels = torch.arange(400) % CLASSES
    for image, label in zip(images, labels.tolist(), strict=True):
        y, x = divmod(label, 2)
        image[:, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8] += 0.6
    with torch.no_grad():
        assert (model(images).argmax(1) == labels).all()
        assert float((student(images).argmax(1) == labels).float().mean()) > 0.85
