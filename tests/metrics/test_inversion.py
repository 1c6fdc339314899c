from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.metrics import inversion
from bench.metrics.image_metrics.feature_distance import feature_distance


def random_case(n: int = 23, m: int = 41, f: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    features, private = torch.randn(n, f, generator=rng), torch.randn(m, f, generator=rng)
    return features, torch.randint(3, (n,), generator=rng), private, torch.arange(m) % 4


def test_attack_accuracy_counts_the_target_class() -> None:
    logits = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 0.0]])
    assert inversion.attack_accuracy(logits, torch.tensor([0, 1, 1, 0])) == 0.75


def test_confusion_by_hand() -> None:
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 5.0, 0.0]])
    counts = inversion.confusion(logits, torch.tensor([0, 0, 2, 0]))
    assert counts.tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 1]]
    with pytest.raises(ValueError, match="0 to 2"):
        inversion.confusion(logits, torch.tensor([0, 0, 3, 0]))


@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_knn_distance_against_a_slow_reference(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inversion, "_CHUNK", chunk)
    features, targets, private, labels = random_case()
    slow = [
        min(float(((x - r) ** 2).sum()) for r, c in zip(private, labels, strict=True) if c == y)
        for x, y in zip(features, targets, strict=True)
    ]
    assert inversion.knn_distance(features, targets, private, labels) == pytest.approx(np.mean(slow), rel=1e-5)


def test_knn_distance_is_squared_and_within_the_class() -> None:
    private, labels = torch.tensor([[0.0, 0.0], [10.0, 0.0]]), torch.tensor([0, 1])
    features = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert inversion.knn_distance(features, torch.tensor([0, 1]), private, labels) == pytest.approx((25 + 100) / 2)
    assert inversion.knn_distance(private, labels, private, labels) == pytest.approx(0, abs=1e-12)


def test_knn_distance_keeps_small_differences() -> None:
    private = torch.tensor([[4000.0, 4000.0]])
    assert inversion.knn_distance(private + 0.5, torch.tensor([0]), private, torch.tensor([0])) == pytest.approx(0.5)


def test_feature_distance_against_a_slow_reference() -> None:
    features, targets, private, labels = random_case()
    slow = [float(((x - private[labels == y].mean(0)) ** 2).sum()) for x, y in zip(features, targets, strict=True)]
    assert feature_distance(features, targets, private, labels) == pytest.approx(np.mean(slow), rel=1e-5)


@pytest.mark.parametrize("as_uint8", [False, True])
def test_nearest_private_against_a_slow_reference(as_uint8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inversion, "_CHUNK", 5)
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (40, 1, 4, 4), generator=rng, dtype=torch.uint8)
    labels = torch.arange(40) % 4
    images, targets = torch.rand(17, 1, 4, 4, generator=rng), torch.randint(4, (17,), generator=rng)
    floats = pixels.float() / 255
    slow = [
        min((i for i in range(40) if labels[i] == y), key=lambda i, x=x: float((x - floats[i]).square().sum()))
        for x, y in zip(images, targets, strict=True)
    ]
    found = inversion.nearest_private(images, targets, pixels if as_uint8 else floats, labels)
    assert found.tolist() == slow


MEASURES = [inversion.knn_distance, feature_distance, inversion.nearest_private]


@pytest.mark.parametrize("measure", MEASURES)
def test_class_without_private_images_is_refused(measure: Callable[..., object]) -> None:
    features, targets, private, labels = random_case()
    with pytest.raises(ValueError, match=r"class 2\b"):
        measure(features, targets, private[labels != 2], labels[labels != 2])


@pytest.mark.parametrize("measure", MEASURES)
def test_nan_and_other_shapes_are_refused(measure: Callable[..., object]) -> None:
    features, targets, private, labels = random_case()
    with pytest.raises(ValueError, match=r"\(2,\)"):
        measure(features[:, :2], targets, private, labels)
    with pytest.raises(ValueError, match=r"\(22,\)"):
        measure(features, targets[1:], private, labels)
    features[3, 2] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        measure(features, targets, private, labels)
