"""The accountant at the limits of floating point, and its running time."""

from __future__ import annotations

import math
import time
from unittest.mock import patch

import dp_accounting as dp
import mpmath
import pytest
from accountant_made import DELTA, RR, G, L, P, cost, ledger_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.privacy import Unit, _pld, randomised_response_event
from bench.privacy._bounds import gaussian_epsilon, zcdp_epsilon
from bench.privacy.accountant import Accounted, account

COARSE = patch.object(_pld, "FINEST_GRID", 1e-3)


def accounted(*spent, delta: float = DELTA) -> Accounted:
    return account(ledger_of(*spent), Unit.EXAMPLE, delta)


def exact_delta(mu: float, at: float) -> mpmath.mpf:
    with mpmath.workdps(400):
        m, e = mpmath.mpf(mu), mpmath.mpf(at)
        inner, outer = (mpmath.erfc((e / m + side * m / 2) / mpmath.sqrt(2)) / 2 for side in (-1, 1))
        return inner - mpmath.exp(e) * outer


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda x: 10**x)


DELTAS = powers(1e-300, 0.5)
NOISES = powers(1e-170, 1e170)
PROBABILITIES = powers(1e-12, 0.5) | powers(1e-12, 0.5).map(lambda q: 1 - q)
COUNTS = powers(1, 1e18).map(int)
SAMPLED = st.builds(lambda q, z: P(q, G(z)), PROBABILITIES, NOISES)
RESPONSES = st.builds(
    lambda e, k: randomised_response_event(e, k), powers(1e-300, 20), st.integers(2, 1000) | st.just(10**15)
)
EVENTS = st.builds(G, NOISES) | st.builds(L, NOISES) | SAMPLED | RESPONSES


@pytest.mark.parametrize("noise, delta", [(1e170, 1e-300), (1e20, 1e-30), (1e8, 1e-12), (1e9, 1e-100), (1e308, 1e-320)])
def test_gaussian_epsilon_of_tiny_mu_is_exact(noise, delta):
    found = cost((G(noise), 1), delta=delta)
    assert found > 0
    mu = 1 / noise
    assert exact_delta(mu, found * (1 + 1e-8)) <= delta <= exact_delta(mu, found * (1 - 1e-8))


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(mu=powers(1e-170, 1e3), delta=DELTAS)
def test_closed_form_is_exact_over_its_range(mu, delta):
    found = gaussian_epsilon(mu, delta)
    if found == 0:
        assert delta >= exact_delta(mu, 0.0) * (1 - mpmath.mpf("1e-9"))
    else:
        assert exact_delta(mu, found * (1 + 1e-7)) <= delta * (1 + 1e-12)
        assert exact_delta(mu, found * (1 - 1e-7)) >= delta * (1 - 1e-12) or found < 1e-7 * mu


@given(noise=NOISES, factor=st.floats(1, 10), count=COUNTS, delta=DELTAS)
def test_account_of_gaussians_is_monotone(noise, factor, count, delta):
    here = cost((G(noise), count), delta=delta)
    above = here * (1 + 1e-9)
    assert cost((G(noise * factor), count), delta=delta) <= above
    assert cost((G(noise), count), delta=min(delta * factor, 0.9)) <= above
    assert cost((G(noise), int(count * factor)), delta=delta) >= here * (1 - 1e-9)


def test_account_of_tiny_mu_does_not_underflow():
    assert cost((L(1e170), 1), delta=1e-300) > 0
    assert zcdp_epsilon(1e-170, DELTA) > 0
    assert cost((G(1e170), 1), (L(1e170), 1), delta=1e-300) > 0
    assert cost((P(0.5, G(1e170)), 1), delta=1e-300) > 0
    assert cost(G(1e-170)) == cost((P(0.5, G(1e-170)), 1)) == math.inf
    assert accounted(G(1e-170)).note == "the noise is too small"


def least_total_variation(event) -> float:
    """The smallest evidence of one use: below it epsilon cannot be 0."""
    match event:
        case dp.GaussianDpEvent():
            return float(mpmath.erf(mpmath.mpf(1) / event.noise_multiplier / 2 / mpmath.sqrt(2)))
        case dp.LaplaceDpEvent():
            return -math.expm1(-0.5 / event.noise_multiplier)
        case dp.PoissonSampledDpEvent():
            return event.sampling_probability * least_total_variation(event.event)
    return 1 - event.noise_parameter


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(spent=st.lists(st.tuples(EVENTS, COUNTS), min_size=1, max_size=3), delta=DELTAS)
def test_epsilon_is_0_only_if_delta_covers_one_use(spent, delta):
    with COARSE:
        found = accounted(*spent, delta=delta)
    assert found.epsilon >= 0
    assert found.delta in (0.0, delta)
    assert bool(found.note) >= math.isinf(found.epsilon)
    if found.epsilon == 0:
        assert delta >= max(least_total_variation(event) for event, _ in spent) * (1 - 1e-9)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from("LPR"), noise=powers(1e-3, 1e6), count=COUNTS, factor=st.floats(1, 10), delta=DELTAS)
