"""Label-only and quantile regression: equations by hand, and power in both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from membership_made import knows
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from attacks.label_only import LabelOnly, translations
from attacks.quantile import MEAN_LOG_CHI_SQUARE, Quantile, margin, ridge_predictions
from bench.api import Target
from bench.metrics.membership import auc_interval, gap_auc
from bench.testing import context


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Label-only


class Remembers(nn.Module):
    """Class 1 within `radius` of one of its records, one for all or one for each, else class 0."""

    def __init__(self, records: Tensor, radius: float | Tensor) -> None:
        super().__init__()
        self.records, self.radius = records.flatten(1), radius

    def forward(self, x: Tensor) -> Tensor:
        near = (torch.cdist(x.flatten(1), self.records) < self.radius).any(1)
        return torch.stack([~near, near], 1).float()


@pytest.mark.parametrize("d", [1, 2, 3])
def test_translations_are_4d_at_each_distance(d: int) -> None:
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 4] = 1
    found = torch.stack(list(translations(image, d))).flatten(1)
    assert len(found.unique(dim=0)) == len(found) == sum(4 * k for k in range(1, d + 1))
    assert bool((found.sum(1) == 1).all())


def test_translations_repeat_edges() -> None:
    image = torch.tensor([[1.0, 2], [3, 4]]).view(1, 1, 2, 2)
    found = [x.reshape(4).tolist() for x in translations(image, 1)]
    assert found == [[1, 2, 1, 2], [1, 1, 3, 3], [2, 2, 4, 4], [3, 4, 3, 4]]


def label_scores(model: nn.Module, x: Tensor, y: Tensor, attack: LabelOnly | None = None) -> Tensor:
    target = Target(model, "label", tuple(x.shape[1:]), 2)
    found = (attack or LabelOnly()).infer(target, knows(x, y), context()).scores
    assert attack or target.queries == 41 * len(x)
    return found


def test_label_only_sends_41_queries_per_suspect() -> None:
    model = Remembers(torch.full((1, 1, 6, 6), 9.0), 1.0)
    found = label_scores(model, torch.rand(10, 1, 6, 6, generator=rng()), torch.arange(10) % 2)
    assert found.tolist() == [3.0, 0.0] * 5


def test_label_only_noise_grows_per_level() -> None:
    class Seen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return torch.zeros(len(x), 2)

    seen: list[Tensor] = []
    x = torch.stack([torch.full((1, 64, 64), 0.5), torch.zeros(1, 64, 64)])
    label_scores(Seen(), x, torch.zeros(2, dtype=torch.int64), LabelOnly(s=0.05, levels=3, noises=2, d=1))
    assert len(seen) == 1 + 4 + 6 and min(float(copy.min()) for copy in seen) == 0
    deviations = [float((copy[0] - 0.5).std()) for copy in seen[5:]]
    assert deviations == pytest.approx([0.05, 0.05, 0.1, 0.1, 0.15, 0.15], rel=0.08)


def test_label_only_scores_are_independent_per_suspect() -> None:
    x, y = torch.rand(12, 1, 6, 6, generator=rng()), torch.ones(12, dtype=torch.int64)
    model, order = Remembers(x[:6], 1.2), torch.randperm(12, generator=rng(1))
    one, other = label_scores(model, x, y, LabelOnly(batch=5)), label_scores(model, x[order], y)
    assert torch.equal(one[order], other) and len(one.unique()) > 2


def test_label_only_finds_only_memorised_records() -> None:
    x, y = torch.rand(300, 1, 6, 6, generator=rng()), torch.ones(300, dtype=torch.int64)
    inside = torch.arange(300) < 150
    # Right on everything, so that the gap says nothing; the records' surroundings are larger
    remembering = Remembers(x, torch.where(inside, 1.0, 0.5))
    assert auc_interval(label_scores(remembering, x, y), inside)[1] > 0.6
    other = Remembers(torch.rand(40, 1, 6, 6, generator=rng(5)), 1.9)
    low, high = auc_interval(label_scores(other, x, y), inside)[1:]
    assert low < 0.5 < high


def test_gap_auc_by_hand() -> None:
    """3 of 4 members and 1 of 2 others are right: AUC = 3/4 x 1/2 + 1/2 (3/4 x 1/2 + 1/4 x 1/2) = 0.625."""
    right = torch.tensor([True, True, True, False, True, False])
    inside = torch.tensor([True, True, True, True, False, False])
    assert gap_auc(right, inside) == pytest.approx(0.625)
    assert gap_auc(right, inside) == pytest.approx(auc_interval(right.double(), inside)[0])


# Quantile regression


def test_margin_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    assert margin(p, torch.tensor([1, 2])).tolist() == pytest.approx([math.log(3 / 5), math.log(8)])


def test_ridge_predictions_by_hand() -> None:
    """Slope = cov / (var + ridge): 4 / (4 + 1) for x = -2, 2 and y = x, around the means."""
    x = torch.tensor([[-2.0], [2.0]], dtype=torch.float64)
    found = ridge_predictions(x, x[:, 0] + 7, torch.tensor([[1.0], [10.0]], dtype=torch.float64), 1.0)
    assert found.tolist() == pytest.approx([7.8, 15.0])


def test_mean_log_chi_square_is_that_of_a_normal() -> None:
    x = torch.randn(200_000, generator=rng(), dtype=torch.float64)
    assert float(x.square().log().mean()) == pytest.approx(MEAN_LOG_CHI_SQUARE, abs=0.02)


FAINT = 1e-4
"""The margin is written into images too faintly for their principal components."""


class Confident(nn.Module):
    """Logits (margin, 0), the margin read from the first pixel."""

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1)[:, 0] / FAINT
        return torch.stack([score, torch.zeros_like(score)], 1)


def hard_and_easy(n: int, seed: int, shift: float, spread: float) -> Tensor:
    """(n, 1, 2, 2) images: pixel 1 says how hard a record is; pixel 0 is its margin, whose law depends on it."""
    hard = torch.rand(n, generator=rng(seed))
    sd = torch.exp(spread * (hard - 0.5))
    s = 4 * spread * hard + sd * (torch.randn(n, generator=rng(seed + 1)) + shift)
    return torch.stack([FAINT * s, hard, *torch.rand(2, n, generator=rng(seed + 2))], 1).view(n, 1, 2, 2)


def scores(attack: Any, x: Tensor, outside: Tensor) -> Tensor:
    zeros = [torch.zeros(len(images), dtype=torch.int64) for images in (x, outside)]
    target = Target(Confident(), "scores", (1, 2, 2), 2)
    found = attack.infer(target, knows(x, zeros[0], (outside, zeros[1])), context()).scores
    assert target.queries == len(x) + len(outside), "one question a record"
    return found


@pytest.mark.parametrize(("shift", "found"), [(0.5, True), (0.0, False)])
def test_quantile_finds_unusually_confident_members(shift: float, found: bool) -> None:
    x = torch.cat([hard_and_easy(1000, 10, shift, 2.0), hard_and_easy(1000, 20, 0.0, 2.0)])
    inside = torch.arange(2000) < 1000
    value, low, high = auc_interval(scores(Quantile(), x, hard_and_easy(3000, 30, 0.0, 2.0)), inside)
    by_loss = auc_interval(logsigmoid(x[:, 0, 0, 0] / FAINT), inside)[0]
    if found:
        assert value == pytest.approx(0.638, abs=0.03), "Phi(0.5 / sqrt 2)"
        assert value > by_loss + 0.03
    else:
        assert low < 0.5 < high


def test_quantile_score_is_the_standardised_margin() -> None:
    """Whatever record: how hard it is moves the mean and the deviation of its margin."""
    x = hard_and_easy(1000, 10, 0.3, 3.0)
    hard, s = x[:, 0, 0, 1].double(), x[:, 0, 0, 0].double() / FAINT
    wanted = (s - 12 * hard) / (3 * (hard - 0.5)).exp()
    found = scores(Quantile(ridge=1e-4), x, hard_and_easy(4000, 30, 0.0, 3.0))
    assert float((found - wanted).abs().mean()) < 0.25 and float((found - wanted).mean().abs()) < 0.15
    assert float(torch.corrcoef(torch.stack([found, wanted]))[0, 1]) > 0.98


def test_quantile_scores_are_independent_per_suspect() -> None:
    x, outside = hard_and_easy(400, 10, 0.0, 2.0), hard_and_easy(1000, 30, 0.0, 2.0)
    torch.testing.assert_close(scores(Quantile(), x, outside)[5:9], scores(Quantile(), x[5:9], outside))


def test_quantile_compares_within_the_class() -> None:
    """Margins of class 1 are larger by 4: no sign of membership."""
    labels, other = torch.arange(400) % 2, torch.arange(2000) % 2

    def images(y: Tensor, seed: int) -> Tensor:
        margins = 4 * y + torch.randn(len(y), generator=rng(seed))
        rest = torch.rand(3, len(y), generator=rng(seed + 1))
        return torch.stack([FAINT * torch.where(y == 1, -margins, margins), *rest], 1).view(-1, 1, 2, 2)

    x, outside = images(labels, 10), images(other, 20)
    target = Target(Confident(), "scores", (1, 2, 2), 2)
    found = Quantile().infer(target, knows(x, labels, (outside, other)), context()).scores
    assert abs(float(found[labels == 1].mean() - found[labels == 0].mean())) < 0.5


def test_quantile_with_large_ridge_is_the_loss_threshold() -> None:
    x = hard_and_easy(400, 10, 0.0, 0.0)
    found = scores(Quantile(ridge=1e6), x, hard_and_easy(3000, 30, 0.0, 0.0))
    order = found.argsort()
    assert bool((x[order, 0, 0, 0].diff() >= -1e-6).all())


def test_quantile_with_few_records_has_a_skip_reason() -> None:
    assert "1000" in (Quantile().skip_reason((1, 8, 8), 10, 999) or "")
