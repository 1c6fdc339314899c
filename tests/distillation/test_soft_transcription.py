"""A student of soft responses: the temperature, the loss, and that it learns as well as a free classifier."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.distillation.transcription import learner
from bench.distillation.transcription.learner import (
    LARGEST_WEIGHT,
    Schedule,
    StudentTrainer,
    class_balanced_weights,
    flip_some,
)
from bench.distillation.transcription.likelihoods import soft_loss
from bench.distillation.transcription.loop import Transcription
from bench.distillation.transcription.queries import AnnotatedImages
from bench.distillation.transcription.soft import SHOWN, SoftTranscription, find_temperature
from bench.testing import CLASSES, SHAPE, context, toy_images, toy_teacher


class Quarters(nn.Module):
    """A classifier whose class is the brightest quarter of the image; its logits are small."""

    def forward(self, x: Tensor) -> Tensor:
        return 1e-3 * nn.functional.avg_pool2d(x, 8).flatten(1)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("entropy", [0.3, 0.6])
def test_find_temperature_reaches_the_entropy(size: float, entropy: float) -> None:
    logits = size * torch.randn(500, 10, generator=torch.Generator().manual_seed(0))
    responses = (logits.double() / find_temperature(logits, entropy)).softmax(1)
    found = float(-(responses * responses.clamp_min(1e-300).log()).sum(1).mean())
    assert found == pytest.approx(entropy, abs=1e-4)


def test_find_temperature_of_constant_logits_is_finite() -> None:
    assert math.isfinite(find_temperature(torch.zeros(5, 4), 0.6))


def test_soft_loss_is_smallest_at_the_targets() -> None:
    responses = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    logits = responses.clone().requires_grad_()
    soft_loss(logits, responses).backward()
    assert logits.grad is not None and float(logits.grad.abs().max()) < 1e-6
    assert float(soft_loss(responses, responses)) == pytest.approx(float(-(responses.exp() * responses).sum(1).mean()))


class Corners:
    """A source of the toy's images."""

    def draw(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        return toy_images(count)

    def learn(self, student: nn.Module) -> None:
        """Nothing."""


@pytest.mark.parametrize("balanced", [True, False])
def test_soft_transcription_queries_softened_responses(monkeypatch: pytest.MonkeyPatch, balanced: bool) -> None:
    """Responses have the requested entropy, half of the images come from the other source, and few are released."""
    seen: list[Any] = []

    def spy(settings: Any, teacher: Any, student: str, source: Any, query: Any, *rest: Any, transform: Any) -> Any:
        seen.extend([settings, source, query, *rest])
        return nn.Identity(), torch.zeros(100, *SHAPE)

    monkeypatch.setattr(Transcription, "train", spy)
    method = SoftTranscription(queries=5000, prior="shapes", balanced=balanced)
    _, shown = method.train(Quarters(), toy_teacher(), "datalens", context(), Corners())
    settings, source, query, *_, loss = seen
    assert (settings.queries, settings.balanced, loss, len(shown)) == (5000, balanced, soft_loss, SHOWN)
    drawn = source.draw(400, SHAPE, torch.Generator().manual_seed(1))
    assert torch.equal(drawn[1::2], toy_images(200)) and not torch.equal(drawn[::2], drawn[1::2])
    responses = query(drawn, torch.zeros(400, CLASSES))
    torch.testing.assert_close(responses.exp().sum(1), torch.ones(400))
    mean = float(-(responses.exp() * responses).sum(1).mean())
    assert mean == pytest.approx(math.log(CLASSES) / 2, abs=0.1), "half of the maximum, less than a nat"
    assert torch.equal(responses.argmax(1)[1::2], torch.arange(200) % CLASSES)


@pytest.mark.thorough
@pytest.mark.parametrize("committee", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_student_learns_the_classifiers_classes(committee: int) -> None:
    torch.manual_seed(0)
    settings = SoftTranscription(queries=600, student_steps=80, prior="shapes", committee=committee)
    student, shown = settings.train(Quarters(), toy_teacher(), "datalens", context())
    images, labels = toy_images(200), torch.arange(200) % CLASSES
    with torch.no_grad():
        assert float((student(images).argmax(1) == labels).float().mean()) > 0.9
    assert shown.shape[1:] == SHAPE


def test_class_balanced_weights_limit_rare_classes() -> None:
    sizes = [1000, 100, 10, 1]
    readings = torch.eye(4).repeat_interleave(torch.tensor(sizes), 0)
    weight = class_balanced_weights(readings)
    mass = [float(part.sum()) for part in weight.split(sizes)]
    assert mass[0] == pytest.approx(1.0) and float(weight[0]) == pytest.approx(float(weight.median()))
    assert mass[1:] == pytest.approx([LARGEST_WEIGHT * share for share in (0.1, 0.01, 0.001)])
    some = class_balanced_weights(readings[900:1110])
    assert float(some[:100].sum()) == float(some[100:200].sum()) == pytest.approx(1.0)
    assert float(some[200:].sum()) == pytest.approx(LARGEST_WEIGHT * 0.1)


@pytest.mark.parametrize("balanced", [True, False])
def test_student_trainer_draws_balanced_or_all_readings(balanced: bool) -> None:
    seen: list[int] = []

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        seen.extend(readings.argmax(1).tolist())
        return logits.sum()

    annotated = AnnotatedImages(SHAPE, CLASSES, torch.device("cpu"))
    labels = torch.tensor([0] * 300 + [1] * 100)
    annotated.add(torch.zeros(400, *SHAPE, dtype=torch.uint8), nn.functional.one_hot(labels, CLASSES).float())
    schedule = Schedule(40, 1e-3, 100, jitter=False, balanced=balanced)
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES))
    StudentTrainer(schedule, model, context(), loss, rng).train(annotated, 40, lambda _: None)
    share = sum(seen) / len(seen)
    assert len(seen) == 4000 and (abs(share - 0.5) < 4 * (0.25 / 4000) ** 0.5 if balanced else share == 0.25)


@pytest.mark.parametrize("given", [{"queries": 0}, {"choose": 0.5}, {"evolve": 1.0}, {"gamma_s": 0.0}], ids=str)
def test_settings_out_of_range_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        SoftTranscription(**given)  # type: ignore[arg-type]


def test_flipped_images_keep_their_responses() -> None:
    """Half of a batch is mirrored; the choice differs between steps."""
    images = torch.rand(400, *SHAPE, generator=torch.Generator().manual_seed(0))
    rng = torch.Generator().manual_seed(1)
    first, second = flip_some(images, rng), flip_some(images, rng)
    for found in (first, second):
        same, mirrored = ((found == other).flatten(1).all(1) for other in (images, images.flip(3)))
        assert bool((same ^ mirrored).all()) and 150 < int(mirrored.sum()) < 250
    assert not torch.equal(first, second)


@pytest.mark.parametrize("flips", [False, True])
def test_student_sees_mirrored_images_only_with_flips(flips: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the students of the committee, which few queries have."""
    called: list[int] = []

    def counted(images: Tensor, rng: torch.Generator) -> Tensor:
        called.append(len(images))
        return flip_some(images, rng)

    monkeypatch.setattr(learner, "flip_some", counted)
    settings = SoftTranscription(queries=48, student_steps=4, flips=flips, prior="noise")
    settings.train(toy_teacher().model, toy_teacher(), "datalens", context())
    assert bool(called) == flips and len(called) % settings.student_steps == 0
