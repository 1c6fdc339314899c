"""A student of soft responses: the temperature, the loss, and that it learns as well as a free classifier."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.api import Teacher
from bench.distillation.image_source import Source
from bench.distillation.transcription.learner import RARE, Learner, Schedule, evenly
from bench.distillation.transcription.likelihoods import soft_loss
from bench.distillation.transcription.loop import Ask, Transcription
from bench.distillation.transcription.questions import Answered
from bench.distillation.transcription.soft import SHOWN, SoftTranscription, temperature
from bench.testing import CLASSES, SHAPE, context, toy_images, toy_teacher


class Quarters(nn.Module):
    """Knows the class of an image by the quarter that is brightest; its logits are small."""

    def forward(self, x: Tensor) -> Tensor:
        return 1e-3 * nn.functional.avg_pool2d(x, 8).flatten(1)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("entropy", [0.3, 0.6])
def test_the_temperature_gives_answers_of_the_entropy_asked_for(size: float, entropy: float) -> None:
    logits = size * torch.randn(500, 10, generator=torch.Generator().manual_seed(0))
    answers = (logits.double() / temperature(logits, entropy)).softmax(1)
    found = float(-(answers * answers.clamp_min(1e-300).log()).sum(1).mean())
    assert found == pytest.approx(entropy, abs=1e-4)


def test_logits_without_a_difference_have_some_temperature() -> None:
    assert math.isfinite(temperature(torch.zeros(5, 4), 0.6))


def test_the_loss_is_least_at_the_answers() -> None:
    answers = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    logits = answers.clone().requires_grad_()
    soft_loss(logits, answers).backward()
    assert logits.grad is not None and float(logits.grad.abs().max()) < 1e-6
    assert float(soft_loss(answers, answers)) == pytest.approx(float(-(answers.exp() * answers).sum(1).mean()))


class Corners:
    """A source of the toy's images."""

    def draw(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        return toy_images(count)

    def learn(self, student: nn.Module) -> None:
        """Nothing."""


@pytest.mark.parametrize("balanced", [True, False])
def test_the_student_is_given_softened_answers_and_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, balanced: bool
) -> None:
    """Responses have the requested entropy, half of the images come from the other source, and few are released."""
    seen: list[Any] = []

    def spy(
        settings: Transcription, teacher: Teacher, student: str, source: Source, ask: Ask, *rest: Any, move: Any
    ) -> tuple[nn.Module, Tensor]:
        seen.extend([settings, source, ask, *rest])
        return nn.Identity(), torch.zeros(100, *SHAPE)

    monkeypatch.setattr(Transcription, "train", spy)
    method = SoftTranscription(questions=5000, prior="shapes", balanced=balanced)
    _, shown = method.teach(Quarters(), toy_teacher(), "datalens", context(), Corners())
    settings, source, ask, *_, loss = seen
    assert (settings.questions, settings.balanced, loss, len(shown)) == (5000, balanced, soft_loss, SHOWN)
    drawn = source.draw(400, SHAPE, torch.Generator().manual_seed(1))
    assert torch.equal(drawn[1::2], toy_images(200)) and not torch.equal(drawn[::2], drawn[1::2])
    answers = ask(drawn, torch.zeros(400, CLASSES))
    torch.testing.assert_close(answers.exp().sum(1), torch.ones(400))
    mean = float(-(answers.exp() * answers).sum(1).mean())
    assert mean == pytest.approx(math.log(CLASSES) / 2, abs=0.1), "which is less than a nat"
    assert torch.equal(answers.argmax(1)[1::2], torch.arange(200) % CLASSES)


@pytest.mark.thorough
@pytest.mark.parametrize("committee", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_student_learns_what_the_classifier_knows(committee: int) -> None:
    torch.manual_seed(0)
    settings = SoftTranscription(questions=600, student_steps=80, prior="shapes", committee=committee)
    student, shown = settings.teach(Quarters(), toy_teacher(), "datalens", context())
    images = torch.rand(200, *SHAPE) * 0.3
    labels = torch.arange(200) % CLASSES
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 8 * (label // 2) : 8 * (label // 2) + 8, 8 * (label % 2) : 8 * (label % 2) + 8] += 0.6
    with torch.no_grad():
        assert float((student(images).argmax(1) == labels).float().mean()) > 0.9
    assert shown.shape[1:] == SHAPE


def test_classes_are_drawn_evenly_but_a_rare_one_is_not_learnt_by_heart() -> None:
    readings = torch.zeros(1111, 4)
    readings[:1000, 0], readings[1000:1100, 1], readings[1100:1110, 2], readings[1110:, 3] = 1.0, 1.0, 1.0, 1.0
    weight = evenly(readings)
    mass = [
        float(weight[part].sum()) for part in (slice(1000), slice(1000, 1100), slice(1100, 1110), slice(1110, None))
    ]
    assert mass[0] == pytest.approx(1.0) and float(weight[0]) == pytest.approx(float(weight.median()))
    assert mass[1:] == pytest.approx([RARE * 0.1, RARE * 0.01, RARE * 0.001]), "at most RARE times the median weight"
    some = evenly(readings[900:1110])
    assert float(some[:100].sum()) == float(some[100:200].sum()) == pytest.approx(1.0)
    assert float(some[200:].sum()) == pytest.approx(RARE * 0.1)


@pytest.mark.parametrize("balanced", [True, False])
def test_what_a_learner_sees(balanced: bool) -> None:
    seen: list[int] = []

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        seen.extend(readings.argmax(1).tolist())
        return logits.sum()

    answered = Answered(SHAPE, CLASSES, torch.device("cpu"))
    labels = torch.tensor([0] * 300 + [1] * 100)
    answered.add(torch.zeros(400, *SHAPE, dtype=torch.uint8), nn.functional.one_hot(labels, CLASSES).float())
    schedule = Schedule(40, 1e-3, 100, jitter=False, balanced=balanced)
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES))
    Learner(schedule, model, context(), loss, rng).learn(answered, 40, lambda _: None)
    share = sum(seen) / len(seen)
    assert len(seen) == 4000 and (abs(share - 0.5) < 4 * (0.25 / 4000) ** 0.5 if balanced else share == 0.25)


@pytest.mark.parametrize("given", [{"questions": 0}, {"choose": 0.5}, {"evolve": 1.0}, {"gamma_s": 0.0}], ids=str)
def test_settings_out_of_range_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        SoftTranscription(**given)  # type: ignore[arg-type]
