"""The test of an attack against retrieval: by hand, and with power in both directions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.metrics import retrieval
from bench.metrics.retrieval import GATED_FROM, gain_over_retrieval, sign_flip_p


def counts(hits: list[int], images: int) -> Tensor:
    """Return (c, c): of `images` per class the given number shows it, the others show the next class."""
    found = torch.zeros(len(hits), len(hits), dtype=torch.int64)
    for c, right in enumerate(hits):
        found[c, c], found[c, (c + 1) % len(hits)] = right, images - right
    return found


def test_retrieval_gain_by_hand() -> None:
    found = gain_over_retrieval(counts([4, 2, 0], 4), counts([1, 5, 0], 10))
    assert found.gain == pytest.approx((0.9 + 0.0 + 0.0) / 3)
    assert found.low == 0.0 and found.high == pytest.approx(0.6, abs=0.31)
    assert found.p is None, "three classes are too few for a test"


def test_sign_flip_p_agrees_with_all_signs() -> None:
    gains = np.array([0.5, -0.1, 0.3, 0.2, 0.0, 0.4, 0.1, -0.2])
    exact = np.mean([np.dot(signs, gains) >= gains.sum() - 1e-9 for signs in product((-1, 1), repeat=len(gains))])
    assert sign_flip_p(gains) == pytest.approx(exact, abs=0.01)


def test_interval_ends_are_the_2_5_and_97_5_percentiles() -> None:
    """A gain of 1 in 8 of 16 classes: of 16 fair coins 3 or fewer show heads in 1.1 % of cases, 4 or fewer in 3.8 %,
    5 or fewer in 10.5 %."""
    found = gain_over_retrieval(counts([1] * 8 + [0] * 8, 1), counts([0] * 16, 1))
    assert (found.gain, found.low, found.high) == (0.5, 4 / 16, 12 / 16)


def test_p_value_exists_from_fifty_classes_and_is_above_0() -> None:
    for classes, wanted in ((GATED_FROM - 1, None), (GATED_FROM, 1 / (retrieval.FLIPS + 1))):
        assert gain_over_retrieval(counts([1] * classes, 1), counts([0] * classes, 1)).p == wanted


@pytest.mark.thorough
def test_sign_flip_test_has_its_level_and_power() -> None:
    rng = np.random.RandomState(0)
    null = [sign_flip_p((rng.rand(62) < 0.2) * 1.0 - (rng.rand(62) < 0.2)) < 0.05 for _ in range(200)]
    assert 0 < np.mean(null) < 0.09
    power = [sign_flip_p((rng.rand(62) < 0.45) * 1.0 - (rng.rand(62) < 0.2)) < 0.05 for _ in range(50)]
    assert np.mean(power) > 0.8
    assert sign_flip_p(np.full(60, -0.3)) > 0.999


def test_gain_on_62_people_is_significant() -> None:
    """29 hits of 62 against 12, for two ways of pairing them."""
    for start in (0, 17):
        attack = [int(c < 29) for c in range(62)]
        public = [int(start <= c < start + 12) for c in range(62)]
        found = gain_over_retrieval(counts(attack, 1), counts(public, 1))
        assert found.p is not None and found.p < 0.05 and found.low > 0
        assert found.gain == pytest.approx(17 / 62)


@pytest.mark.thorough
def test_interval_covers_the_true_gain() -> None:
    rng = np.random.RandomState(1)
    covered = 0
    for _ in range(60):
        attack, public = (rng.binomial(5, share, GATED_FROM).tolist() for share in (0.5, 0.3))
        found = gain_over_retrieval(counts(attack, 5), counts(public, 5))
        covered += found.low <= 0.2 <= found.high
    assert covered >= 52


@pytest.mark.thorough
@pytest.mark.parametrize(("many", "few", "rate"), [(100, 1, 0.05), (5, 1, 0.05), (1, 100, 0.05), (5, 5, 0.2)])
def test_level_holds_for_unequal_numbers_of_images(
    many: int, few: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain shares would be significant in 17 % of cases for 100 images against 1."""
    monkeypatch.setattr(retrieval, "FLIPS", 1000)
    rng, trials = np.random.default_rng(0), 300
    above = [
        gain_over_retrieval(counts(rng.binomial(many, rate, 62), many), counts(rng.binomial(few, rate, 62), few)).p
        for _ in range(trials)
    ]
    significant = sum(p < 0.05 for p in above if p is not None)
    assert len(above) == trials and significant <= 25, "15 are expected; more than 25 occur in 1 of 100 cases"


def test_retrieval_gain_refuses_other_shapes_and_empty_rows() -> None:
    with pytest.raises(ValueError, match=r"\(3, 3\)"):
        gain_over_retrieval(counts([1, 1], 1), counts([1, 1, 1], 1))
    with pytest.raises(ValueError, match=r"class 1\b"):
        gain_over_retrieval(counts([1, 1], 1), torch.tensor([[1, 0], [0, 0]]))
