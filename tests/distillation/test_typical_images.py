"""Images optimised by the private second moment: their Mahalanobis length, and which images change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench import nets
from bench.data import to_float
from bench.distillation.class_moments import typical_images
from bench.distillation.class_moments.typical_images import ClassTargets, TypicalImages
from bench.distillation.transcription.queries import to_bytes
from bench.distillation.transcription.soft import SoftTranscription
from bench.dp_training.whitening import Typicality, Whitening, private_whitening
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher


def typical(records: Tensor) -> TypicalImages:
    """The moment of fixed wavelet features of uint8 records, without noise."""
    network = nets.build("wavelet-linear", SHAPE, CLASSES).eval().requires_grad_(False)
    return TypicalImages(Typicality(network, whitening(network, records), context()))


def whitening(network: nets.Classifier, records: Tensor) -> Whitening:
    rows = torch.nn.functional.normalize(network.features(to_float(records)).float(), dim=1)
    return private_whitening(rows, 1, 0.0, 0.01, torch.Generator())


def drawn(n: int) -> Tensor:
    return torch.randint(0, 256, (n, *SHAPE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def test_lengths_by_hand() -> None:
    """u (S + shift)^-1 u^T by hand: S = diag(4, 1), shift 1, so that the squares are divided by 5 and 2."""
    matrix = torch.diag(torch.tensor([5.0, 2.0]).rsqrt())
    white = Whitening(matrix, torch.zeros(2), 1, scale=0.5)
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    expected = torch.tensor([1 / 5, 1 / 2, 0.36 / 5 + 0.64 / 2]).sqrt() / 0.5
    torch.testing.assert_close(white.lengths(rows), expected)


def test_optimised_images_are_closer_to_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typical_images, "SHARE", 1.0)
    records, others = toy_private(n=400)[0], drawn(40)
    move = typical(records)
    unseen = move.lengths(to_float(toy_private(seed=5, n=40)[0]))
    before = move.lengths(to_float(others))
    after = move.lengths(to_float(move(others, torch.Generator().manual_seed(0))))
    assert float(unseen.max()) < float(before.min())
    assert bool((after < before).all())
    assert float((before - after).mean()) > float(before.mean() - unseen.mean()) / 3


def test_half_of_the_images_change() -> None:
    images = drawn(21)
    move = typical(toy_private()[0])
    moved = move(images, torch.Generator().manual_seed(3))
    same = (moved == images).flatten(1).all(1)
    assert moved.dtype == torch.uint8 and moved.shape == images.shape and int(same.sum()) == 11
    again = move(images, torch.Generator().manual_seed(3))
    other = move(images, torch.Generator().manual_seed(4))
    assert torch.equal(moved, again) and not torch.equal(moved, other)


def test_images_are_optimised_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of lengths has no terms between images."""
    monkeypatch.setattr(typical_images, "SHARE", 1.0)
    move, images = typical(toy_private()[0]), drawn(6)
    together = move(images, torch.Generator().manual_seed(0))
    one_by_one = torch.cat([move(images[i : i + 1], torch.Generator()) for i in range(6)])
    assert int((together.int() - one_by_one.int()).abs().max()) <= 1


def test_optimised_black_image_stays_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typical_images, "SHARE", 1.0)
    black = torch.zeros(2, *SHAPE, dtype=torch.uint8)
    move = typical(toy_private()[0])
    assert bool(move.lengths(to_float(move(black, torch.Generator()))).isfinite().all())


def test_soft_transcription_queries_transformed_images() -> None:
    """The classifier is queried with transformed images, and the student learns from these."""
    queried: list[Tensor] = []

    class Recorder(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            queried.append(x.clone())
            return x.flatten(1)[:, :CLASSES]

    def blacken(images: Tensor, rng: torch.Generator) -> Tensor:
        return torch.zeros_like(images)

    settings = SoftTranscription(queries=40, student_steps=4, prior="shapes", rounds=2, committee=1)
    _, shown = settings.train(Recorder(), toy_teacher(), "datalens", context(), transform=blacken)
    sent = torch.cat(queried[1:])  # the first are the drawings of the temperature
    assert len(sent) == 40 and float(sent.abs().max()) == 0 and float(to_bytes(shown).max()) == 0


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_images_stay_unchanged(count: int) -> None:
    images = drawn(count)
    assert torch.equal(typical(toy_private()[0])(images, torch.Generator().manual_seed(3)), images)


def test_lengths_and_losses_by_hand() -> None:
    """Lengths are those without classes, losses those of the logits divided by the temperature."""
    records = toy_private(n=100)[0]
    network = nets.build("wavelet-linear", SHAPE, CLASSES).eval().requires_grad_(False)
    typicality = Typicality(network, whitening(network, records), context())
    images, classes = to_float(drawn(6)), torch.arange(6) % CLASSES
    found = typicality.with_classes(images, classes, temperature=0.5)
    torch.testing.assert_close(found.lengths, typicality(images))
    log_p = (network(images) / 0.5).log_softmax(1)
    torch.testing.assert_close(found.losses, -log_p[torch.arange(6), classes])


def test_class_targets_make_the_classes_of_drawings_more_even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of one brightness are of one class; targets move them to all classes."""
    monkeypatch.setattr(typical_images, "SHARE", 1.0)

    def objective(images: Tensor, classes: Tensor) -> Tensor:
        return (images.mean((1, 2, 3)) - classes / 2).square()

    images = torch.full((300, *SHAPE), 128, dtype=torch.uint8)
    move = TypicalImages(lambda x: x.sum((1, 2, 3)), ClassTargets(objective, 3))
    moved = to_float(move(images, torch.Generator().manual_seed(0))).mean((1, 2, 3)) - 128 / 255
    darker, same, lighter = (int(found.sum()) for found in (moved < -0.05, moved.abs() <= 0.05, moved > 0.05))
    assert darker + same + lighter == 300 and min(darker, same, lighter) > 60


def test_targets_are_drawn_after_the_choice_of_images() -> None:
    """So that the same images are moved with and without targets."""
    images, typicality = drawn(21), typical(toy_private()[0])
    targets = ClassTargets(lambda x, classes: x.sum((1, 2, 3)), CLASSES)
    changed = [
        (move(images, torch.Generator().manual_seed(3)) != images).flatten(1).any(1)
        for move in (typicality, TypicalImages(typicality.lengths, targets))
    ]
    assert torch.equal(changed[0], changed[1])
