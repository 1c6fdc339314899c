"""Top-k votes: by hand, their probabilities in both directions, the draws, and the influence of a voter."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from bench.dp_training.top_k_votes import agreed, top_k_votes

SURE = 1e-9
"""A cap far below all gradients: signs are not random."""


def places(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(d, generator=rng, dtype=torch.float64)


def test_top_k_votes_by_hand() -> None:
    """The two largest by size: -5 and 3 of the first row, 0.2 and -0.1 of the second, however small."""
    rows = torch.tensor([[1.0, -5.0, 3.0, -2.0], [0.2, 0.0, -0.1, 0.05]])
    votes = top_k_votes(rows, 2, SURE, *places(2, 4))
    assert votes.tolist() == [[0, -1, 1, 0], [1, 0, -1, 0]]
    assert top_k_votes(rows, 4, SURE, *places(2, 4))[0].tolist() == [1, -1, 1, -1]


@pytest.mark.parametrize(
    ("place", "expected"), [(0.0, [1, 1, -1]), (0.3, [1, -1, -1]), (0.74, [1, -1, -1]), (0.2, [1, 1, -1])]
)
def test_top_k_votes_stochastic_signs_by_hand(place: float, expected: list[int]) -> None:
    """b = 4: probabilities of + are 1/2 + 4/8 = 1, 1/2 - 2/8 = 1/4 and 1/2 - 4/8 = 0."""
    votes = top_k_votes(torch.tensor([[4.0, -2.0, -4.0]]), 3, 1e9, torch.tensor([place]).double(), torch.zeros(3))
    assert votes[0].tolist() == expected


def test_top_k_votes_cap_limits_only_the_scale() -> None:
    """c = 2: 4 and -4 are beyond it and sure, 1 has 1/2 + 1/4; c never makes a smaller coordinate one of the k."""
    rows, n = torch.tensor([[4.0, 1.0, -4.0, 0.5]]).expand(4000, -1), 4000
    votes = top_k_votes(rows, 3, 2.0, *places(n, 4))
    assert (votes[:, 0] == 1).all() and (votes[:, 2] == -1).all() and not votes[:, 3].any()
    assert float((votes[:, 1] == 1).double().mean()) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_top_k_votes_signs_have_their_probabilities(sign: float) -> None:
    """1/2 + g / (2 b) in both directions; neither the plain sign nor half of the lean would pass."""
    n, row = 20_000, sign * torch.tensor([1.0, 0.6, -0.3, 0.1, 0.0])
    plus = (top_k_votes(row.expand(n, -1), 5, 10.0, *places(n, 5)) == 1).sum(0)
    for count, g in zip(plus.tolist(), row.tolist(), strict=True):
        assert stats.binomtest(count, n, 0.5 + g / 2).pvalue > 1e-4
        if 0 < abs(g) < 1:
            assert stats.binomtest(count, n, 0.5 + g / 4).pvalue < 1e-6
            assert stats.binomtest(count, n, float(g > 0)).pvalue < 1e-6


def test_top_k_votes_are_independent() -> None:
    """All lean by nothing: sums over voters, and over coordinates, spread as sums of independent signs do."""
    n, d = 400, 300
    sums = torch.stack([top_k_votes(torch.zeros(n, d), d, 1.0, *places(n, d, seed)) for seed in range(40)])
    for axis, count in ((1, n), (2, d)):
        spread = float(sums.sum(axis).double().square().mean())
        assert spread == pytest.approx(count, rel=0.15)


def test_top_k_votes_have_norm_sqrt_k() -> None:
    torch.manual_seed(0)
    rows = torch.randn(50, 30) * torch.logspace(-30, 30, 50)[:, None]
    rows[:3] = 0.0
    votes = top_k_votes(rows, 7, 1e-5, *places(50, 30))
    assert (votes.abs().sum(1) == 7).all() and set(votes.unique().tolist()) == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_top_k_votes_ignore_a_broken_gradient(broken: float) -> None:
    rows = torch.ones(3, 4)
    rows[1, 2] = broken
    assert top_k_votes(rows, 2, 1.0, *places(3, 4)).abs().sum(1).tolist() == [2, 0, 2]


def test_top_k_votes_of_a_voter_depend_on_it_only() -> None:
    """The released code first had b as the largest gradient of all teachers, by which one teacher moved all votes."""
    torch.manual_seed(0)
    rows, (r, t) = torch.randn(20, 40), places(20, 40)
    votes = top_k_votes(rows, 9, 1e9, r, t)
    louder = rows.clone()
    louder[4] *= 1e6
    assert torch.equal(top_k_votes(louder, 9, 1e9, r, t), votes), "only its own scale, which cancels"
    assert torch.equal(top_k_votes(rows[5:], 9, 1e9, r[5:], t), votes[5:])


@pytest.mark.parametrize("k", [1, 9, 40])
def test_sum_of_votes_has_sensitivity_2_sqrt_k(k: int) -> None:
    torch.manual_seed(0)
    rows, (r, t) = torch.randn(20, 40), places(20, 40)
    total = top_k_votes(rows, k, SURE, r, t).sum(0)
    for other, most in ((-rows[3], 2 * math.sqrt(k)), (torch.randn(40), 2 * math.sqrt(k)), (rows[3], 0.0)):
        changed = rows.clone()
        changed[3] = other
        far = float((top_k_votes(changed, k, SURE, r, t).sum(0) - total).norm())
        assert far <= most + 1e-5
    changed[3] = -rows[3]
    assert float((top_k_votes(changed, k, SURE, r, t).sum(0) - total).norm()) == pytest.approx(2 * math.sqrt(k))
    assert float((total - top_k_votes(rows[1:], k, SURE, r[1:], t).sum(0)).norm()) == pytest.approx(math.sqrt(k))


def test_agreed_by_hand() -> None:
    mean = torch.tensor([0.3, 0.2, -0.21, -0.1, 0.0])
    assert agreed(mean, 0.2).tolist() == [1, 0, -1, 0, 0]
    assert agreed(mean, 0.0).tolist() == [1, 1, -1, -1, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_sum_of_votes_is_exact_for_any_dtype(dtype: torch.dtype) -> None:
    """4,097 votes of one sign; bfloat16 has no such number, and float16 none above 2048 that is odd."""
    votes = top_k_votes(torch.ones(4097, 1, dtype=dtype), 1, SURE, *places(4097, 1))
    assert votes.sum(0).tolist() == [4097]
