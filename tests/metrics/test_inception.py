from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.metrics.inception import inception, splits_for, stratified_order


def random_case(n: int = 200, k: int = 10, scale: float = 4.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % k
    logits = scale * torch.randn(n, k, generator=rng, dtype=torch.float64)
    return logits + scale * nn.functional.one_hot(targets, k), targets


def by_definition(logits: Tensor) -> float:
    p = logits.softmax(1).numpy()
    mean = p.mean(0)
    return math.exp(
        np.mean([sum(p[i, y] * math.log(p[i, y] / mean[y]) for y in range(len(mean))) for i in range(len(p))])
    )


@pytest.mark.parametrize("k", [2, 5, 10])
@pytest.mark.parametrize("gap", [200.0, 1000.0, 1e30])
def test_one_hot_logits_of_k_classes_score_k(k: int, gap: float) -> None:
    targets = torch.arange(20 * k) % k
    scores = inception(gap * nn.functional.one_hot(targets, k).float(), targets, splits=4)
    assert scores.score_mean == pytest.approx(k, rel=1e-12)
    assert scores.e6_mean == pytest.approx((k - 1) * 1e6, rel=1e-12)
    assert scores.kl_mean == pytest.approx(math.log(k), rel=1e-12)
    assert scores.score_std == pytest.approx(0, abs=1e-12)
    assert scores.within_class == pytest.approx(1, abs=1e-12)


def test_identical_logits_score_1() -> None:
    logits = torch.tensor([3.0, -700.0, 0.5, 2.0]).expand(80, 4)
    scores = inception(logits, torch.arange(80) % 4, splits=4)
    assert scores.e6_mean == pytest.approx(0, abs=1e-6)
    assert scores.score_mean == pytest.approx(1, abs=1e-12)
    assert scores.within_class == pytest.approx(1, abs=1e-12)


def test_one_image_per_split_scores_1() -> None:
    logits, targets = random_case(40)
    assert inception(logits, targets, splits=40).e6_mean == pytest.approx(0, abs=1e-6)
    assert inception(logits, targets, splits=1).e6_mean > 1e5


def test_inception_agrees_with_the_definition() -> None:
    logits, targets = random_case(60, 6)
    whole = by_definition(logits)
    classes = [by_definition(logits[targets == c]) for c in range(6)]
    scores = inception(logits, targets, splits=1)
    assert scores.score_mean == pytest.approx(whole, rel=1e-12)
    assert scores.within_class == pytest.approx(np.mean(classes), rel=1e-12)
    assert scores.e6_mean == pytest.approx(1e6 * (whole - 1), rel=1e-10)


def test_inception_averages_over_stratified_splits() -> None:
    logits, targets = random_case(60, 6)
    order = stratified_order(logits.log_softmax(1).numpy(), targets.numpy(), 2020)
    assert sorted(order) == list(range(60))
    parts = [order[j::5] for j in range(5)]
    assert all(np.bincount(targets[part], minlength=6).tolist() == [2] * 6 for part in parts)
    expected = [by_definition(logits[part]) for part in parts]
    scores = inception(logits, targets, splits=5)
    assert scores.score_mean == pytest.approx(np.mean(expected), rel=1e-12)
    assert scores.score_std == pytest.approx(np.std(expected, ddof=0), rel=1e-10)
    assert scores.score_std > 0
    assert scores.e6_mean == pytest.approx(1e6 * (scores.score_mean - 1), rel=1e-9)


def test_stratified_order_depends_on_the_seed() -> None:
    logits, targets = random_case(200, 2)
    log_p = logits.log_softmax(1).numpy()
    one, other = (stratified_order(log_p, targets.numpy(), seed) for seed in (1, 2))
    assert (one != other).mean() > 0.5


def test_inception_ignores_order_and_row_constants() -> None:
    logits, targets = random_case()
    rng = torch.Generator().manual_seed(3)
    order, shift = torch.randperm(200, generator=rng), 50 * torch.randn(200, 1, generator=rng, dtype=torch.float64)
    expected = vars(inception(logits, targets))
    assert vars(inception(logits[order], targets[order])) == pytest.approx(expected, rel=1e-12)
    assert vars(inception(logits + shift, targets)) == pytest.approx(expected, rel=1e-9)


def test_e6_mean_keeps_small_scores() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = 1e-5 * torch.randn(400, 10, generator=rng, dtype=torch.float64)
    p = logits.softmax(1)
    second_order = float((p.var(0, correction=0) / p.mean(0)).sum() / 2)
    assert inception(logits, torch.arange(400) % 10, splits=1).e6_mean == pytest.approx(1e6 * second_order, rel=1e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_inception_agrees_with_torchmetrics() -> None:
    from torchmetrics.image.inception import InceptionScore

    logits, targets = random_case(120)

    class Lookup(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return logits[images[:, 0, 0, 0].long()].float()

    oracle = InceptionScore(feature=Lookup(), normalize=False, splits=1)
    oracle.update(torch.arange(120, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2))
    assert inception(logits, targets, splits=1).score_mean == pytest.approx(float(oracle.compute()[0]), rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_inception_refuses_logits_that_are_not_finite(bad: float) -> None:
    logits, targets = random_case(40)
    logits[7, 3] = bad
    with pytest.raises(ValueError, match="NaN"):
        inception(logits, targets, splits=2)


def test_inception_refuses_other_shapes_and_splits() -> None:
    for splits in (0, 41):
        with pytest.raises(ValueError, match=f"{splits} splits of 40"):
            inception(*random_case(40), splits=splits)
    with pytest.raises(ValueError, match=r"\(5,\)"):
        inception(torch.zeros(4, 3), torch.zeros(5, dtype=torch.int64), splits=1)


def test_splits_for_makes_one_per_fifty_images() -> None:
    assert [splits_for(n) for n in (1, 20, 99, 100, 200, 499, 500, 1000, 60_000)] == [1, 1, 1, 2, 4, 9, 10, 10, 10]
