"""DP-FETA: the noisy central images, their post-processing, and the one ledger of central images and DP-SGD."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_runs import (
    FREE,
    class_share,
    epsilon_of,
    is_normal,
    record_calls,
    refused,
    renyi_epsilon,
    rng,
    synthesise,
)
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from torch import Tensor

from baselines.dp_feta import central_images
from baselines.dp_feta.accounting import FetaParameters, calibrate
from baselines.dp_feta.central_images import central_round, finished, largest_norm, small_images
from baselines.dp_feta.dp_feta import DpFeta
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_private, weights
from bench.testing.toys import same_tensors

SMALL = DpFeta(
    width=4, blocks=1, steps=2, batch=40, copies=2, denoisings=3, samples=40, passes=1, rounds=2, central_records=40,
    warm=3, warm_batch=8,
)  # fmt: skip
DELTA = 1.67e-6
"""1 / (n log n) of DPImageBench for 55,000 records of MNIST."""
FETA = FetaParameters(5.0, 6000 / 55_000, 5, 1 / 14, 2100, 14.94)


def round_of(images: Tensor, labels: Tensor, q: float = 1.0, z: float = 0.0, clip: float = 0.0) -> Tensor:
    return central_round(images, labels, CLASSES, q, z, clip, rng(1), rng(2))


def mixed_epsilon(events: list[tuple[DpEvent, int]], delta: float) -> float:
    accountant = RdpAccountant()
    for event, count in events:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def test_central_rounds_of_mnist_cost_as_published() -> None:
    """sigma_c 5, q_c 6000 / 55000, m 5: 0.237 by Renyi divergences, and at most that by the bench's accountant."""
    event = PoissonSampledDpEvent(6000 / 55_000, GaussianDpEvent(5.0))
    renyi = renyi_epsilon(event, 5, DELTA)
    assert renyi == pytest.approx(0.237, abs=0.001)
    single = replace(FETA, steps=0)
    (entry,) = single.ledger().entries()
    assert entry.event == event and entry.count == 5
    assert 0.3 * renyi < single.epsilon(DELTA) <= renyi


def test_sigma_of_dp_sgd_rises_by_the_cost_of_central_images() -> None:
    """14.55 without central images, 14.94 after the central images, at epsilon 1 by Renyi divergences."""
    central, steps = (entry for entry in FETA.ledger().entries())
    for sigma, first in ((14.94, [(central.event, 5)]), (14.55, [])):
        low, high = (
            mixed_epsilon([*first, (PoissonSampledDpEvent(1 / 14, GaussianDpEvent(z)), 2100)], DELTA)
            for z in (1.01 * sigma, 0.99 * sigma)
        )
        assert low <= 1 <= high
    assert steps.count == 2100 and steps.event == PoissonSampledDpEvent(1 / 14, GaussianDpEvent(14.94))


def test_white_record_moves_the_sum_of_its_class_by_14() -> None:
    white = torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)
    rest = torch.randint(0, 256, (5, 1, 28, 28), generator=rng(), dtype=torch.uint8)
    labels = torch.tensor([0, 1, 2, 3, 0, 2])
    images = torch.cat([rest, white])
    unit = 6 / CLASSES
    moved = unit * (round_of(images, labels) - round_of(torch.cat([rest, 0 * white]), labels))
    assert float(moved.norm()) == pytest.approx(14.0) and float(moved[2].norm()) == pytest.approx(14.0)
    assert largest_norm(196) == 14.0 and small_images(white).norm() == 14.0


def test_class_means_by_hand_have_the_public_denominator() -> None:
    """Sum of every second pixel of a class over q n / C, for any number of its records."""
    images = torch.arange(6 * 16, dtype=torch.uint8).view(6, 1, 4, 4)
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    means = round_of(images, labels)
    expected = torch.zeros(CLASSES, 4)
    for image, label in zip(images, labels, strict=True):
        expected[label] += image[0, ::2, ::2].flatten() / 255
    torch.testing.assert_close(means, expected / (6 / CLASSES))
    assert bool((means[2:] == 0).all()), "a class without records is 0, not NaN"


@pytest.mark.parametrize(("clip", "bound"), [(0.0, 8.0), (2.0, 2.0)])
def test_noise_of_a_round_has_the_multiplier(clip: float, bound: float) -> None:
    """N(0, (sigma_c sqrt(d') C / B_c)^2) in every pixel, or with the bound that small images are clipped to."""
    images, labels = toy_private(n=40)
    assert SHAPE[1:] == (16, 16)
    found = [central_round(images, labels, CLASSES, 0.5, z, clip, rng(1), rng(2)) for z in (0.0, 3.0)]
    assert is_normal(found[1] - found[0], 3.0 * bound * CLASSES / 20)


