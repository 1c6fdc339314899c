from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.metrics.power import DRAWS, permutation_p, power


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
def test_power_fails_without_success_on_the_teacher(c: int) -> None:
    assert not power(collapsed(c), collapsed(c, into=1)).passed


@pytest.mark.parametrize("c", [2, 3, 5, 10])
def test_power_fails_on_success_on_a_random_network(c: int) -> None:
    assert not power(faithful(c), faithful(c)).passed


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
        (torch.ones(2, 3), r"\(2, 3\)"),
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
