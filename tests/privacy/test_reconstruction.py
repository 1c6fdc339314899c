"""Informed reconstruction: its bounds, and the game on steps of DP-SGD with right and with too little noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from bench import registry
from bench.dp_training import clipped_sums, clipping, dp_sgd
from bench.dp_training.games import RECORDS
from bench.errors import BenchError
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.reconstruction import (
    ReconstructionGame,
    SampledGaussian,
    audit_reconstruction,
    curve_bound,
    gaussian_bound,
    orthogonal_success,
    pure_bound,
    sampled_gaussian_bound,
    zcdp_bound,
)

TABLE = [
    (10, 0.5, 0.2172, 0.2580, 0.1992),
    (10, 1.0, 0.3891, 0.5186, 0.3409),
    (10, 2.0, 0.7638, 0.9894, 0.6736),
    (100, 1.0, 0.0924, 0.1261, 0.0825),
    (2, 1.0, 0.8413, 0.9844, 0.7602),
]
"""Card C: candidates, mu, tight bound, zCDP bound, success of the attack on orthogonal candidates."""


def curve_of(event: Any, count: int = 1) -> Any:
    ledger = Ledger()
    ledger.spend(event, count=count)
    return lambda delta: account(ledger, Unit.EXAMPLE, delta).epsilon


@pytest.mark.parametrize(("candidates", "mu", "tight", "zcdp", "success"), TABLE)
def test_golden_table(candidates: int, mu: float, tight: float, zcdp: float, success: float) -> None:
    kappa = 1 / candidates
    assert gaussian_bound(kappa, mu) == pytest.approx(tight, abs=5e-5)
    assert zcdp_bound(kappa, mu**2 / 2) == pytest.approx(zcdp, abs=5e-5)
    assert orthogonal_success(candidates, mu) == pytest.approx(success, abs=5e-5)


@pytest.mark.parametrize(("candidates", "mu", "tight", "zcdp", "success"), TABLE)
def test_bound_of_a_curve_is_that_of_the_gaussian(
    candidates: int, mu: float, tight: float, zcdp: float, success: float
) -> None:
    found = curve_bound(1 / candidates, curve_of(GaussianDpEvent(1 / mu)))
    assert tight - 5e-5 <= found <= tight + 2e-3


def test_pure_bound_by_hand() -> None:
    assert pure_bound(0.1, 1.0) == pytest.approx(math.e / 10)
    assert pure_bound(0.1, 3.0) == 1.0 and pure_bound(0.1, math.inf) == 1.0


@pytest.mark.parametrize(
    ("q", "s", "steps", "bound"), [(0.01, 0.8, 100, 0.142), (0.1, 2, 100, 0.227), (1, 1, 1, 0.389)]
)
def test_bound_of_sampled_gaussian_golden_values(q: float, s: float, steps: int, bound: float) -> None:
    mechanism = SampledGaussian(q, s, steps)
    assert sampled_gaussian_bound(0.1, mechanism, draws=50_000) == pytest.approx(bound, abs=0.006)


@pytest.mark.thorough
def test_bound_of_a_curve_is_that_of_the_sampled_gaussian() -> None:
    event = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
    found = curve_bound(0.1, curve_of(event, 100))
    assert found == pytest.approx(sampled_gaussian_bound(0.1, SampledGaussian(0.1, 1.0, 100)), abs=0.01)


# The game of DP-SGD


def game(played: int | None = None, name: str = "dp-sgd", **given: Any) -> ReconstructionGame:
    """The game of private training: all steps of full batches, noise multiplier 1, unless `given` changes it."""
    options = {"batch": RECORDS, "steps": 1, "multiplier": 1.0} | given
    made = replace(registry.load("method", name)(), **options).game(Budget(None, solve="none"), "toy", 2)
    assert made.reconstruction is not None
    return made.reconstruction(played)


@pytest.mark.parametrize("candidates", [2, 10, 100])
def test_release_without_noise_names_every_record(candidates: int) -> None:
    """Card C, the gate."""
    found = audit_reconstruction(game(multiplier=0.0), candidates, 200)
    assert (found.correct, found.bound, found.bound_gaussian) == (200, 1.0, None)
    assert found.verdict == "not refuted"


def test_success_on_a_full_batch_is_that_of_orthogonal_candidates() -> None:
    found = audit_reconstruction(game(), 10, 2000)
    assert found.low <= orthogonal_success(10, clipping.ROOM) <= found.high
    assert found.chance < found.low < found.bound == pytest.approx(0.3891, abs=2e-3)
    assert found.bound_gaussian == pytest.approx(0.3891, abs=6e-3)
    assert (found.bound_pure, found.verdict) == (1.0, "not refuted")


@pytest.mark.parametrize("fault", ["noise halved", "no clipping"])
def test_success_with_a_fault_refutes_the_bound(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest_noise, honest_sum = dp_sgd.noisy_mean, clipped_sums.add_clipped

    def less_noise(total: Any, groups: Any, z: float, *rest: Any) -> Any:
        return honest_noise(total, groups, z / 2, *rest)

    def unclipped(total: Any, gradients: Any, groups: Any, batch: int) -> None:
        honest_sum(total, gradients, [replace(each, bound=1e6) for each in groups], batch)

    if fault == "noise halved":
        monkeypatch.setattr(dp_sgd, "noisy_mean", less_noise)
    else:
        monkeypatch.setattr(clipped_sums, "add_clipped", unclipped)
    found = audit_reconstruction(game(), 10, 300)
    assert found.verdict == "refuted" and found.low > found.bound


def test_many_steps_of_a_sample_are_within_the_bound() -> None:
    made = game(batch=RECORDS // 2, steps=6, multiplier=2.0)
    found = audit_reconstruction(made, 10, 1000)
    assert made.gaussian == SampledGaussian(0.5, 2.0, 6)
    assert found.chance < found.low <= found.bound and found.verdict == "not refuted"
    assert found.bound_gaussian == pytest.approx(found.bound, abs=0.01)
    first = audit_reconstruction(game(1, batch=RECORDS // 2, steps=6, multiplier=2.0), 10, 1000)
    assert first.success < found.success and first.bound < found.bound


def test_numbers_out_of_range_are_refused() -> None:
    made = game()
    for candidates, trials in ((1, 10), (made.most + 1, 10), (10, 0)):
        with pytest.raises(BenchError, match="expected"):
            audit_reconstruction(made, candidates, trials)


@pytest.mark.parametrize("name", ["gm-dp", "gep", "rgp", "spectral-dp", "geddp", "scatter-cnn"])
def test_every_kind_of_clipped_gradient_has_the_game(name: str) -> None:
    made = replace(registry.load("method", name)()).game(Budget(3.0, account="accounted"), "digits", 10)
    assert made.reconstruction is not None
    found = audit_reconstruction(replace(made.reconstruction(1), curve=lambda delta: 3.0), 4, 40)
    assert 0 < found.correct <= 40