def test_clipped_small_images_move_the_sum_by_at_most_the_bound() -> None:
    images, labels = toy_private(n=8)
    images[3], shorter = 255, images.clone()
    shorter[3] = 0
    moved = 8 / CLASSES * (round_of(images, labels, clip=2.0) - round_of(shorter, labels, clip=2.0))
    assert 1.999 < float(moved.norm()) <= 2.0 + 1e-6


def test_rounds_sample_records_and_use_privacy_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = record_calls(monkeypatch, central_images, "poisson_sample")
    synthesise(replace(SMALL, central_records=20, rounds=3))
    assert [call.arguments[:2] for call in samples] == [(80, 0.25)] * 3
    for noise in (0.0, 1.0):
        by = replace(SMALL, steps=0, central_noise=noise, central_records=20)
        ends = [weights(synthesise(by, ctx=replace(context(), noise="os")).generator) for _ in range(2)]  # type: ignore[arg-type]
        assert not same_tensors(*ends)


@pytest.mark.parametrize("steps", [0, 2])
def test_unsampled_records_have_no_effect(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """With empty samples any data give the same generator, to the last bit."""
    monkeypatch.setattr("bench.privacy.noise.Noise.sample", lambda self, n, q: torch.zeros(0, dtype=torch.long))
    images, labels = toy_private()
    made = [
        synthesise(replace(SMALL, steps=steps), private=data).generator
        for data in ((images, labels), (255 - images, labels.flip(0)))
    ]
    assert same_tensors(*(weights(generator) for generator in made))  # type: ignore[arg-type]


def test_finished_images_by_hand() -> None:
    """A constant stays; one noisy pixel is removed by the median; an edge is sharpened; colour is not."""
    flat = finished(torch.full((1, 16), 0.4), (1, 8, 8))
    torch.testing.assert_close(flat, torch.full((1, 1, 8, 8), 0.4))
    edge = torch.zeros(1, 3, 4, 4)
    edge[..., 2:] = 0.6
    colour = finished(edge.flatten(1), (3, 8, 8))
    grey = finished(edge[:, :1].flatten(1), (1, 8, 8))
    inside = colour[0, 0, 4]
    assert inside.diff().min() >= 0 and float(inside[-1]) == pytest.approx(0.6)
    sharpened = 2 * inside[3] - (3 * inside[2] + 2 * inside[3] + 3 * inside[4]) / 8
    assert float(grey[0, 0, 4, 3]) == pytest.approx(float(sharpened.clamp(0, 1)), abs=1e-6)
    assert float(grey.max()) > 0.65 and float(grey.min()) >= 0 and float(grey.max()) <= 1
    assert finished(torch.full((2, 20), 3.0), (1, 7, 9)).shape == (2, 1, 7, 9), "odd sizes"


def test_central_images_keep_their_class() -> None:
    """The means of a round are ordered by class, and the denoiser learns them with that label."""
    images, labels = toy_private(n=80)
    by = replace(SMALL, central_noise=0.0, central_records=80)
    parameters = by.calibrate(80, FREE)
    means = by.central_images(images, labels, CLASSES, parameters, context())
    assert means.shape == (2 * CLASSES, 64)
    shown = finished(means, SHAPE)
    corners = torch.nn.functional.avg_pool2d(shown, 8).flatten(1).argmax(1)
    assert corners.tolist() == list(range(CLASSES)) * 2


def test_budget_is_shared_by_central_images_and_dp_sgd() -> None:
    both = calibrate(replace(FETA, steps=50), Budget(1.0))
    assert both.central == 5.0 and 0.98 < epsilon_of(both.ledger()) <= 1
    single = calibrate(replace(FETA, steps=0), Budget(1.0))
    assert single.central < 5.0 and 0.98 < epsilon_of(single.ledger()) <= 1
    none = calibrate(FETA, Budget(math.inf))
    assert none.central == none.multiplier == 0
    steps = calibrate(replace(FETA, steps=1), Budget(1.0, solve="steps"))
    assert steps.multiplier == 14.94 and steps.steps > 100


def test_budget_below_the_central_images_is_refused() -> None:
    with refused("0.1"):
        calibrate(replace(FETA, central=1.0), Budget(0.1))


def test_steps_cannot_be_solved_without_dp_sgd() -> None:
    with refused("steps 0"):
        synthesise(replace(SMALL, steps=0), Budget(1.0, solve="steps"))


@pytest.mark.thorough
@pytest.mark.parametrize(("noise", "learns"), [(0.0, True), (1e4, False)])
def test_central_images_alone_teach_the_classes(noise: float, learns: bool) -> None:
    options: dict[str, Any] = {
        "warm": 600, "warm_batch": 40, "warm_rate": 3e-3, "average": 0.9, "network": "dense", "width": 64,
        "denoisings": 12,
    }  # fmt: skip
    share = class_share(synthesise(replace(SMALL, steps=0, central_noise=noise, central_records=80, **options)))
    assert share > 0.8 if learns else share < 0.6
