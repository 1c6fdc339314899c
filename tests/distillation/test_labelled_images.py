"""Labelled images of a private classifier: rounds, the temperature, the filter, class balance, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from bench.data import to_float
from bench.distillation import labelled_images
from bench.distillation.labelled_images import DrawingRounds, Move, SoftClassifier, select_labelled
from bench.distillation.transcription.queries import AnnotatedImages
from bench.errors import BenchError
from bench.priors import Prior
from bench.testing import context

SHAPE = (1, 16, 16)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Levels(Prior):
    """Images of one random grey level."""

    def draw_part(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        return torch.rand(count, 1, 1, 1, generator=rng).expand(count, *shape)


class DarkOrBright(nn.Module):
    """Class 0 is dark, class 1 bright, class 2 almost black."""

    def forward(self, images: Tensor) -> Tensor:
        level = images.mean((1, 2, 3))
        return 8 * torch.stack([0.5 - level, level - 0.5, 0.1 - 3 * level], 1)


def annotated(probabilities: list[list[float]]) -> AnnotatedImages:
    """Image i is of grey level i."""
    found = AnnotatedImages(SHAPE, len(probabilities[0]), torch.device("cpu"))
    levels = torch.arange(len(probabilities), dtype=torch.uint8)[:, None, None, None]
    found.add(levels.expand(-1, *SHAPE).clone(), torch.tensor(probabilities).log())
    return found


def levels(images: Tensor) -> list[int]:
    return [int(level) for level in images[:, 0, 0, 0]]


RESPONSES = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.55, 0.45], [0.51, 0.49], [0.3, 0.7]]


def test_label_is_the_most_likely_class_and_likely_enough() -> None:
    made = select_labelled(annotated(RESPONSES), 4, 0.6, True, rng())
    assert made.labels.tolist() == [0, 1, 0, 1] and made.confident == 4
    assert sorted(levels(made.images)) == [0, 1, 2, 5]
    assert all((level in (0, 1)) == (label == 0) for level, label in zip(levels(made.images), made.labels, strict=True))


def test_images_are_repeated_only_if_there_are_too_few() -> None:
    made = select_labelled(annotated(RESPONSES), 10, 0.6, True, rng())
    counts = torch.tensor(levels(made.images)).bincount(minlength=6).tolist()
    assert made.labels.bincount().tolist() == [5, 5]
    assert sorted(counts) == [0, 0, 2, 2, 3, 3]
    whole = select_labelled(annotated(RESPONSES), 6, 0.0, False, rng())
    assert sorted(levels(whole.images)) == list(range(6))


def test_unbalanced_selection_has_the_classes_of_confident_images() -> None:
    made = select_labelled(annotated(RESPONSES), 6, 0.0, False, rng())
    assert made.labels.bincount().tolist() == [4, 2]
    odd = select_labelled(annotated(RESPONSES), 5, 0.0, True, rng())
    assert odd.labels.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("confidence", "balanced", "named"), [(0.85, True, "class 1"), (0.95, True, "class 0"), (0.95, False, "any class")]
)
def test_class_without_image_is_refused(confidence: float, balanced: bool, named: str) -> None:
    with pytest.raises(BenchError, match=f"{named} .*{confidence}.*6 images") as error:
        select_labelled(annotated(RESPONSES), 4, confidence, balanced, rng())
    assert "\n" not in str(error.value)


def test_temperature_gives_responses_of_one_nat() -> None:
    """With three classes of half the largest entropy; a multiple of the logits gives the same responses."""
    network, prior = DarkOrBright(), Levels()
    found = SoftClassifier.on_prior(network, prior, SHAPE, 3, context())
    images = (255 * prior.draw(2000, SHAPE, rng(5))).round().to(torch.uint8)
    log_p = found.logits(images).log_softmax(1)
    assert float(-(log_p.exp() * log_p).sum(1).mean()) == pytest.approx(math.log(3) / 2, abs=0.02)

    class Louder(DarkOrBright):
        def forward(self, images: Tensor) -> Tensor:
            return 7 * super().forward(images)

    louder = SoftClassifier.on_prior(Louder(), prior, SHAPE, 3, context())
    assert louder.temperature == pytest.approx(7 * found.temperature, rel=1e-4)


def drawn(
    images: int = 60, rounds: int = 3, choose: float = 2.0, evolve: float = 0.5, move: Move | None = None
) -> AnnotatedImages:
    settings = DrawingRounds(images, rounds, choose, evolve)
    classifier = SoftClassifier(DarkOrBright(), 1.0)
    return settings.draw(classifier, Levels(), SHAPE, 3, context(), move)


def test_readings_are_the_responses_to_the_stored_images() -> None:
    found = drawn()
    assert len(found) == 60 and found.images.dtype == torch.uint8
    expected = DarkOrBright()(to_float(found.images)).log_softmax(1)
    torch.testing.assert_close(found.readings, expected, atol=1e-5, rtol=1e-5)


def test_every_setting_changes_the_images() -> None:
    made = [
        drawn(), drawn(rounds=4), drawn(choose=3.0), drawn(evolve=0.0), drawn(evolve=0.9), drawn(choose=1.0),
        drawn(move=lambda images, _: 255 - images),
    ]  # fmt: skip
    assert len({found.images.numpy().tobytes() for found in made}) == len(made)
    assert torch.equal(made[0].images, drawn().images)


def test_first_round_has_only_new_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def draw_children(found: AnnotatedImages, classes: Tensor, count: int, rng: torch.Generator) -> Tensor:
        assert torch.equal(classes, found.readings.argmax(1))
        counts.append(count)
        return found.images[:count]

    monkeypatch.setattr(labelled_images, "draw_children", draw_children)
    drawn(images=62, rounds=3, choose=2.0, evolve=0.25)
    assert counts == [10, 10], "rounds of 20, 21 and 21 images"


def test_rounds_choose_rare_classes_more_often() -> None:
    """A prior of seven in ten bright images; children are of even classes."""

    class Bright(Levels):
        def draw_part(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
            return super().draw_part(count, shape, rng).sqrt()

    classifier = SoftClassifier(DarkOrBright(), 1.0)
    shares = []
    for choose, evolve in ((1.0, 0.0), (3.0, 0.0)):
        found = DrawingRounds(600, 2, choose, evolve).draw(classifier, Bright(), SHAPE, 3, context(), None)
        labels = found.readings.argmax(1)[300:]
        shares.append(float((labels == 1).double().mean()))
    assert shares[0] > 0.68 and shares[1] < shares[0] - 0.1


def test_more_rounds_than_images_are_possible() -> None:
    assert len(drawn(images=2, rounds=6)) == 2