@example(kind="L", noise=10**-2.875, count=1, factor=1.0, delta=0.1)
def test_epsilon_is_monotone_across_fallbacks(kind, noise, count, factor, delta):
    def event(weaker):
        if kind == "R":
            return randomised_response_event(min(20, 1 / noise) / weaker, 10)
        return L(noise * weaker) if kind == "L" else P(0.01, G(noise * weaker))

    with COARSE:
        here = cost((event(1), count), delta=delta)
        above = here * (1 + 3e-3) + 3e-3
        assert cost((event(factor), count), delta=delta) <= above
        assert cost((event(1), count), delta=min(delta * factor, 0.9)) <= above
        assert cost((event(1), int(count * factor)), delta=delta) >= here * (1 - 3e-3) - 3e-3


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.sampled_from([0, 1, 5e-324, 1.8e307])
ODD = (
    st.builds(G, NUMBERS)
    | st.builds(L, NUMBERS)
    | st.builds(RR, NUMBERS, NUMBERS)
    | st.builds(lambda q, z: P(q, G(z)), NUMBERS, NUMBERS)
    | st.builds(G, st.text(max_size=2) | st.none() | st.booleans())
    | st.builds(lambda z, n: dp.SelfComposedDpEvent(G(z), n), NUMBERS, st.integers() | st.just(10**400))
    | st.just(dp.NonPrivateDpEvent())
)


@settings(max_examples=150, deadline=None)
@given(events=st.lists(ODD, min_size=1, max_size=3), count=st.integers(1, 10**400) | COUNTS, delta=DELTAS | NUMBERS)
def test_account_of_odd_parameters_raises_bench_error(events, count, delta):
    try:
        with COARSE:
            found = accounted(*((event, count) for event in events), delta=delta)
    except BenchError as refused:
        assert "\n" not in str(refused)
        assert not 0 < delta < 1
    else:
        assert found.epsilon >= 0


@pytest.mark.parametrize("delta", [None, "1e-5", True, math.nan, 0.0, 1.0, -1e-5])
def test_account_refuses_an_invalid_delta(delta):
    with pytest.raises(BenchError, match="delta"):
        accounted((G(1.0), 1), delta=delta)


@pytest.mark.parametrize("count", [10**400, 10**301])
@pytest.mark.parametrize("event", [G(5.0), L(5.0), RR(0.5, 10), P(0.1, G(5.0))])
def test_count_beyond_floating_point_is_infinite(event, count):
    half = math.isqrt(count) + 1
    for spent in (accounted((event, count)), accounted((dp.SelfComposedDpEvent(event, half), half))):
        assert spent.epsilon == math.inf
        assert "10^300 uses" in spent.note


MANY = {
    "laplace": [(L(20.0), 10**7)],
    "small laplace": [(L(1000.0), 10**7)],
    "smaller laplace": [(L(1e6), 10**7)],
    "responses": [(RR(0.5, 10), 10**7)],
    "sampled": [(P(0.01, G(1.0)), 10**6)],
    "sampled, more": [(P(0.01, G(1.0)), 10**9)],
    "sampled, wide grid": [(P(1e-12, G(0.15)), 10**6)],
    "mixed": [(P(0.01, G(2.0)), 10**6), (L(1000.0), 10**7), (randomised_response_event(0.01, 10), 10**6)],
    "choices": [(randomised_response_event(0.1, k), 10**4) for k in range(2, 100)],
    "kinds of laplace": [(L(1 + i / 500), 100) for i in range(3000)],
    "kinds of sampling": [(P(0.01, G(0.5 + i / 500)), 100) for i in range(3000)],
    "wide losses": [(P(0.01, G(1e-3)), 316)],
    "all": [(G(1e3), 10**18), (L(1e9), 10**18), (RR(1 - 1e-9, 10), 10**18), (P(1e-9, G(1e3)), 10**18)],
}


@pytest.mark.thorough
@pytest.mark.parametrize("spent", MANY.values(), ids=MANY)
def test_account_takes_less_than_10_seconds(spent):
    start = time.process_time()
    found = accounted(*spent)
    assert time.process_time() - start < 10
    assert found.finite


@pytest.mark.parametrize(
    "spent, reason",
    [
        ([(RR(0.5, 10), 10**7)], "10,000,000 randomised responses"),
        ([(P(0.01, G(1.0)), 10**10)], "10,000,000,000 uses at delta 1e-05"),
        ([(L(1 + i / 500), 100) for i in range(300)], "300 kinds of noise"),
        ([(L(1e-9), 10**7)], "privacy losses of 2e+08 and more"),
    ],
)
def test_account_names_a_looser_bound(spent, reason):
    found = accounted(*spent)
    assert found.note.startswith(reason)
    assert found.note.endswith(f"bounded from above by {found.accountant}")
    assert found.to_json()["note"] == found.note
    assert accounted((L(20.0), 100)).note == ""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "spent", [[(L(20.0), 1000)], [(P(0.02, G(2.0)), 1000)], [(G(3.0), 5), (L(20.0), 100)], [(RR(0.9, 10), 500)]]
)
@pytest.mark.parametrize("delta", [1e-9, 1e-11, 1e-14, 1e-100])
def test_tiny_delta_is_left_to_other_bounds(spent, delta):
    found, before = accounted(*spent, delta=delta), cost(*spent, delta=1e-8)
    assert found.epsilon > before or found.delta == 0
    assert found.accountant != "pld" or delta >= 1e-10


@pytest.mark.thorough
@pytest.mark.parametrize("noise, count", [(300.0, 10**5), (20.0, 30_000), (1000.0, 10**5 + 7)])
def test_two_stages_equal_one_stage(noise, count):
    staged = cost((L(noise), count))
    with patch.object(_pld, "LONG", 10**12):
        assert staged == pytest.approx(cost((L(noise), count)), rel=1e-5)
