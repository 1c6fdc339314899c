"""Integer noise: exact distributions, exact sums, and the rare draws that float64 cannot decide."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from bench.errors import BenchError
from bench.pipeline.components import Components
from bench.privacy import Budget, counts
from bench.privacy.counts import MOST_SCALE, Law, noisy_counts, rounded
from bench.privacy.noise import Noise

LEVEL = 1e-6


def law(name: str, scale: float, k: np.ndarray) -> np.ndarray:
    """P(round(X) = k), by scipy's own functions."""
    cdf = stats.norm(0, scale).cdf if name == "gaussian" else stats.laplace(0, scale).cdf
    return cdf(k + 0.5) - cdf(k - 0.5)


def fits(drawn: np.ndarray, name: str, scale: float) -> float:
    """p-value of a chi-square test over the whole numbers that are frequent enough, and all others together."""
    k = np.arange(-int(40 * scale) - 2, int(40 * scale) + 3)
    expected = law(name, scale, k) * len(drawn)
    kept = expected > 20
    found = np.array([(drawn == at).sum() for at in k[kept]])
    observed, wanted = (
        np.append(found, len(drawn) - found.sum()),
        np.append(expected[kept], len(drawn) - expected[kept].sum()),
    )
    if wanted[-1] < 5:
        observed, wanted = observed[:-1], wanted[:-1] * observed[:-1].sum() / wanted[:-1].sum()
    return float(stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [0.4, 1.3, 5.0, 40.0])
def test_rounded_fits_its_scale_and_no_other(name: str, scale: float) -> None:
    drawn = rounded(name, scale, 200_000, Noise("cpu", 1)).numpy()  # type: ignore[arg-type]
    assert fits(drawn, name, scale) > LEVEL
    for wrong in (0.95, 1.05):
        assert fits(drawn, name, scale * wrong) < LEVEL


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_exact_size_has_the_same_distribution(monkeypatch, name: str) -> None:
    """With float64 trusted in nothing, every draw is decided by the exact tails."""
    asked = []
    exact = counts.exact_size
    monkeypatch.setattr(counts, "_sure", lambda first, *_: np.zeros(len(first), dtype=bool))
    monkeypatch.setattr(counts, "exact_size", lambda *given: asked.append(1) or exact(*given))
    drawn = rounded(name, 2.5, 4000, Noise("cpu", 2)).numpy()  # type: ignore[arg-type]
    assert len(asked) == 4000 and fits(drawn, name, 2.5) > LEVEL and fits(drawn, name, 3.0) < LEVEL


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [0.4, 7.0, 1000.0])
def test_float64_and_exact_tails_agree(monkeypatch, name: str, scale: float) -> None:
    first = Noise("cpu", 3).bits(300).numpy() >> 1
    size = counts._sizes(first, name, scale)  # type: ignore[arg-type]
    sure = counts._sure(first, size, name, scale)  # type: ignore[arg-type]
    assert sure.mean() > 0.99
    for v, j in zip(first[sure].tolist(), size[sure].tolist(), strict=True):
        assert counts.exact_size(v, max(j - 2, 0), name, scale, Noise("cpu", 4)) == j  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_draw_near_a_boundary_is_decided_exactly(name: str) -> None:
    """V within 2^-45 of S_3, on either side: unsure, and then right."""
    scale = 2.0
    with mpmath.workprec(300):
        at = mpmath.mpf(5) / 2 / scale
        tail = mpmath.erfc(at / mpmath.sqrt(2)) if name == "gaussian" else mpmath.exp(-at)
        boundary = int(tail * 2**62)
    for first, expected in ((boundary - 2**17, 3), (boundary + 2**17, 2)):
        for guess in (0, 2, 3, 9):
            v, j = np.array([first]), np.array([expected])
            assert not counts._sure(v, j, name, scale)[0]  # type: ignore[arg-type]
            assert counts.exact_size(first, guess, name, scale, Noise("cpu", 5)) == expected  # type: ignore[arg-type]


def test_exact_size_of_the_last_interval_draws_more_bits() -> None:
    """V in [0, 2^-62) is 8.5 deviations or more."""
    found = [counts.exact_size(0, 0, "gaussian", 1.0, Noise("cpu", seed)) for seed in range(20)]
    assert min(found) >= 8 and max(found) < 15


def test_noisy_counts_are_integers_plus_a_uniform_fraction() -> None:
    votes = torch.arange(12.0).view(3, 4)
    one, other = (noisy_counts(votes + shift, "gaussian", 3.0, Noise("cpu", 6)) for shift in (0, 1000))
    assert torch.equal(other - 1000, one), "sums are exact"
    drawn, moved = (noisy_counts(torch.full((500,), at), "gaussian", 3.0, Noise(seed=4)) for at in (0.0, 2.0**40))
    assert torch.equal(moved, (2.0**40 + drawn.round()) + (drawn - drawn.round())), "integers are added first"
    many = noisy_counts(torch.zeros(50_000), "laplace", 2.0, Noise("cpu", 7))
    fraction = (many - many.round()).numpy()
    assert stats.kstest(fraction, stats.uniform(-0.5, 1).cdf).pvalue > LEVEL
    assert abs(np.corrcoef(fraction, many.round().numpy())[0, 1]) < 0.03


def test_report_noisy_max_breaks_ties_evenly() -> None:
    votes = torch.zeros(40_000, 2)
    first = int((noisy_counts(votes, "gaussian", 0.3, Noise("cpu", 8)).argmax(1) == 0).sum())
    assert stats.binomtest(first, 40_000).pvalue > LEVEL


def test_noisy_counts_refuses_fractions() -> None:
    with pytest.raises(RuntimeError):
        noisy_counts(torch.tensor([0.5]), "gaussian", 1.0, Noise("cpu", 0))
    assert noisy_counts(torch.tensor([3.0]), "laplace", 0.0, Noise("cpu", 0)).tolist() == [3.0]


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [MOST_SCALE * 1.001, 1e17, 1e18, 1e300, math.inf, math.nan, -1.0, 1e-31])
def test_noisy_counts_refuses_an_undrawable_scale(kind: Law, scale: float) -> None:
    with pytest.raises(BenchError, match="scale"):
        noisy_counts(torch.zeros(2), kind, scale, Noise(seed=0))


@pytest.mark.parametrize(("kind", "deviation"), [("gaussian", 1.0), ("laplace", math.sqrt(2))])
def test_noisy_counts_at_the_largest_scale(kind: Law, deviation: float) -> None:
    drawn = noisy_counts(torch.zeros(20_000), kind, MOST_SCALE, Noise(seed=0)) / MOST_SCALE
    assert float(drawn.std()) == pytest.approx(deviation, rel=0.03) and abs(float(drawn.mean())) < 0.04


@pytest.mark.parametrize(
    "name", ["pate", "pate-gnmax", "pate-gan", "g-pate", "dgd", "datalens", "class-moments", "cluster-rr"]
)
def test_methods_refuse_undrawable_votes(name: str) -> None:
    options = (("teachers", "40"),) if name == "class-moments" else ()
    made, _ = Components().plugin("method", name, None, "quick", options)
    for epsilon in (1e-12, 1e-300):
        with pytest.raises(BenchError) as error:
            Components().check_method(made, Budget(epsilon, 1e-300), "digits", 10)
        assert "\n" not in str(error.value)
