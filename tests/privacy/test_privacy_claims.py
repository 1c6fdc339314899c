from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent

from bench.errors import BenchError
from bench.privacy import Claim, Ledger, Unit, randomised_response_event
from bench.privacy.accountant import account
from bench.privacy.claims import (
    BELOW_ACCOUNT,
    BELOW_AUDIT,
    defect,
    dgd_composition,
    dispute,
    dpsd_theorem1,
    dpsd_theorem2,
)

PAPER = {"beta": 1e-3, "classes": 10, "batch": 256, "steps": 200, "sigma": 100.0, "delta": 1e-5}


def by_scan(slope: float, delta: float) -> float:
    """The minimum over q by brute force, for slopes with a positive one."""
    q = 1 + np.exp(np.linspace(-25, 25, 2_000_001))
    return float(np.min(slope * q + np.log((q - 1) / q) - np.log(q * delta) / (q - 1)))


@pytest.mark.parametrize("beta, steps, golden", [(1e-3, 200, 0.0456), (1e-3, 40_000, 0.8046), (5e-3, 40_000, 4.7933)])
def test_theorem1_golden_values(beta, steps, golden):
    assert dpsd_theorem1(**{**PAPER, "beta": beta, "steps": steps}) == pytest.approx(golden, abs=5e-5)


@pytest.mark.parametrize("beta", [1e-3, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2])
def test_theorem1_is_the_minimum_over_q(beta, delta):
    slope = 2 * beta**2 * 10 * 256 * 200 / 100.0**2
    expected = max(0.0, by_scan(slope, delta))
    assert dpsd_theorem1(**{**PAPER, "beta": beta, "delta": delta}) == pytest.approx(expected, rel=1e-6)


def test_theorem1_at_its_limits():
    assert dpsd_theorem1(**{**PAPER, "sigma": 0.0}) == math.inf
    assert dpsd_theorem1(**{**PAPER, "steps": 0}) == 0.0
    assert dpsd_theorem1(**{**PAPER, "sigma": 1e9}) == pytest.approx(0.0, abs=1e-5)
    huge = dpsd_theorem1(**{**PAPER, "sigma": 1e-6})
    slope = 2e-6 * 10 * 256 * 200 / 1e-12
    assert slope < huge < slope * 1.01


def test_theorem1_is_monotone():
    base = dpsd_theorem1(**PAPER)
    assert dpsd_theorem1(**{**PAPER, "sigma": 50.0}) > base
    assert dpsd_theorem1(**{**PAPER, "steps": 400}) > base
    assert dpsd_theorem1(**{**PAPER, "classes": 100}) > base
    assert dpsd_theorem1(**{**PAPER, "delta": 1e-3}) < base


@pytest.mark.parametrize(
    "wrong",
    [{"beta": 0.0}, {"classes": 0}, {"batch": 0}, {"steps": -1}, {"sigma": -1.0}, {"sigma": math.nan}, {"delta": 0.0}],
)
def test_theorem1_refuses_values_out_of_range(wrong):
    with pytest.raises(BenchError, match=next(iter(wrong))):
        dpsd_theorem1(**{**PAPER, **wrong})


def test_theorem2_is_the_mechanisms_epsilon():
    assert dpsd_theorem2(3.0) == 3.0
    assert dpsd_theorem2(math.inf) == math.inf
    with pytest.raises(BenchError):
        dpsd_theorem2(math.nan)


@pytest.mark.parametrize("queries, golden", [(400, 5.7985), (1000, 10.087), (1300, 11.90), (27, 1.314)])
def test_dgd_golden_values(queries, golden):
    assert dgd_composition(queries, 1 / 20, 1e-5) == pytest.approx(golden, rel=3e-4)


def test_dgd_adds_the_vaes_epsilon_outside_the_root() -> None:
    assert dgd_composition(400, 1 / 20, 1e-5, latent_epsilon=0.01) == pytest.approx(5.7985 + 0.01, abs=1e-4)


