"""Similarity of pairs of images, and the metrics of inversion: against slow references and torchmetrics."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

from bench.metrics import inversion, pairs
from bench.metrics.image_metrics.feature_distance import feature_distance
from bench.metrics.pairs import PSNR_CAP, best_match, psnr_pairs, ssim_pairs, window_side


def random_pairs(n: int, c: int, h: int, w: int, noise: float = 0.2) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    smooth = torch.rand(n, c, 4, 4, generator=rng, dtype=torch.float64)
    images = torch.nn.functional.interpolate(smooth, (h, w), mode="bilinear")
    return images, (images + noise * torch.randn(n, c, h, w, generator=rng)).clamp(0, 1)


def slow_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """The definition of (c, h, w), window by window, each with its own two-dimensional weights."""
    c, h, w = x.shape
    side = window_side(h, w)
    edges = ((0, 0), (side // 2, side // 2), (side // 2, side // 2))
    x, y = np.pad(x, edges, mode="reflect"), np.pad(y, edges, mode="reflect")
    weights = np.array(
        [
            [math.exp(-((i - side // 2) ** 2 + (j - side // 2) ** 2) / (2 * 1.5**2)) for j in range(side)]
            for i in range(side)
        ]
    )
    weights /= weights.sum()
    found = []
    for channel in range(c):
        for i in range(h):
            for j in range(w):
                a, b = (image[channel, i : i + side, j : j + side] for image in (x, y))
                mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
                var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
                both = (weights * (a - mean_a) * (b - mean_b)).sum()
                top = (2 * mean_a * mean_b + 1e-4) * (2 * both + 9e-4)
                found.append(top / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4)))
    return float(np.mean(found))


@pytest.mark.parametrize(("n", "c", "h", "w"), [(5, 1, 16, 16), (3, 3, 32, 32), (4, 1, 28, 28), (3, 3, 12, 17)])
def test_ssim_agrees_with_torchmetrics(n: int, c: int, h: int, w: int) -> None:
    x, y = random_pairs(n, c, h, w)
    oracle = structural_similarity_index_measure(x, y, data_range=1.0, reduction="none")
    assert ssim_pairs(x, y).tolist() == pytest.approx(oracle.tolist(), abs=1e-9)


@pytest.mark.parametrize(("c", "h", "w"), [(1, 8, 8), (2, 7, 10), (1, 12, 11), (1, 1, 2)])
def test_ssim_agrees_with_the_definition_on_small_images(c: int, h: int, w: int) -> None:
    x, y = random_pairs(2, c, h, w)
    slow = [slow_ssim(a, b) for a, b in zip(x.numpy(), y.numpy(), strict=True)]
    assert ssim_pairs(x, y).tolist() == pytest.approx(slow, abs=1e-9)


def test_window_side_is_the_largest_odd_one_that_fits() -> None:
    sizes = {(1, 1): 1, (2, 9): 1, (8, 8): 7, (9, 9): 9, (10, 28): 9, (11, 11): 11, (16, 16): 11, (224, 224): 11}
    assert {size: window_side(*size) for size in sizes} == sizes


def test_ssim_depends_on_one_pair_only(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = random_pairs(7, 1, 16, 16)
    whole = ssim_pairs(x, y)
    monkeypatch.setattr(pairs, "_PIXELS", 600)
    assert ssim_pairs(x, y).tolist() == pytest.approx(whole.tolist(), abs=1e-12)
    for i in range(7):
        assert float(ssim_pairs(x[i : i + 1], y[i : i + 1])) == pytest.approx(float(whole[i]), abs=1e-12)
    assert ssim_pairs(y, x).tolist() == pytest.approx(whole.tolist(), abs=1e-12)


def test_psnr_by_hand_and_by_the_definition() -> None:
    x, y = random_pairs(5, 3, 9, 9)
    slow = [-10 * math.log10(float(((a - b) ** 2).mean())) for a, b in zip(x.numpy(), y.numpy(), strict=True)]
    assert psnr_pairs(x, y).tolist() == pytest.approx(slow, rel=1e-6)
    assert float(psnr_pairs(torch.full((1, 1, 4, 4), 0.6), torch.full((1, 1, 4, 4), 0.5))) == pytest.approx(
        20, abs=1e-5
    )


def test_psnr_of_identical_images_is_capped() -> None:
    x, _ = random_pairs(3, 1, 8, 8)
    assert psnr_pairs(x, x).tolist() == [PSNR_CAP] * 3 == [100.0] * 3
    assert float(psnr_pairs(x[:1], (x[:1] * 0.5 + 0.25))) < 60


@pytest.mark.parametrize("measure", [ssim_pairs, psnr_pairs])
def test_uint8_and_float_images_agree(measure: object) -> None:
    assert callable(measure)
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randint(256, (4, 1, 16, 16), generator=rng, dtype=torch.uint8) for _ in range(2))
    expected = measure(x.double() / 255, y.double() / 255).tolist()
    assert measure(x, y).tolist() == pytest.approx(expected, abs=1e-12)
    assert measure(x.float() / 255, y).tolist() == pytest.approx(expected, abs=1e-5)


def match_case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    private = torch.randint(256, (40, 1, 12, 12), generator=rng, dtype=torch.uint8)
    return torch.rand(9, 1, 12, 12, generator=rng), torch.arange(9) % 3, private, torch.arange(40) % 4


@pytest.mark.parametrize("count", [1, 3, 100])
def test_best_match_agrees_with_a_slow_reference(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_CHUNK", 2)
    images, targets, private, labels = match_case()
    found = best_match(images, targets, private, labels, count)
    for i, (image, c) in enumerate(zip(images.double().numpy(), targets, strict=True)):
        members = (private[labels == c].double() / 255).numpy()
        errors = [float(((image - other) ** 2).mean()) for other in members]
        near = np.argsort(errors)[:count]
        assert float(found.ssim[i]) == pytest.approx(max(slow_ssim(image, members[j]) for j in near), abs=1e-6)
        assert float(found.psnr[i]) == pytest.approx(-10 * math.log10(min(errors)), abs=1e-6)
        assert float(found.ssim_mean_image[i]) == pytest.approx(slow_ssim(image, members.mean(0)), abs=1e-6)


@pytest.mark.parametrize("measure", [ssim_pairs, psnr_pairs])
def test_pairs_refuse_other_shapes_types_and_ranges(measure: object) -> None:
    assert callable(measure)
    x = torch.rand(2, 1, 12, 12)
    for y in (x[:1], x[0], x[:, :, :5]):
        with pytest.raises(ValueError, match=re.escape(str(tuple(y.shape)))):
            measure(x, y)
    with pytest.raises(ValueError, match=r"\(0, 1, 12, 12\)"):
        measure(x[:0], x[:0])
    with pytest.raises(ValueError, match=r"torch\.int64"):
        measure(x.long(), x)
    for bad in (-0.01, 1.01, float("nan"), float("inf")):
        y = x.clone()
        y[0, 0, 3, 3] = bad
        for pair in ((x, y), (y, x)):
            with pytest.raises(ValueError, match=r"NaN|0 to 1"):
                measure(*pair)


def test_best_match_refuses_bad_input() -> None:
    images, targets, private, labels = match_case()
    with pytest.raises(ValueError, match="count is 0"):
        best_match(images, targets, private, labels, count=0)
    with pytest.raises(ValueError, match=r"class 1\b"):
        best_match(images, targets, private[labels != 1], labels[labels != 1])
    with pytest.raises(ValueError, match=r"\(1, 12, 5\)"):
        best_match(images[..., :5], targets, private, labels)
    with pytest.raises(ValueError, match="0 to 1"):
        best_match(images * 2, targets, private, labels)
    with pytest.raises(ValueError, match="0 to 1"):
        best_match(images, targets, private.float(), labels)


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
    assert inversion.confusion(logits, torch.tensor([0, 0, 1, 0]), classes=2).tolist() == [[1, 1, 1], [0, 0, 1]]
    with pytest.raises(ValueError, match="0 to 2"):
        inversion.confusion(logits, torch.tensor([0, 0, 3, 0]))
    with pytest.raises(ValueError, match="0 to 1"):
        inversion.confusion(logits, torch.tensor([0, 0, 2, 0]), classes=2)


@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_knn_distance_against_a_slow_reference(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inversion, "_CHUNK", chunk)
    features, targets, private, labels = random_case()
    slow = [
        min(float(((x - r) ** 2).sum()) for r, c in zip(private, labels, strict=True) if c == y)
        for x, y in zip(features, targets, strict=True)
    ]
    assert inversion.knn_distance(features, targets, private, labels) == pytest.approx(np.mean(slow), rel=1e-5)


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
