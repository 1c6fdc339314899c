"""Power of an attack, its gain over retrieval, and intervals of proportions: by hand and by their level."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from bench.metrics import retrieval
from bench.metrics.power import DRAWS, permutation_p, power
from bench.metrics.proportions import accuracy, clopper_pearson, count_correct
from bench.metrics.retrieval import GATED_FROM, gain_over_retrieval, sign_flip_p


def faithful(c: int, n: int = 20) -> Tensor:
    return n * torch.eye(c, dtype=torch.int64)


def collapsed(c: int, into: int = 0, n: int = 20) -> Tensor:
    counts = torch.zeros(c, c, dtype=torch.int64)
    counts[:, into] = n
    return counts


@pytest.mark.parametrize("c", [4, 5, 7, 8, 10, 40])
def test_power_passes_on_success_only_on_the_teacher(c: int) -> None:
    verdict = power(faithful(c), collapsed(c))
    assert verdict.passed and verdict.p_random == 1 and "100.0%" in verdict.reason


@pytest.mark.parametrize("c", [2, 3, 5, 10])
def test_power_fails_unless_only_the_teacher_succeeds(c: int) -> None:
    assert not power(collapsed(c), collapsed(c, into=1)).passed and not power(faithful(c), faithful(c)).passed


@pytest.mark.parametrize("c", [2, 3])
def test_power_fails_below_four_classes(c: int) -> None:
    """If each class's images turn into one random label, two or three classes are all right in 25 or 4 %."""
    verdict = power(faithful(c), collapsed(c))
    assert not verdict.passed and verdict.p_teacher is verdict.p_random is None
    assert verdict.reason.startswith(f"{c} classes") and "100.0%" in verdict.reason


def test_p_value_equal_to_alpha_is_significant() -> None:
    """All right of four classes is one permutation of 24."""
    assert power(faithful(4), collapsed(4), alpha=1 / 24).passed
    assert not power(faithful(4), collapsed(4), alpha=1 / 25).passed
    assert not power(faithful(4), faithful(4), alpha=1 / 24).passed


def test_permutation_p_by_hand() -> None:
    counts = np.array([[8, 1, 1, 0], [2, 5, 3, 0], [0, 4, 4, 2], [1, 0, 0, 1]])
    shares = counts / counts.sum(1, keepdims=True)
    null = [sum(shares[i, p[i]] for i in range(4)) for p in permutations(range(4))]
    expected = sum(t >= null[0] - 1e-9 for t in null) / 24
    assert permutation_p(counts) == pytest.approx(expected)
    assert permutation_p(10 * np.eye(4)) == pytest.approx(1 / 24)


def test_images_of_other_classes_are_misses() -> None:
    """A column after the targets' counts in the shares, and is never the right class."""
    others = torch.cat([faithful(5), torch.full((5, 1), 60)], 1)
    assert permutation_p(others.numpy()) == permutation_p(faithful(5).numpy())
    found = power(others, torch.cat([torch.zeros(5, 5), torch.full((5, 1), 80)], 1))
    assert found.passed and "25.0%" in found.reason and "0.0%" in found.reason
    gain = gain_over_retrieval(others, torch.cat([faithful(5) * 0, torch.full((5, 1), 80)], 1))
    assert gain.gain == pytest.approx(0.25) and gain.low == pytest.approx(0.25)


def test_permutation_p_adds_one_to_drawn_counts() -> None:
    assert permutation_p(np.eye(20)) == pytest.approx(1 / (DRAWS + 1))


def test_permutation_p_drawn_and_exact_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.RandomState(0)
    counts = rng.poisson(3, (6, 6)) + 2 * np.eye(6)
    exact = permutation_p(counts)
    monkeypatch.setattr("bench.metrics.power._EXACT_UP_TO", 5)
    assert 0.001 < exact < 0.5
    assert permutation_p(counts) == pytest.approx(exact, abs=4 * (exact / DRAWS) ** 0.5)


@pytest.mark.parametrize("c", [5, 9])
def test_permutation_p_keeps_its_level_under_correlation(c: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All images of a class turn into one random digit: a test on images would be wrong far more often than alpha."""
    monkeypatch.setattr("bench.metrics.power.DRAWS", 500)
    rng = np.random.RandomState(0)
    cases = [50.0 * np.eye(c)[rng.randint(c, size=c)] for _ in range(300)]
    rejected = np.mean([permutation_p(case) <= 0.05 for case in cases])
    naive = np.mean(
        [np.trace(case) / case.sum() > 1 / c + 1.645 * (1 / c * (1 - 1 / c) / case.sum()) ** 0.5 for case in cases]
    )
    assert rejected <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5
    assert naive > 0.2


def test_permutation_p_weighs_classes_equally() -> None:
    counts = np.diag([1, 1000, 1, 1]) + np.array([[0, 9, 0, 0], [0, 0, 0, 0], [0, 9, 0, 0], [0, 9, 0, 0]])
    assert permutation_p(counts) == permutation_p(counts / counts.sum(1, keepdims=True))


def test_power_depends_on_alpha() -> None:
    counts = torch.tensor([[8, 1, 1, 0], [2, 5, 3, 0], [0, 4, 4, 2], [1, 0, 0, 1]])
    p = permutation_p(counts.numpy())
    assert 0.04 < p < 0.2
    assert power(counts, collapsed(4), alpha=0.3).passed
    assert not power(counts, collapsed(4), alpha=0.01).passed


@pytest.mark.parametrize(
    ("counts", "value"),
    [
        (torch.ones(3, 2), r"\(3, 2\)"),
        (torch.ones(1, 1), r"\(1, 1\)"),
        (torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]), r"class 1\b"),
        (-torch.eye(4), "negative"),
    ],
)
def test_power_refuses_bad_counts(counts: Tensor, value: str) -> None:
    with pytest.raises(ValueError, match=value):
        power(counts, counts)


def test_power_refuses_other_classes_and_levels() -> None:
    with pytest.raises(ValueError, match=r"\(5, 5\)"):
        power(faithful(4), faithful(5))
    with pytest.raises(ValueError, match="alpha 0"):
        power(faithful(4), faithful(4), alpha=0)


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


LOGITS = torch.tensor([[3.0, 1.0, -2.0], [-5.0, -4.0, -9.0], [0.0, 0.1, 0.2], [7.0, 0.0, 0.0]])


def test_accuracy_by_hand() -> None:
    labels = torch.tensor([0, 1, 0, 2])
    assert count_correct(LOGITS, labels) == 2
    assert accuracy(LOGITS, labels) == 0.5


@pytest.mark.parametrize(
    ("logits", "labels", "value"),
    [(torch.full((2, 3), float("nan")), 2, "NaN"), (LOGITS, 3, r"\(3,\)"), (LOGITS[:0], 0, r"\(0,\)")],
)
def test_accuracy_refuses_nan_and_other_shapes(logits: Tensor, labels: int, value: str) -> None:
    with pytest.raises(ValueError, match=value):
        accuracy(logits, torch.zeros(labels, dtype=torch.int64))


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1), (117, 500)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_clopper_pearson_agrees_with_scipy(successes: int, trials: int, confidence: float) -> None:
    oracle = binomtest(successes, trials).proportion_ci(confidence, "exact")
    assert clopper_pearson(successes, trials, confidence) == pytest.approx((oracle.low, oracle.high), abs=1e-9)


@pytest.mark.parametrize("arguments", [(-1, 5), (6, 5), (0, 0), (1, 5, 0.0), (1, 5, 1.0)])
def test_clopper_pearson_refuses_impossible_arguments(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        clopper_pearson(*arguments)