def test_claims_beyond_floating_point() -> None:
    assert dgd_composition(10, 1e200, 1e-5) == math.inf
    assert dpsd_theorem1(**{**PAPER, "beta": 1e200}) == math.inf
    for name in ("classes", "batch", "steps"):
        with pytest.raises(BenchError, match=name):
            dpsd_theorem1(**{**PAPER, name: 10**400})
    for queries, delta in ((10**400, 1e-5), (-1, 1e-5), (10, 1.0)):
        with pytest.raises(BenchError):
            dgd_composition(queries, 0.05, delta)
    assert dgd_composition(0, 0.05, 1e-5) == 0.0


def privacy_of(event: DpEvent, count: int, claim: Claim, audited: dict[str, Any] | None = None) -> dict[str, Any]:
    """A record's privacy, of a ledger with one kind of use in the claim's unit."""
    ledger = Ledger()
    ledger.spend(event, count=count, unit=claim.unit)
    proved = account(ledger, claim.unit, claim.delta or 1e-5)
    units = {str(claim.unit): proved.to_json()}
    return {"claimed": claim.to_json(), "accounted_units": units, "events": ledger.to_json(), "audited": audited}


RESPONSE = randomised_response_event(3.0, 10)
SAMPLED = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))


@pytest.mark.parametrize(
    ("event", "count", "epsilon", "delta", "unit", "expected"),
    [
        (RESPONSE, 3, 3.0, 0.0, Unit.QUERY, BELOW_ACCOUNT),  # three clients answer, and the claim is of one
        (RESPONSE, 1, 3.0, 0.0, Unit.QUERY, ""),
        (RESPONSE, 3, 9.0, 0.0, Unit.QUERY, ""),
        (RESPONSE, 3, 12.0, 0.0, Unit.QUERY, ""),
        (RESPONSE, 3, 3.0, 1e-5, Unit.QUERY, ""),  # at that delta the sum is only an upper bound
        (RESPONSE, 3, 3.0, 0.0, Unit.EXAMPLE, ""),  # accounted for replaced records, where a claim may leave one out
        (LaplaceDpEvent(0.5), 2, 3.0, 0.0, Unit.EXAMPLE, BELOW_ACCOUNT),
        (GaussianDpEvent(1.0), 4, 2.0, 1e-5, Unit.EXAMPLE, BELOW_ACCOUNT),
        (GaussianDpEvent(1.0), 4, 20.0, 1e-5, Unit.EXAMPLE, ""),
        (SAMPLED, 100, 0.1, 1e-5, Unit.EXAMPLE, ""),  # an upper bound: the claim may be the better proof
        (NonPrivateDpEvent(), 1, 3.0, 1e-5, Unit.EXAMPLE, ""),  # nothing is proved, nor is the contrary
    ],
)
def test_dispute_of_claim_below_account_needs_exactness(
    event: DpEvent, count: int, epsilon: float, delta: float, unit: Unit, expected: str
) -> None:
    assert dispute(privacy_of(event, count, Claim(epsilon, delta, unit, "a paper"))) == expected


def test_dispute_of_claim_below_an_audits_bound() -> None:
    shown = {"epsilon_lower": 4.0, "delta": 1e-5, "unit": "example"}
    for epsilon, expected in ((3.0, BELOW_AUDIT), (5.0, "")):
        assert dispute(privacy_of(SAMPLED, 100, Claim(epsilon, 1e-5, Unit.EXAMPLE, "a paper"), shown)) == expected


def test_dispute_prefers_a_stated_defect() -> None:
    own = Claim(3.0, 0.0, Unit.QUERY, "a paper", disputed="for-a-reason")
    assert dispute(privacy_of(RESPONSE, 3, own)) == "for-a-reason"
    assert dispute(privacy_of(RESPONSE, 3, Claim(3.0, 0.0, Unit.QUERY, "DPSD, Theorem 1"))) == defect("DPSD, Theorem 1")
    assert dispute({"claimed": None}) == ""
