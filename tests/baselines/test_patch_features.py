"""Patch features in a private head: block whitening, rows in float16, steps by budget, account, release."""

from __future__ import annotations

import math
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import accuracy, epsilon_of, forbidden_teacher, record_calls, refused, rng
from dp_accounting import NonPrivateDpEvent

from baselines.patch_features import PatchFeatures
from bench.api import Context, Release
from bench.dp_training import block_whitening, feature_training
from bench.dp_training.block_whitening import BlockWhitening, Leading, Triangular
from bench.dp_training.fixed_features import half_rows
from bench.dp_training.linear_head import clipped_sum
from bench.dp_training.patch_training import steps_for
from bench.nets.classifiers import patch_nets
from bench.privacy import Budget
from bench.privacy.witness import Trace, Witness
from bench.testing import toy_private

MU = {1.0: 0.26805, 3.0: 0.71912, 8.0: 1.66603}
"""Golden mu of Gaussian mechanisms at delta 1e-5, by epsilon."""


@pytest.fixture(autouse=True)
def few_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use 40 filters instead of 800, so that the whitening of their responses takes no time."""
    monkeypatch.setattr(patch_nets, "FILTERS", 40)


def convert(budget: Budget, seed: int = 0, **given: Any) -> Release:
    given = {"drawings": 64} | given
    return baseline_runs.convert(PatchFeatures, budget, forbidden_teacher(200), seed=seed, variant=None, **given)


def correlated_rows(n: int, widths: tuple[int, ...]) -> torch.Tensor:
    source = rng(1)
    rows = [torch.randn(n, w, generator=source) @ torch.randn(w, w, generator=source) + 1 for w in widths]
    return torch.cat([torch.nn.functional.normalize(block) for block in rows], 1) / math.sqrt(len(widths))


def test_block_whitening_makes_blocks_isotropic_of_given_shares() -> None:
    rows, widths = correlated_rows(4000, (6, 10)), (6, 10)
    white = BlockWhitening.of_public(rows, widths, (0.25, 0.75), 1e-6)
    blocks = white._mapped(rows)
    for block, width, share in zip(blocks, widths, (0.25, 0.75), strict=True):
        covariance = torch.cov(block.T, correction=0)
        assert torch.allclose(covariance / covariance.diagonal().mean(), torch.eye(width), atol=0.02)
        assert float(block[:2048].norm(dim=1).mean()) == pytest.approx(math.sqrt(share), abs=1e-3)


def test_whitened_rows_have_norm_at_most_one() -> None:
    rows = correlated_rows(300, (6, 10))
    white = BlockWhitening.of_public(rows, (6, 10), (0.25, 0.75), 0.3)
    made = white(rows)
    assert torch.allclose(white(rows * 130), made, atol=2e-3)
    norms = made.double().norm(dim=1)
    assert made.dtype == torch.float16 and norms.max() <= 1 and norms.min() > 1 - 2**-8
    norms = half_rows(rows * 7, torch.device("cpu")).double().norm(dim=1)
    assert norms.max() <= 1 and norms.min() > 1 - 2**-8


def test_folded_layer_decides_as_the_whitened_rows() -> None:
    rows = correlated_rows(500, (6, 10))
    white, weight = BlockWhitening.of_public(rows, (6, 10), (0.25, 0.75), 0.3), torch.randn(4, 16)
    folded, bias = white.folded(weight)
    blocks = torch.cat(white._mapped(rows), 1)
    assert torch.allclose(rows @ folded.T + bias, blocks @ weight.T, atol=1e-3)


def test_leading_directions_whiten_as_the_whole_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, width = correlated_rows(60, (90,)), (90,)
    whole = BlockWhitening.of_public(rows, width, (1.0,), 0.3)
    monkeypatch.setattr(block_whitening, "LONG", 50)
    leading = BlockWhitening.of_public(rows, width, (1.0,), 0.3)
    assert isinstance(whole.maps[0], Triangular) and isinstance(leading.maps[0], Leading)
    ours, theirs = (torch.cat(white._mapped(rows), 1) for white in (leading, whole))
    assert torch.allclose(ours @ ours.T, theirs @ theirs.T, atol=1e-4)  # equal after a rotation
    again = BlockWhitening.of_state(leading.state())
    assert torch.equal(again(rows), leading(rows))
    weight = torch.randn(4, 90)
    folded, bias = leading.folded(weight)
    assert torch.allclose(rows @ folded.T + bias, ours @ weight.T, atol=1e-4)


def test_fewer_directions_leave_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_whitening, "LONG", 50)
    monkeypatch.setattr(block_whitening, "LEADING", 5)
    rows = correlated_rows(60, (90,))
    (leading,) = BlockWhitening.of_public(rows, (90,), (1.0,), 0.3).maps
    assert isinstance(leading, Leading) and leading.directions.shape == (90, 5)
    values = rows - rows.mean(0)
    inside = values @ leading.directions @ leading.directions.T
    moved = leading(values) - values
    assert torch.allclose(moved, moved @ leading.directions @ leading.directions.T, atol=1e-5)
    assert float(leading(inside).norm()) < float(inside.norm())


def test_wide_network_has_twice_as_many_filters() -> None:
    release = convert(Budget(math.inf), steps=40, rate=20, wide=True)
    assert release.arch == "wide-patch-wavelet-linear"
    assert release.student.body.trunk[0].patches.filters.shape == (80, 36)
    assert accuracy(release) > 0.9


@pytest.mark.parametrize("removed", [0, 255, 299])
def test_removing_a_float16_row_moves_the_sum_by_at_most_c(removed: int) -> None:
    rows = half_rows(correlated_rows(300, (6, 10)), torch.device("cpu"))
    labels, weight = torch.arange(300) % 4, torch.randn(4, 16)
    without = labels.clone()
    without[removed] = -1
    moved = (clipped_sum(rows, labels, weight, 0.1) - clipped_sum(rows, without, weight, 0.1)).norm()
    assert 0 < float(moved) <= 0.1
    assert torch.equal(clipped_sum(rows, labels, weight, 0.1), clipped_sum(rows.float(), labels, weight, 0.1))


def test_budget_chooses_the_number_of_steps() -> None:
    for epsilon, mu in MU.items():
        release = convert(Budget(epsilon), steps=0)
        (entry,) = release.ledger.entries()
        assert entry.count == steps_for(mu) == release.solved["steps"]
        assert math.sqrt(entry.count) / entry.event.noise_multiplier == pytest.approx(mu, abs=1e-3)
        assert epsilon_of(release.ledger) == pytest.approx(epsilon, abs=2e-3)
    (entry,) = convert(Budget(math.inf), steps=0).ledger.entries()
    assert isinstance(entry.event, NonPrivateDpEvent)


@pytest.mark.parametrize("features", ["patches", "both"])
@pytest.mark.parametrize("whitening", ["public", "none"])
def test_drawn_noise_is_that_of_the_ledger(features: str, whitening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(0)
    monkeypatch.setattr(Context, "privacy_noise", lambda _self, _name: Witness(trace, 1))
    (entry,) = convert(Budget(3.0), features=features, whitening=whitening).ledger.entries()
    assert [step.scale for step in trace.steps] == pytest.approx([0.1 * entry.event.noise_multiplier] * entry.count)


def test_released_network_learns_and_maps_raw_images() -> None:
    release = convert(Budget(math.inf), steps=40, rate=20)
    assert release.arch == "patch-wavelet-linear"
    assert accuracy(release) > 0.9
    assert accuracy(convert(Budget(math.inf), steps=40, rate=20, whitening="none", features="patches")) > 0.9


@pytest.mark.parametrize("features", ["patches", "both"])
def test_released_network_decides_as_the_trained_head(features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, feature_training, "noisy_descent")
    release = convert(Budget(math.inf), steps=3, rate=20, features=features)
    trained = calls[0].arguments[0].float() @ calls[0].result.T
    with torch.no_grad():
        decisions = release.student(toy_private(n=200)[0].float() / 255).argmax(1)
    assert float((decisions == trained.argmax(1)).float().mean()) > 0.97


def test_seeds_share_filters_and_differ_in_noise() -> None:
    first, second = (convert(Budget(3.0), seed) for seed in (0, 1))
    filters = [release.student.body.trunk[0].patches.filters for release in (first, second)]
    assert torch.equal(*filters) and filters[0].abs().max() > 0
    assert not torch.equal(first.student.body.head.weight, second.student.body.head.weight)


def test_private_whitening_of_patches_is_refused() -> None:
    with refused("private"):
        convert(Budget(3.0), whitening="private")
